"""In an `unsafe` block nothing counts as proven: an index there may wrap, and its mask stays wherever it may matter."""

from __future__ import annotations

from pathlib import Path

from tests.passes.builder import Access, Kernel
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Function
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.prover import prove
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.schedule import prepare
from tilec.target.targets import TARGETS

KERNEL = Path(__file__).resolve().parents[1] / "ui" / "bounds" / "unsafe_wrap_ok.py"


def stores(function: Function) -> list[ops.Store]:
    return [op for op in function.body.walk() if isinstance(op, ops.Store)]


def test_the_mask_of_an_offset_that_wraps_is_dropped_only_after_a_test_of_it() -> None:
    function = load_kernel(KERNEL, {})
    prove(function)
    prepared = prepare(function, TARGETS[0])
    assert any(store.mask for store in stores(prepared))
    free = [store for store in stores(prepared) if not store.mask]
    branches = [op for op in prepared.body.ops if isinstance(op, ops.If)]
    assert all(any(store in set(branch.regions[0].walk()) for branch in branches) for store in free)


def test_ranges_of_an_unsafe_index_hold_when_it_wraps() -> None:
    function = load_kernel(KERNEL, {})
    (store,) = stores(function)
    fact = aligned_ranges(note_proofs(function))[store.offsets[0]]
    wrapped = (((65535 * 65536 * 2) + 2**31) % 2**32 - 2**31) // 1048576  # n = -1
    assert wrapped < 0 and fact.low <= wrapped <= fact.high


def test_the_sum_of_a_tile_and_a_shift_by_data_wrap_even_if_they_decide_addresses() -> None:
    k = Kernel(1)
    out = k.tensor("out", Access.INOUT, 4096)
    amounts = k.tensor("n", Access.IN, 4, dtype=k.c(0).tile.dtype)
    one = k.spread(k.c(1), (4,))
    by = k.op("and", k.load(amounts, 0, shape=(4,)), k.spread(k.c(31), (4,)))
    shifted = k.op("shl", one, by)
    summed = k.emit(ops.Reduce(kind="sum", axis=0, operands=[shifted]), k.c(0).tile).result
    k.store(out, summed, shape=(1,), mask=True)
    facts = aligned_ranges(note_proofs(k.function))
    assert facts[shifted].low <= -(2**31) and facts[summed].low < 0
    assert IndexTerms(k.function).ranges[summed].low < 0


UNSAFE = '''
import tilec
from tilec import Dim, InOut, bid, f32, full, grid, i32, store, unsafe

class N(Dim):
    """length"""

@tilec.kernel
def trusted(out: InOut[f32, N], n: i32):
    grid(1)
    with unsafe("the caller keeps n inside"):
        store(out, n, 1.0)
'''


def test_an_unsafe_access_is_trusted_and_recorded_as_unsafe(tmp_path: Path) -> None:
    path = tmp_path / "trusted.py"
    path.write_text(UNSAFE, encoding="utf-8")
    bounds = [one for one in prove(load_kernel(path, {})).obligations if one.property == "bounds"]
    assert [one.rung for one in bounds] == ["unsafe"]
