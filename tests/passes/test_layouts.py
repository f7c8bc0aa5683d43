"""Layouts of shipped kernels cover every element, fragments are those of the PTX ISA, buffers have no bank conflicts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from math import prod

import pytest

from tests import campaign, shipped
from tilec.atoms import mma_sync
from tilec.atoms.mma_sync import WarpGrid
from tilec.ir.core import Function, Value
from tilec.ir.layouts.blocked_layouts import natural
from tilec.ir.layouts.layout import Digit, Layout, register_map
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.types import SharedType, TileType, bf16, f8e4m3, f32
from tilec.target.targets import Target


def tiles(function: Function) -> Iterator[Value]:
    """Every value of the kernel that is distributed over threads."""
    for op in function.body.walk():
        for value in (*op.results, *(argument for region in op.regions for argument in region.arguments)):
            if isinstance(value.type, TileType) and value.type.rank:
                yield value


def register_counts(layout: Layout, warps: int) -> Counter[tuple[int, ...]]:
    """How many registers hold each element of the tile, by brute force over registers, lanes and warps."""
    threads = itertools.product(range(layout.num_registers), range(32), range(warps))
    return Counter(layout.coordinates(register, lane, warp) for register, lane, warp in threads)


def replicas(layout: Layout) -> int:
    """The replication factor of each element that a layout reports."""
    digits = (*layout.registers, *layout.lanes, *layout.warps)
    return prod(digit.extent for digit in digits if digit.axis is None)


@pytest.mark.parametrize(("name", "target"), campaign.chosen(shipped.CASES, shipped.of_its_form), ids=shipped.IDS)
def test_each_element_is_in_as_many_registers_as_the_layout_says(name: str, target: Target) -> None:
    function = shipped.prepared(name, target)
    warps = next(
        (op.warps[0] for op in function.body.ops if isinstance(op, Roles)), function.num_warps
    )  # layouts of register tiles
    before_roles = {id(value) for op in function.body.ops for value in op.results}  # all warps have an index loaded there
    checked: set[tuple[Layout, tuple[int, ...]]] = set()
    for value in tiles(function):
        layout, shape = value.layout, value.tile.shape
        assert layout is not None, value.type
        if (layout, shape) in checked:
            continue
        checked.add((layout, shape))
        own_warps = function.num_warps if id(value) in before_roles else warps
        counts = register_counts(layout, own_warps)
        assert not layout.wraps(shape) or name in (
            "decode_merge",
            "decode_merge_kv",
            "decode_merge_kv_c8",
            "rope_merge_kv",
            "rope_merge_kv_c8",
            "scaled_matvec_silu_mul_rows_fp8",
        )  # 33 parts, 160 sums of squares: no powers of two
        assert counts.keys() == set(itertools.product(*map(range, layout.covered)))
        assert set(counts.values()) == {replicas(layout)}
        assert layout.problem(shape, own_warps) is None
    assert checked


WRONG = [
    Layout(1, (Digit(8, 0, 1),), (Digit(16, 0, 8), Digit(2)), ()),  # half of the tile
    Layout(1, (Digit(8, 0, 1),), (Digit(32, 0, 4),), (Digit(2, 0, 128),)),  # overlap
    Layout(1, (Digit(4, 0, 1),), (Digit(32, 0, 8),), ()),  # gaps
    Layout(1, (Digit(8, 0, 1),), (Digit(32, 0, 8),), (Digit(2, 0, 256),)),  # past the end
    Layout(1, (Digit(8, 0, 1), Digit(2, 0, 1)), (Digit(32, 0, 8),), ()),  # one element twice
]


@pytest.mark.parametrize("layout", WRONG, ids=str)
def test_a_layout_that_fails_brute_force_has_a_problem(layout: Layout) -> None:
    warps = prod(digit.extent for digit in layout.warps)
    counts = register_counts(layout, warps)
    assert counts.keys() != {(i,) for i in range(256)} or set(counts.values()) != {replicas(layout)}
    assert layout.problem((256,), warps) is not None


ODD = [(96,), (100,), (1000,), (1023,), (2880,), (17408,), (3, 1000), (16, 40), (100, 100), (7, 9, 20), (1, 2880), (125, 3)]
POWERS = [(8,), (64,), (1024,), (4, 64), (128, 128), (2, 1, 256), (16, 16, 16)]


@pytest.mark.parametrize(("shape", "warps"), campaign.in_turn(ODD + POWERS, [1, 2, 3, 4, 5, 8, 12, 16]), ids=str)
def test_each_element_has_one_owner_and_others_are_copies(shape: tuple[int, ...], warps: int) -> None:
    layout = natural(shape, warps)
    assert layout.problem(shape, warps) is None
    counts = register_counts(layout, warps)
    assert set(counts.values()) == {replicas(layout)}
    assert set(itertools.product(*map(range, shape))) <= counts.keys()
    past = [position for position in counts if any(c >= extent for c, extent in zip(position, shape, strict=True))]
    assert bool(past) == layout.wraps(shape)
    assert all(c < 2 * extent for position in past for c, extent in zip(position, shape, strict=True))


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("shape", POWERS, ids=str)
def test_powers_of_two_are_counted_exactly(shape: tuple[int, ...], warps: int) -> None:
    assert not natural(shape, warps).wraps(shape)


@pytest.mark.parametrize("warps", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("extent", [250, 360, 1000, 1023, 2880, 3000, 5120, 17408])
def test_no_thread_has_many_more_elements_than_its_share(extent: int, warps: int) -> None:
    """A thread holds at most one vector more than its share, or 1.5 times its share if the tile is about as large as the
    block."""
    share = extent / (32 * warps)
    assert natural((extent,), warps).num_registers <= max(8, share + 8, share * 1.5)


def test_a_layout_that_goes_twice_over_an_axis_has_a_problem() -> None:
    layout = Layout(1, (Digit(8, 0, 1),), (Digit(32, 0, 8),), ())
    assert layout.problem((128,), 1) is not None
    assert layout.problem((129,), 1) is None


# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" (.f16 and .bf16 operands, .f32 accumulators):
#   groupID = %laneid >> 2, threadID_in_group = %laneid % 4
#   a_i: row = groupID for i in 0, 1, 4, 5, else groupID + 8;  col = threadID_in_group * 2 + (i & 1), + 8 for i >= 4
#   b_i: row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2;  col = groupID
#   c_i: row = groupID for i < 2, else groupID + 8;  col = threadID_in_group * 2 + (i & 1)


def fragment_a(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i in (0, 1, 4, 5) else 8), (lane % 4) * 2 + (i & 1) + (8 if i >= 4 else 0)


def fragment_b(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4) * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def fragment_c(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i < 2 else 8), (lane % 4) * 2 + (i & 1)


GRIDS = [WarpGrid(1, 1), WarpGrid(2, 2), WarpGrid(1, 4), WarpGrid(4, 1), WarpGrid(2, 4)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_fragments_have_the_layout_of_the_instruction(grid: WarpGrid) -> None:
    rows, columns, depth = 64 * grid.rows, 32 * grid.columns, 48
    a = mma_sync.operand_a(rows, depth, grid)
    b = mma_sync.operand_b(depth, columns, grid)
    c = mma_sync.accumulator(rows, columns, grid)
    for warp, lane in itertools.product(range(grid.count), range(32)):
        warp_row, warp_column = warp % grid.rows * 64, warp // grid.rows * 32
        for m, k, i in itertools.product(range(4), range(3), range(8)):
            row, column = fragment_a(lane, i)
            register = (m * 3 + k) * 8 + i
            assert a.coordinates(register, lane, warp) == (warp_row + m * 16 + row, k * 16 + column)
        for n, k, i in itertools.product(range(4), range(3), range(4)):
            row, column = fragment_b(lane, i)
            register = (n * 3 + k) * 4 + i
            assert b.coordinates(register, lane, warp) == (k * 16 + row, warp_column + n * 8 + column)
        for m, n, i in itertools.product(range(4), range(4), range(4)):
            row, column = fragment_c(lane, i)
            register = (m * 4 + n) * 4 + i
            assert c.coordinates(register, lane, warp) == (warp_row + m * 16 + row, warp_column + n * 8 + column)


BUFFERS = [
    SharedType(dtype, (rows, columns), 2)
    for dtype in (bf16, f32, f8e4m3)
    for rows in (8, 24, 64)
    for columns in (8, 16, 24, 32, 48, 64, 72, 80, 96, 128, 256)
    if columns * dtype.bytes % 16 == 0
]


@pytest.mark.parametrize("type", BUFFERS, ids=str)
def test_offsets_are_bijective_and_eight_rows_touch_all_banks(type: SharedType) -> None:
    rows, columns = type.shape
    offsets = {type.offset(row, column) for row, column in itertools.product(range(rows), range(columns))}
    assert len(offsets) == rows * columns
    assert min(offsets) >= 0 and max(offsets) + type.dtype.bytes <= type.stage_bytes
    for row, chunk in itertools.product(range(0, rows, 8), range(type.chunks)):
        first = chunk * 16 // type.dtype.bytes
        starts = [type.offset(row + i, first) for i in range(8)]
        assert all(start % 16 == 0 for start in starts)
        # `ldmatrix` reads eight rows of 16 bytes at once; 128 bytes cover the 32 banks of four bytes once.
        assert {start % 128 // 16 for start in starts} == set(range(8))
        for start, i in itertools.product(starts, range(16 // type.dtype.bytes)):
            assert type.offset(row + starts.index(start), first + i) == start + i * type.dtype.bytes


def test_registers_are_only_renamed_if_the_same_thread_has_them() -> None:
    source = Layout(1, (Digit(8, 0, 1),), (Digit(32, 0, 8),), (Digit(2, 0, 256),))
    same = Layout(1, (Digit(2, 0, 4), Digit(4, 0, 1)), (Digit(32, 0, 8),), (Digit(2, 0, 256),))
    other = Layout(1, (Digit(4, 0, 1), Digit(2, 0, 128)), (Digit(32, 0, 4),), (Digit(2, 0, 256),))
    moved = register_map(source, same)
    assert moved is not None
    for register, lane, warp in itertools.product(range(8), range(32), range(2)):
        assert source.coordinates(moved[register], lane, warp) == same.coordinates(register, lane, warp)
    assert register_map(source, other) is None
