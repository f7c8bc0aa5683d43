"""What the hints for rows between offsets advise: never a declaration that forbids empty rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.passes.prover.prove import prove

KERNEL = '''"""Rows of segments."""
from typing import Literal
import tilec as tl
class B(tl.Dim): """segments"""
class T(tl.Dim): """rows"""
@tl.kernel
def rows(cu: tl.In[tl.i32, Literal["B + 1"]], x: tl.In[tl.f32, T], out: tl.Out[tl.f32, T], blocks: tl.i32):
    tl.requires(1 <= blocks, blocks <= 64)
    tl.grid(blocks, B)
    tl.values(cu, 0, T + 1{words})
    begin, end = tl.load(cu, tl.bid(1)), tl.load(cu, tl.bid(1) + 1)
    for j in range(begin + tl.bid(0), end, tl.num_blocks(0)):
        tl.store(out, j, tl.load(x, j))
'''


def diagnostics(tmp_path: Path, words: str) -> dict[str, Diagnostic]:
    path = tmp_path / "rows.py"
    path.write_text(KERNEL.format(words=words), encoding="utf-8")
    try:
        prove(load_kernel(path, {}))
    except CompileError as error:
        return {d.code: d for d in error.diagnostics}
    return {}


def test_segments_without_an_order_are_advised_to_declare_it(tmp_path: Path) -> None:
    found = diagnostics(tmp_path, "")
    assert set(found) == {"E0401", "E0403"}
    assert "`values(cu, 0, T + 1, sorted=True)`" in found["E0401"].hint
    assert "`values(cu, 0, T + 1, sorted=True, ends=True)`" in found["E0403"].hint
    assert [fix.text for fix in found["E0401"].fixes] == ["sorted=True"]


def test_segments_that_may_leave_a_gap_are_advised_to_declare_their_ends(tmp_path: Path) -> None:
    found = diagnostics(tmp_path, ", sorted=True")
    assert set(found) == {"E0403"}
    assert "`values(cu, 0, T + 1, sorted=True, ends=True)`" in found["E0403"].hint


@pytest.mark.parametrize("words", ["", ", sorted=True"])
def test_no_hint_forbids_empty_rows(tmp_path: Path, words: str) -> None:
    assert not any("distinct" in d.hint for d in diagnostics(tmp_path, words).values())


def test_what_the_hints_advise_is_enough(tmp_path: Path) -> None:
    assert not diagnostics(tmp_path, ", sorted=True, ends=True")
