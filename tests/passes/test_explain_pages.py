"""Each page about bounds and ownership shows a kernel that is refused with the page's code, and a corrected one that is
accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilec
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

FOLDER = Path(tilec.__file__).parent / "diagnostics" / "explain"
PAGES = sorted(FOLDER.glob("E03*.md")) + sorted(FOLDER.glob("E04*.md"))


def kernels(page: Path, folder: Path) -> list[Path]:
    """The page's Python blocks as files named after their kernel."""
    found: list[Path] = []
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)):
        name = re.findall(r"@tilec\.kernel\ndef (\w+)", text)[-1]
        path = folder / str(number) / f"{name}.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        found.append(path)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_wrong_kernel_is_refused_and_the_right_one_proven(page: Path, tmp_path: Path):
    wrong, right = kernels(page, tmp_path)
    with pytest.raises(CompileError) as caught:
        prove(load_kernel(wrong, {}))
    assert page.stem in {diagnostic.code for diagnostic in caught.value.diagnostics}
    prove(load_kernel(right, {}))
