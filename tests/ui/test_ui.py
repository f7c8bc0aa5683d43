"""Wrong kernels are refused on the right line with the exact text; their corrected twins are accepted.

Two independent checks: the comments in a kernel state which lines are refused and with which codes, and `--bless` never changes
them; the `.stderr` file next to it has the text, which `pytest tests/ui --bless` rewrites.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.soundness.verdict import KINDS, replay
from tests.ui.corpus import FOLDER, constants, diagnose, expected, kernels, rendered
from tilec.frontend import load_kernel
from tilec.passes.prover.aliasing import launch_checks

FORBIDDEN = re.compile(
    r"\bisl\b|islpy|PwAff|BasicSet|\bPoly\b|\bValue\(|\bSSA\b|\bIR\b|tilec\.(?:ir|passes|frontend)|TileType|TensorType|"
    r"\b(?:BlockId|NumBlocks|DimValue|AtomicUpdate|MemoryOp|UnaryOp|BinaryOp)\b|block_id|floordiv|Traceback|"
    r"<[a-z_.]+ object at|\bNone\b(?![\],])|%\d"
)


diagnosed = functools.cache(diagnose)
"""Cached, because several tests need the diagnostics of the same unchanged files."""


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", kernels(), ids=_name)
def test_kernel(path: Path, bless: bool) -> None:
    text = path.read_text(encoding="utf-8")
    diagnostics = diagnosed(path)
    found = {(d.primary.span.line if d.primary is not None else 0, d.code) for d in diagnostics}
    assert found == expected(text), rendered(path, diagnostics)
    golden = path.with_suffix(".stderr")
    if not diagnostics:
        assert not golden.exists(), f"{golden.name} belongs to no refused kernel"
        return
    rendered_text = rendered(path, diagnostics)
    if bless:
        golden.write_text(rendered_text, encoding="utf-8")
    assert golden.exists(), f"no {golden.name}; run pytest tests/ui --bless and review it"
    assert rendered_text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [path for path in kernels() if path.stem.endswith("_ok")], ids=_name)
def test_a_right_twin_states_no_refusal(path: Path) -> None:
    assert not expected(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.stderr")), ids=_name)
def test_no_text_leaks_internal_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = "\n".join(line for line in text.split("\n") if not re.match(r" *\d+ \|", line))  # quoted source may have any text
    assert FORBIDDEN.search(prose) is None, FORBIDDEN.search(prose)
    assert path.with_suffix(".py").exists(), "the kernel of this text is gone"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.stderr")), ids=_name)
def test_a_refuted_kernel_shows_a_counterexample(path: Path) -> None:
    for part in path.read_text(encoding="utf-8").split("\nerror")[:]:
        code = re.search(r"\[(E\d{4})\]", part)
        assert code is not None
        if code.group(1)[:3] in ("E03", "E04") and code.group(1) not in ("E0306", "E0307"):
            assert "= counterexample: " in part, part


REPLAYED = [
    path
    for path in kernels()
    if path.parent.name in ("bounds", "ownership")
    or (path.parent.name == "ranks" and "E0407" in path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("path", REPLAYED, ids=_name)
def test_counterexamples_go_wrong_when_run(path: Path) -> None:
    """Runs the blocks of the launch that a refusal prints, without the prover: the claimed fault occurs."""
    checked = 0
    for diagnostic in diagnosed(path):
        if diagnostic.counterexample is not None:
            function = load_kernel(path, constants(path.read_text(encoding="utf-8")))
            kind, checks = KINDS[diagnostic.code], launch_checks(function)
            assert replay(function, diagnostic.counterexample, checks, kind) is not None, rendered(path, (diagnostic,))
            checked += 1
    assert checked or path.stem.endswith("_ok") or {d.code for d in diagnosed(path)} == {"E0306"}  # none shown
