"""Rules of the passes that pipeline loops: which loads are copied, how warps share a product, how many stages there are, and
what a note says of a loop that is not pipelined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.passes.builder import Access, Kernel
from tests.tensor_products import source
from tilec.atoms.mma_sync import WarpGrid, choose_warps
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Block, Function, Resident, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import AsyncCopy, GroupProduct, WaitMma
from tilec.ir.types import DType, TileType, bf16, f8e4m3, f16, f32, i32
from tilec.passes.schedule import prepare
from tilec.passes.schedule.choose import _stages  # pyright: ignore[reportPrivateUsage]
from tilec.passes.schedule.launch_overlap import dependency_wait
from tilec.passes.schedule.notes import notes
from tilec.passes.schedule.pipelining import direct_products
from tilec.passes.schedule.pipelining.overlapped_products import _last_f32_tile  # pyright: ignore[reportPrivateUsage]
from tilec.passes.schedule.pipelining.staged_loads import is_written_before
from tilec.passes.schedule.pipelining.staging import Candidate, stage, stage_by
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.families import WGMMA
from tilec.target.schedule import NOT_AHEAD, Overrides, Pipeline, Role, Schedule, block_roles
from tilec.target.targets import SM_90A

HEAD = """import tilec
from tilec import In, Out, astype, bf16, f32, grid, load, mma, reshape, store, zeros

@tilec.kernel
"""
Written = Callable[[str], Function]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The kernel that a text defines."""

    def load_text(text: str) -> Function:
        path = tmp_path / "kernel.py"
        path.write_text(HEAD + text)
        return load_kernel(path, {}, root=tmp_path)

    return load_text


def candidates(function: Function, schedule: Schedule) -> list[Candidate]:
    """The loops that the staging pass may pipeline."""
    found: list[Candidate] = []

    def decide(candidate: Candidate) -> Pipeline:
        found.append(candidate)
        return NOT_AHEAD

    canonicalize(function)
    function.num_warps = schedule.tile_warps
    stage_by(function, decide, schedule)
    return found


FOUR_WARPS = Schedule((Role("all", 4),))

# Loads

ROWS = """def joined(a: In[bf16, {shape}], b: In[bf16, 64, 256], out: Out[f32, 128, 64]):
    grid(1)
    acc = zeros((128, 64), f32)
    for j in range(4):
        left = reshape(load(a, ({offsets}, j), shape=({box})), (128, 64))
        acc = mma(left, load(b, (0, j), shape=(64, 64)).T, acc)
    store(out, (0, 0), acc)
"""


@pytest.mark.parametrize(
    ("shape", "box", "gap"),
    [
        ("2, 64, 256", "2, 64, 64", 1),
        ("1, 2, 64, 256", "1, 2, 64, 64", 1),  # the rows lie on axes 1 and 2
        ("1, 1, 2, 64, 256", "1, 1, 2, 64, 64", 1),
        ("2, 1, 64, 256", "2, 1, 64, 64", 2),
        ("2, 1, 1, 64, 256", "2, 1, 1, 64, 64", 3),
    ],
)
def test_rows_on_two_axes_are_copied_wherever_these_axes_are(written: Written, shape: str, box: str, gap: int) -> None:
    offsets = ", ".join("0" for _ in shape.split(", ")[1:])
    prepared = prepare(written(ROWS.format(shape=shape, box=box, offsets=offsets)), SM_90A, Overrides(copy="cp_async"))
    copied = {(op.row_axis, op.sub_tiles, op.gap) for op in prepared.body.walk() if isinstance(op, AsyncCopy)}
    assert copied == {(-2, 1, 1), (-2, 2, gap)}


def test_rows_on_three_axes_are_not_joined(written: Written) -> None:
    text = ROWS.format(shape="2, 2, 32, 256", box="2, 2, 32, 64", offsets="0, 0, 0")
    (candidate,) = candidates(written(text), FOUR_WARPS)
    assert [(product.left, product.right is not None) for product in candidate.products] == [(None, True)]


def test_a_load_counts_as_written_before_unless_the_kernel_is_seen_to_reach_it_first() -> None:
    k = Kernel(1)
    x = k.tensor("x", Access.INOUT, 8)
    zero = k.c(0)
    load = k.load(x, zero, shape=(8,)).owner
    assert isinstance(load, ops.Load)
    assert not is_written_before(k.function, load)
    k.function.body.ops.remove(load)  # as the pass removes the loads that copies replace
    assert is_written_before(k.function, load)
    k.store(x, zero, shape=(8,))
    k.function.body.ops.append(load)
    assert is_written_before(k.function, load)


# Warps of a product

STORED = """def stored(a: In[bf16, 64, 256], b: In[bf16, 64, 256], out: Out[f32, {shape}]):
    grid(1)
    acc = zeros((64, 64), f32)
    for j in range(4):
        acc = mma(load(a, (0, j), shape=(64, 64)), load(b, (0, j), shape=(64, 64)).T, acc)
    store(out, ({offsets}), reshape(acc, ({shape})))
"""


@pytest.mark.parametrize(
    ("shape", "splits"), [("64, 2, 32", True), ("64, 1, 64", False), ("1, 64, 64", False), ("64, 64, 1", False)]
)
def test_warps_divide_only_the_rows_if_a_reshape_splits_the_columns(written: Written, shape: str, splits: bool) -> None:
    """A reshape that only adds axes of one element splits none."""
    (candidate,) = candidates(written(STORED.format(shape=shape, offsets="0, 0, 0")), FOUR_WARPS)
    (product,) = candidate.products
    assert choose_warps(64, 64, 4) != WarpGrid(4, 1)
    assert product.grid == (WarpGrid(4, 1) if splits else choose_warps(64, 64, 4))


def test_more_accumulators_fit_only_if_the_producer_gives_up_registers() -> None:
    """128 x 192 sums are 192 for each of 128 threads."""
    reallocated = Schedule((Role("consumer", 4, 240), Role("producer", 4, 24)))
    for schedule, fits in [(reallocated, True), (Schedule(block_roles(WGMMA, 1)), False), (FOUR_WARPS, False)]:
        (candidate,) = candidates(source("bf16", 128, 192), schedule)
        assert (WGMMA in candidate.families) == fits


@pytest.mark.parametrize(
    ("dtype", "depth", "hint"),
    [
        (bf16, 8, "a multiple of 16"),
        (f16, 24, "a multiple of 16"),
        (f32, 12, "a multiple of 8"),
        (f8e4m3, 48, "a multiple of 32"),
    ],
    ids=str,
)
def test_a_product_that_no_instruction_makes_is_refused_with_the_change_that_helps(dtype: DType, depth: int, hint: str) -> None:
    k = Kernel(1)
    left, right = k.zeros((16, depth), dtype), k.zeros((depth, 8), dtype)
    k.emit(ops.Mma(operands=[left, right, k.zeros((16, 8))]), TileType(f32, (16, 8)))
    k.function.num_warps = 1
    with pytest.raises(CompileError) as refused:
        stage(k.function, Schedule((Role("all", 1),)))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E0506" and hint in (diagnostic.hint or "")


# Stages


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_the_stages_of_all_blocks_fit_with_what_each_block_uses_besides(blocks: int) -> None:
    """Of each block 1 KB is the system's. One more stage would not fit."""
    k = Kernel(1)
    with k.loop(0, 4):
        pass
    (loop,) = (op for op in k.function.body.ops if isinstance(op, ops.For))
    stage_bytes = 8192
    for inside, unstaged in [(0, 0), (8192, 0), (0, 8192), (16384, 8192)]:
        candidate = Candidate(loop, [], [], inside, unstaged, stage_bytes, ())
        stages = _stages(candidate, blocks, SM_90A, 1000)
        for count, fits in [(stages, True), (stages + 1, False)]:
            bytes_of_block = inside + unstaged + count * stage_bytes + 1024
            assert (blocks * bytes_of_block <= SM_90A.max_shared_bytes + 1024) == fits


# Products one after the other

CHAIN = """def chained(q: In[bf16, 64, 64], k: In[bf16, 256, 64], v: In[bf16, 256, 128], out: Out[f32, 64, 128]):
    grid(1)
    query, acc = load(q, (0, 0), shape=(64, 64)), zeros((64, 128), f32)
    for j in range(4):
        s = mma(query, load(k, (j, 0), shape=(64, 64)).T, zeros((64, 64), f32))
        acc = mma(astype(s * 2.0, bf16), load(v, (j, 0), shape=(64, 128)), acc)
    store(out, (0, 0), acc)
"""


def test_each_product_is_finished_in_its_iteration_unless_registers_allow_overlap(written: Written) -> None:
    """With one block per multiprocessor the loop's first product leaves one pending; half the registers are too few for it."""
    for blocks, pending in [(1, {0, 1}), (2, {0})]:
        schedule = Schedule(block_roles(WGMMA, 1), (Pipeline(2, "tma", "wgmma"),), blocks=blocks)
        function = written(CHAIN)
        canonicalize(function)
        function.num_warps = schedule.tile_warps
        stage(function, schedule)
        products = [op for op in function.body.walk() if isinstance(op, GroupProduct)]
        waits = [op for op in function.body.walk() if isinstance(op, WaitMma)]
        assert len(products) == len(waits) == (2 if blocks == 2 else 4)
        assert {op.pending for op in waits} == pending


def test_what_overlaps_a_product_is_the_last_f32_tile_of_the_iteration() -> None:
    """Not a tile of another dtype, a scalar, or a tile that no iteration hands on."""
    k = Kernel(1)
    first, last = k.zeros((64, 64)), k.zeros((64,))
    dropped, halves, integers = k.zeros((64,)), k.zeros((64,), f16), k.zeros((64,), i32)
    scalar = k.emit(ops.Constant(value=0.5), TileType(f32)).result
    body = list(k.function.body.ops)
    assert _last_f32_tile(body, ops.Yield(operands=[scalar, integers, last, first, halves])) is last
    assert _last_f32_tile(body, ops.Yield(operands=[scalar, halves, integers])) is None
    assert dropped.owner in body


# Products per thread


def test_a_load_keeps_the_layout_of_the_first_product_that_reads_it() -> None:
    """The second product, here on more warps and so of other fragments, has it converted."""
    k = Kernel(1)
    a = k.tensor("a", Access.IN, 4, 32, 32, dtype=bf16)
    shared = k.load(a, 0, 0, 0, shape=(4, 32, 32))
    made: list[Layout | None] = []
    for warps in (4, 8):
        right = k.zeros((4, 32, 16), bf16)
        op = k.emit(ops.Mma(operands=[shared, right, k.zeros((4, 32, 16))]), TileType(f32, (4, 32, 16)))
        assert isinstance(op, ops.Mma)
        direct_products.assign_layouts(op, warps, {})
        made.append(shared.layout)
    assert made[0] is not None and made[0] is made[1]


# The wait for preceding kernels


def test_offsets_of_iterations_before_the_wait_are_constants() -> None:
    """Iterations that are peeled have known numbers, and what is computed from them is folded."""
    k = Kernel(1)
    w, out = k.tensor("w", Access.IN, 64), k.tensor("out", Access.OUT, 64)
    k.function.residents = (Resident("w"),)
    with k.loop(0, 3) as number:
        offset: Value = k.mul(number, 16)
        tile = k.load(w, offset, shape=(16,))
        k.emit(ops.Store(operands=[out, tile, offset]))
    dependency_wait.insert(k.function, Schedule((Role("all", 1),), early=2))
    body: Block = k.function.body
    wait = next(index for index, op in enumerate(body.ops) if isinstance(op, DependencyWait))
    loads = [op for op in body.ops[:wait] if isinstance(op, ops.Load)]
    owners = [load.offsets[0].owner for load in loads]
    assert [owner.value for owner in owners if isinstance(owner, ops.Constant)] == [0, 16]
    assert len(loads) == 2 and not any(isinstance(op, ops.Binary) for op in body.ops)


# Notes

FEW = """def few(a: In[bf16, {rows}, 128], b: In[bf16, 128, 64], out: Out[f32, {rows}, 64]):
    grid(1)
    acc = zeros(({rows}, 64), f32)
    for k in range(2):
        acc = mma(load(a, (0, k), shape=({rows}, 64)), load(b, (k, 0), shape=(64, 64)), acc)
    store(out, (0, 0), acc)
"""


@pytest.mark.parametrize(("rows", "noted"), [(32, False), (48, False), (64, True), (128, True)])
def test_a_product_of_at_least_the_rows_of_an_instruction_is_noted(written: Written, rows: int, noted: bool) -> None:
    """`wgmma` has 64 rows, and needs groups of four warps."""
    prepared = prepare(written(FEW.format(rows=rows)), SM_90A, Overrides(warps=1 if rows == 48 else 2))
    found = [note.text for note in notes(prepared, SM_90A) if note.kind == "tensor_core"]
    assert bool(found) == noted
    assert all(text.startswith(f"a product of {rows} x 64 does without `wgmma`") for text in found)
