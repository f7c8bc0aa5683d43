"""Each explain page of the front end: its wrong kernel is refused with that code, its right twin is accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from frontend_kernels import compile_text

import tilec
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel

PAGES = sorted(path for path in (Path(tilec.__file__).parent / "diagnostics" / "explain").glob("E0[12]*.md"))
SOURCES = sorted((Path(tilec.__file__).parent / "frontend").glob("*.py"))
Constants = Mapping[str, int | float | bool | str]
WRONG: dict[str, Constants] = {"E0212": {"BLOCK": 256, "BLOCKS": 4}, "E0213": {"E": 4, "H": "bf16"}}
RIGHT: dict[str, Constants] = {
    "E0211": {"BLOCK": 256}, "E0212": {"BLOCK": 256}, "E0213": {"E": "bf16", "H": 4096},
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_page(page: Path, tmp_path: Path) -> None:
    kernels = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    compile_text(tmp_path, kernels[-1], RIGHT.get(page.stem, {}))
    with pytest.raises(CompileError) as caught:
        if page.stem == "E0102":
            load_kernel(tmp_path / "missing.py", {})
        compile_text(tmp_path, kernels[0], WRONG.get(page.stem, {}))
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {page.stem}
    assert all(diagnostic.hint for diagnostic in caught.value.diagnostics)


def test_every_code_has_a_page() -> None:
    raised = {code for path in SOURCES for code in re.findall(r'"(E\d{4})"', path.read_text(encoding="utf-8"))}
    assert {code for code in raised if code.startswith(("E01", "E02"))} == {page.stem for page in PAGES}
    assert raised <= {page.stem for page in (Path(tilec.__file__).parent / "diagnostics" / "explain").glob("*.md")}
