"""Correct kernels that each need one rule of the prover: without its rule, the prover refuses the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes.prover import prove
from tilec.passes.prover.prove import Proofs

HEAD = '''
import tilec
from tilec import Const, Dim, In, InOut, Out, Scratch, arange, bid, f32, full, grid, i32, load, requires, scatter, store
from tilec import unsafe, values, where, zeros

class N(Dim):
    """length"""

class M(Dim):
    """width"""

@tilec.kernel
'''

ACCEPTED = {
    # An index in an `unsafe` block is exact if intervals show that it cannot wrap; the coverage proof of `out` needs this.
    "unsafe_index": """
def k(out: Out[f32, 128]):
    grid(16)
    with unsafe("sixteen blocks of eight"):
        store(out, bid(0) * 8, full((8,), 1.0, f32))
""",
    # No race is checked between two accesses of which one is in an `unsafe` block.
    "unsafe_and_safe": """
def k(out: InOut[f32, N], n: i32):
    grid(N)
    with unsafe("n is N - 1 and block N - 1 alone writes it"):
        store(out, n, full((1,), 1.0, f32), mask=True)
    store(out, bid(0), full((1,), 2.0, f32))
""",
    # That a divisor before the store is positive says nothing about where it writes, and is a product of sizes.
    "divisor_of_sizes": """
def k(x: In[f32, N, M], cu: In[i32, "N + 1"], out: InOut[f32, M, N], most: i32):
    requires(1 <= most, most <= 16777216, M <= 268435456, N % M == 0)
    grid((most + 63) // 64, N, N)
    values(cu, 0, M + 1, sorted=True, ends=True)
    i, h, b = bid(0), bid(1), bid(2)
    v = load(x, (h // (N // M), 0), shape=(1, 1), pad=0)
    first, end = load(cu, b) + i * 64, load(cu, b + 1)
    at = where(first + arange(64) < end, first + arange(64), M)
    scatter(out, (at, h), full((64,), 1.0, f32), mask=True)
""",
    # `x & mask` lies between 0 and the mask if the mask may be 0.
    "mask_of_data": """
def k(ids: In[i32, N], table: In[f32, 8], out: Out[f32, N]):
    grid(N)
    row = bid(0)
    store(out, row, load(table, load(ids, row) & 7, shape=(1,)))
""",
    # An arithmetic right shift of data by all bits but the sign is 0 or -1.
    "sign_of_data": """
def k(ids: In[i32, N], table: In[f32, 2], out: Out[f32, N]):
    grid(N)
    row = bid(0)
    store(out, row, load(table, (load(ids, row) >> 31) + 1, shape=(1,)))
""",
    # After a division, its divisor is known to be positive.
    "divisor": """
def k(x: In[f32, M], out: Out[f32, N], n: i32):
    grid(N)
    requires(n >= 1)
    requires(n <= M)
    row = bid(0)
    store(out, row, load(x, row % n, shape=(1,)))
""",
    # A value computed from memory that changes is one unknown within one loop iteration.
    "written_and_read_in_one_turn": """
def k(part: Scratch[f32, N, 64], at: InOut[i32, N], out: Out[f32, N]):
    grid(N)
    row = bid(0)
    total = zeros((1,), f32)
    for turn in range(3):
        place = load(at, row) & 63
        store(part, (row, place), full((1, 1), 1.0, f32))
        total = total + load(part, (row, place), shape=(1, 1)).reshape((1,))
    store(out, row, total)
""",
}


def function(tmp_path: Path, text: str) -> Function:
    path = tmp_path / "k.py"
    path.write_text(HEAD + text.lstrip("\n"), encoding="utf-8")
    return load_kernel(path, {}, root=tmp_path)


def proofs(tmp_path: Path, text: str) -> Proofs:
    try:
        return prove(function(tmp_path, text))
    except CompileError as refused:
        pytest.fail("\n".join(f"{d.code}: {d.message}" for d in refused.diagnostics))


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_is_accepted(name: str, tmp_path: Path) -> None:
    assert proofs(tmp_path, ACCEPTED[name]).obligations


def test_a_proof_names_no_fact_that_a_preceding_division_implies(tmp_path: Path) -> None:
    found = [o for o in proofs(tmp_path, ACCEPTED["divisor"]).obligations if o.property == "bounds" and "x" in o.subject]
    assert [o.facts for o in found] == [("requires(n <= M)",)]
