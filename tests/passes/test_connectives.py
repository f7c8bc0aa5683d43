"""Preconditions with `and` and `or` have the usual meaning: both parts are true, or at least one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

KERNEL = '''
import tilec
from tilec import Dim, InOut, bid, f32, full, grid, requires, store

class M(Dim):
    """rows"""

class N(Dim):
    """columns"""

@tilec.kernel
def k(out: InOut[f32, M, N]):
    grid(1)
    requires({clause})
    store(out, (bid(0), 0), full((8, 8), 1.0, f32))
'''


@pytest.mark.parametrize(
    ("clause", "accepted"),
    [
        ("M >= 8 and N >= 8", True),
        ("M >= 8 or N >= 8", False),
        ("(M >= 8 or M >= 9) and N >= 8", True),
        ("(M >= 8 and N >= 8) or (M >= 16 and N >= 16)", True),
        ("(M >= 8 and N >= 8) or M >= 16", False),
        ("not (M < 8 or N < 8)", True),
        ("not (M < 8 and N < 8)", False),
    ],
)
def test_a_precondition_implies_its_clauses(tmp_path: Path, clause: str, accepted: bool) -> None:
    path = tmp_path / "k.py"
    path.write_text(KERNEL.format(clause=clause), encoding="utf-8")
    function = load_kernel(path, {})
    if accepted:
        assert prove(function).obligations
        return
    with pytest.raises(CompileError) as refused:
        prove(function)
    assert {item.code for item in refused.value.diagnostics} == {"E0302"}
