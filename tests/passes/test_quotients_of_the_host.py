"""A grid that the host divides out is one unknown to the prover: a counterexample has the number that the host computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError, Counterexample
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

KERNEL = """import tilec
from tilec import Dim, In, InOut, bid, grid, i32, minimum, requires, store

class N(Dim):
    "elements"

class M(Dim):
    "elements of the result"

@tilec.kernel
def k(x: In[i32, N], out: InOut[i32, M], n: i32):
    requires(1 <= n, n <= 64, N % n == 0)
    grid(N // n)
    {body}
"""
STRIDED = "requires(M == N)\n    for i in range(bid(0), N, N // n):\n        store(out, i, 1)"
SHOWN = "one element from each block"
WRITES = {SHOWN: "store(out, minimum(bid(0), M - 1), 1)", "all elements once": STRIDED}


@pytest.mark.parametrize("name", WRITES)
def test_no_block_outside_of_the_grid_is_shown(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(KERNEL.format(body=WRITES[name]))
    function = load_kernel(path, {}, root=tmp_path)
    with pytest.raises(CompileError) as refused:
        prove(function)
    shown = [one.counterexample for one in refused.value.diagnostics if one.counterexample is not None]
    assert (shown or name != SHOWN) and all(max(block[0] for block in one.blocks) < _blocks(one) for one in shown), shown
    assert not examine_function(function, launches=8).wrong_examples


def _blocks(one: Counterexample) -> int:
    return one.dims["N"] // one.dims["n"]
