"""Loops of two products, the second of which reads a value computed from the first, and products computed per thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.ops import Cast, Mma
from tilec.ir.ops.staging_ops import GroupProduct, PackPairs, ScratchStore
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.pipelining import overlapped_products
from tilec.passes.schedule.pipelining.back_to_back import BackToBack
from tilec.passes.schedule.pipelining.staging import Candidate, stage_by
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.families import WGMMA
from tilec.target.schedule import NOT_AHEAD, Overrides, Pipeline, Schedule, block_roles
from tilec.target.targets import SM_90A

HEAD = """import tilec
from tilec import In, Out, astype, bf16, f32, grid, load, mma, store, zeros

@tilec.kernel
"""
CHAIN = """def chained(q: In[bf16, 64, 64], k: In[bf16, 256, 64], v: In[bf16, {shape}], out: Out[f32, 64, 128]):
    grid(1)
    query, acc = load(q, (0, 0), shape=(64, 64)), zeros((64, 128), f32)
    for j in range(4):
        s = mma(query, load(k, (j, 0), shape=(64, 64)).T, zeros((64, 64), f32))
        acc = mma(astype(s * 2.0, bf16), {right}, {total})
    store(out, (0, 0), acc)
"""
AS_USED = {"shape": "256, 128", "right": "load(v, (j, 0), shape=(64, 128))"}
TRANSPOSED = {"shape": "128, 256", "right": "load(v, (0, j), shape=(128, 64)).T"}

Written = Callable[..., Function]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A kernel in which the second product adds to its sum over the iterations, or to another tile `total`."""

    def load_chain(right: dict[str, str], total: str = "acc") -> Function:
        path = tmp_path / "chained.py"
        path.write_text(HEAD + CHAIN.format(**right, total=total))
        return load_kernel(path, {}, root=tmp_path)

    return load_chain


def pair_of(function: Function, consumers: int = 1) -> BackToBack | None:
    """The loop's back-to-back products as the staging pass finds them."""
    schedule = Schedule(block_roles(WGMMA, consumers), ())
    found: list[BackToBack | None] = []

    def decide(candidate: Candidate) -> Pipeline:
        chain = candidate.chain(WGMMA)
        found.append(chain if isinstance(chain, BackToBack) else None)
        return NOT_AHEAD

    canonicalize(function)
    function.num_warps = schedule.tile_warps
    stage_by(function, decide, schedule)
    (pair,) = found
    return pair


BY_TMA = Overrides(copy="tma", consumers=1)


def test_the_second_right_operand_is_mn_major_in_memory(written: Written) -> None:
    """The first product is by the transpose of a matrix in memory, the second by the matrix itself. By its transpose, both are
    fused products, which wait in each iteration."""
    assert pair_of(written(AS_USED)) is not None
    assert pair_of(written(TRANSPOSED)) is None
    for text in (AS_USED, TRANSPOSED):
        (loop,) = choose(written(text), SM_90A, BY_TMA).pipelines
        assert loop.mma == WGMMA.name


def test_an_iteration_is_its_second_product_and_the_operations_before_and_after_the_accumulator(written: Written) -> None:
    """With a sum that the loop scales first, as attention does, and with one that it only adds to."""
    for total in ("acc * 0.5", "acc"):
        pair = pair_of(written(AS_USED, total))
        assert pair is not None
        independent, dependent = pair.split()
        second, body = pair.second.mma, pair.loop.regions[0].ops[:-1]
        assert sorted(map(body.index, [*independent, second, *dependent])) == list(range(len(body)))
        assert second not in independent and second not in dependent
        assert pair.first.mma in independent and dependent


def test_products_whose_sum_restarts_in_each_iteration_are_not_back_to_back(written: Written) -> None:
    """Overlapping them would leave the product of the iteration before without a reader. Each iteration computes both."""
    function = written(AS_USED, "zeros((64, 128), f32)")
    assert pair_of(function) is None
    prepared = prepare(written(AS_USED, "zeros((64, 128), f32)"), SM_90A, BY_TMA)
    assert sum(isinstance(op, GroupProduct) for op in prepared.body.walk()) == 2


@pytest.mark.parametrize("total", ["acc", "acc * 0.5"])
def test_warpgroups_compute_each_back_to_back_product_once(written: Written, total: str) -> None:
    prepared = prepare(written(AS_USED, total), SM_90A, BY_TMA)
    assert not any(isinstance(op, Mma) for op in prepared.body.walk())
    products = [op for op in prepared.body.walk() if isinstance(op, GroupProduct)]
    assert len(products) == 4  # the loop's two; the first iteration's first, and the last one's second


def test_the_left_operand_is_packed_from_the_floats_that_its_cast_rounds(written: Written) -> None:
    """Packing rounds as the cast does, so neither the cast nor one back to f32 is left."""
    prepared = prepare(written(AS_USED), SM_90A, BY_TMA)
    packed = [op.operands[0].owner for op in prepared.body.walk() if isinstance(op, PackPairs)]
    assert packed and not any(isinstance(owner, Cast) for owner in packed)
    assert not any(isinstance(op, Cast) and op.result.tile.rank for op in prepared.body.walk())


def test_back_to_back_products_need_registers_for_both_sums_and_the_packed_operand(written: Written) -> None:
    """64 x 64 and 64 x 128 sums take 32 and 64 registers of each of 128 threads, 64 x 64 elements in pairs 16."""
    pair = pair_of(written(AS_USED))
    assert pair is not None
    needed = 32 + 64 + 16 + overlapped_products.OTHER_REGISTERS
    assert [overlapped_products.fits(pair, 4, needed + more) for more in (-1, 0, 1)] == [False, True, True]


DIRECT = """def side_by_side(a: In[bf16, 3, 16, 32], b: In[bf16, {shape}], out: Out[f32, 3, 16, 8]):
    grid(1)
    left, right = load(a, (0, 0, 0), shape=(3, 16, 32)), load(b, (0, 0, 0), shape=({shape})){moved}
    store(out, (0, 0, 0), mma(left, right, zeros((3, 16, 8), f32)))
"""


@pytest.mark.parametrize(
    ("shape", "moved", "as_multiplied"),
    [("3, 8, 32", ".permute((0, 2, 1))", True), ("2, 8, 48", ".permute((0, 2, 1)).reshape((3, 32, 8))", False)],
)
def test_an_operand_is_converted_if_a_reshape_splits_its_fragments(
    tmp_path: Path, shape: str, moved: str, as_multiplied: bool
) -> None:
    """Of three times 8 rows of 32, each warp loads its product's. Of twice 8 rows of 48, one product has a third of each."""
    path = tmp_path / "side_by_side.py"
    path.write_text(HEAD + DIRECT.format(shape=shape, moved=moved))
    prepared = prepare(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(warps=3))
    exchanged = [op for op in prepared.body.walk() if isinstance(op, ScratchStore) and op.operands[1].tile.dtype.bits == 16]
    assert bool(exchanged) != as_multiplied
