"""Choices that the schedule must make. Another choice would still be correct, but cost work, barriers or bytes that are not
needed.

Each choice is compared with its defining rule by trying all alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import shipped
from tests.passes.builder import Access, Kernel, as_expr, const
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir import ops
from tilec.ir.core import Block, Effect, Function, Parameter, Value
from tilec.ir.facts.touches import Touch
from tilec.ir.layouts.blocked_layouts import BANKS_BYTES, ROW_PADDING_BYTES, natural, row_padding, with_axes
from tilec.ir.layouts.conversion_scratch import conversion_steps
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.layouts.operand_layouts import carried
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops.sync_ops import Barrier, Ring
from tilec.ir.types import DType, TensorType, TileType, bf16, f16, f32, i8, i64
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.schedule import prepare
from tilec.passes.schedule.launch_overlap.dependency_wait import launch_values
from tilec.passes.schedule.layouts import propagation
from tilec.passes.schedule.pipelining import staged_loads
from tilec.passes.schedule.simplify import versioning
from tilec.passes.schedule.simplify.folding import same_as
from tilec.passes.schedule.sync import barrier_insertion
from tilec.passes.schedule.tile_warps import _warps_to_load  # pyright: ignore[reportPrivateUsage]
from tilec.target.targets import SM_90A

# Warps and padding


@pytest.mark.parametrize("units", range(1, 80))
def test_warps_divide_the_tile_or_the_fewest_are_idle(units: int) -> None:
    """`units` is the tile's number of 16-byte vectors in warps; each warp gets at least two of them."""
    warps = _warps_to_load(units * 256)
    target = max(1, min(16, units // 2))
    dividing = max(count for count in range(1, target + 1) if units % count == 0)
    if 2 * dividing > target:
        assert warps == dividing
        return
    idle = {count: (-units) % count for count in range(target // 2 + 1, target + 1)}
    assert warps in idle and idle[warps] == min(idle.values())
    assert warps == max(count for count in idle if idle[count] == idle[warps])


@pytest.mark.parametrize(("size", "warps"), [(1, 1), (32, 1), (33, 4), (255, 4), (256, 1), (1024, 2), (4096, 8), (23 * 256, 8)])
def test_small_tiles_need_few_warps(size: int, warps: int) -> None:
    assert _warps_to_load(size) == warps


@pytest.mark.parametrize("dtype", [i8, f32, i64])
@pytest.mark.parametrize("columns", [8, 16, 32, 48, 64, 96, 128, 256])
def test_rows_that_begin_in_one_bank_are_padded(columns: int, dtype) -> None:
    pitch = columns * dtype.bytes
    for rows in (1, 16, 64):
        tile = TileType(dtype, (rows, columns))
        padded = pitch % BANKS_BYTES == 0 and rows * pitch <= 64 << 10
        assert row_padding(tile) == (ROW_PADDING_BYTES if padded else 0)
    assert row_padding(TileType(dtype, (columns * 1024,))) == 0


@pytest.mark.parametrize("shape", [(64, 64), (128, 64), (64, 128)])
@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_a_transposed_tile_accesses_no_bank_more_than_four_times(dtype: DType, shape: tuple[int, int]) -> None:
    """Counts how many of the 32 words that a warp accesses at once lie in one bank."""
    tile, warps = TileType(dtype, shape), 8
    down, along = with_axes(natural(shape[::-1], warps), {0: 1, 1: 0}, 2), natural(shape, warps)
    steps = conversion_steps(tile, down, along)
    for layout in (down, along):
        for register in range(layout.num_registers):
            coordinates = (layout.coordinates(register, lane, 3) for lane in range(32))
            words = {(row * steps[0] + column * steps[1]) * dtype.bytes // 4 for row, column in coordinates}
            banks = Counter(word % 32 for word in words)
            assert max(banks.values()) <= 4, (layout, banks)  # 8 and 16 if rows are padded to whole vectors


# Versions without masks


def test_a_box_that_is_inside_needs_no_test_and_one_that_may_not_be_needs_one() -> None:
    k = Kernel("N")
    inside, across = k.tensor("a", Access.IN, 64), k.tensor("b", Access.IN, "N")
    loads = [k.load(inside, at, shape=(extent,), pad=0.0) for at, extent in ((0, 64), (1, 63), (0, 65), (1, 64))]
    loads.append(k.load(across, 0, shape=(64,), pad=0.0))
    launch_scalars, facts = launch_values(k.function), aligned_ranges(k.function)

    def edges(value: Value):
        assert isinstance(value.owner, ops.Load)
        found = versioning._edges(k.function, value.owner, launch_scalars, facts)  # pyright: ignore[reportPrivateUsage]
        return None if found is None else [(extent, dim) for _, extent, dim in found]

    assert [edges(value) for value in loads] == [[], [], [(65, 64)], [(64, 64)], [(64, "N")]]


# Barriers


LANES = Layout(1, (), (Digit(32, 0, 1),), ())
COPIES = Layout(1, (), (Digit(16, 0, 1), Digit(2, None, 0)), ())


def touch(kind: Effect, layout: Layout | None) -> Touch:
    k = Kernel("N")
    tensor = k.tensor("out", Access.INOUT, "N")
    store = k.store(tensor, 0, shape=(32,))
    return Touch(store, kind, tensor, offsets=(store.operands[2],), layout=layout, shape=(32,))


def test_accesses_by_the_same_thread_need_no_barrier() -> None:
    read, write = Effect.READ, Effect.WRITE
    alike = [
        (write, LANES, write, LANES, True),
        (write, LANES, read, LANES, True),
        (write, COPIES, write, COPIES, True),
        (write, COPIES, read, COPIES, False),  # read by threads that did not write it
        (write, LANES, write, COPIES, False),
        (write, None, write, None, True),  # by the first thread both times
        (write, None, read, None, False),
        (write, None, write, LANES, False),
        (write, LANES, write, None, False),
    ]
    for first, by, second, by_then, same in alike:
        found = barrier_insertion.same_threads(touch(first, by), touch(second, by_then))
        assert found == same, (first, by, second, by_then)


def blocks(function: Function) -> Iterator[Block]:
    yield function.body
    for op in function.body.walk():
        yield from op.regions


@pytest.mark.parametrize("kernel", ["flash_attention", "decode_attention"])
def test_a_loop_whose_iterations_begin_with_copies_has_barriers_only_inside_of_them(kernel: str) -> None:
    """The first copies of a pipeline are in one branch each, and one barrier before all of them is enough; a loop is no such
    branch."""
    for block in blocks(shipped.prepared(kernel, SM_90A)):
        for before, op in zip(block.ops, block.ops[1:], strict=False):
            met = isinstance(op, ops.For) and isinstance(before, Barrier)
            assert not met


@pytest.mark.parametrize(("step", "met"), [(0, False), (512, True)])
def test_iterations_synchronize_if_the_next_accesses_what_other_threads_have_written(step: int, met: bool) -> None:
    """If the box is the same in each iteration, each thread touches only its own elements. If it moves by less than its length,
    it reaches elements of other threads."""
    k = Kernel(1)
    x = k.tensor("x", Access.INOUT, 8192)
    with k.loop(0, 8) as iteration:
        offset = k.mul(iteration, step) if step else k.c(64)
        tile = k.load(x, offset, shape=(1024,))
        k.emit(ops.Store(operands=[x, k.op("add", tile, tile), offset]))
    function = prepare(k.function, SM_90A)
    assert any(isinstance(op, Barrier) for op in function.body.walk()) == met


# Folding


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "floordiv", "or", "xor", "shl", "shr"])
def test_a_neutral_operand_is_removed_only_on_its_neutral_side(kind: str) -> None:
    k = Kernel("N")
    n, neutral = k.dim("N"), k.c(1 if kind in ("mul", "floordiv") else 0)
    right, left = k.op(kind, n, neutral).owner, k.op(kind, neutral, n).owner
    assert isinstance(right, ops.Binary) and isinstance(left, ops.Binary)
    kept = [same_as(right) is n, same_as(left) is n, same_as(left) is None]  # the text of a single operation may be very long
    assert kept == ([True, True, False] if kind in ("add", "mul", "or", "xor") else [True, False, True])


# Pipelines


def stages(function: Function) -> int:
    return max((op.result.ring.stages for op in function.body.walk() if isinstance(op, Ring)), default=0)


def test_a_pipeline_has_as_many_stages_as_fit() -> None:
    longest = shipped.as_chosen("matmul", SM_90A)
    assert stages(longest) > 2
    small = replace(SM_90A, max_shared_bytes=shared_bytes(longest) - 1)
    shorter = shipped.as_chosen("matmul", small)
    assert 2 <= stages(shorter) < stages(longest) and shared_bytes(shorter) <= small.max_shared_bytes


def test_a_kernel_without_a_pipeline_has_no_stages_to_remove() -> None:
    function = shipped.prepared("rms_norm", SM_90A)
    assert shared_bytes(function) > 0 and not stages(function)
    with pytest.raises(CompileError) as caught:
        shipped.prepare_as("rms_norm", shipped.load("rms_norm"), replace(SM_90A, max_shared_bytes=0))
    assert [item.code for item in caught.value.diagnostics] == ["E0507"]


@pytest.mark.parametrize(("inner", "vector"), [(1, 16), (2, 0), ("S", 0)])
def test_only_rows_without_gaps_are_copied(inner: int | str, vector: int) -> None:
    """A tensor with a row stride of its own is staged if the elements of a row are contiguous."""
    k = Kernel("S")
    strides = (const(64), as_expr(inner))
    tensor = k.body.add_argument(TensorType(f32, (const(32), const(32)), align=16, strides=strides), "x")
    k.function.parameters.append(Parameter("x", tensor, Access.IN))
    load = k.load(tensor, 0, 0, shape=(16, 16)).owner
    assert isinstance(load, ops.Load)
    assert staged_loads._copy_vector(k.function, load, aligned_ranges(k.function)) == vector  # pyright: ignore[reportPrivateUsage]


def test_values_that_regions_yield_are_the_results_of_their_operation() -> None:
    k = Kernel("N")
    with k.when(k.op("lt", k.dim("N"), 8)):
        k.c(1)
    with k.loop(0, 8):
        k.c(1)
    branch, loop = (op for op in k.body.ops if op.regions)
    branch.define(TileType(f32, (64,)))
    loop.regions[0].add_argument(TileType(f32, (64,)), "carried")
    assert len(carried(branch)) == 1
    assert carried(loop) == loop.regions[0].arguments[1:]


# Layouts


def test_a_value_is_computed_once_in_each_layout() -> None:
    k = Kernel("N")
    value = k.iota(64)
    state = propagation._State(k.function)  # pyright: ignore[reportPrivateUsage]
    by_lane, by_register = (Layout(1, (Digit(2, 0, step),), (Digit(32, 0, 33 - step),), ()) for step in (32, 1))
    state.set(value, by_lane)
    assert state.in_layout(value, by_lane) is value
    rematerialized = state.in_layout(value, by_register)
    repeated = state.in_layout(value, by_register)
    assert rematerialized is not value and rematerialized is repeated and len(k.body.ops) == 2
