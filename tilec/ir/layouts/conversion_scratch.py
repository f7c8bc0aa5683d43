"""Which operations pass elements between threads through shared memory, and how many bytes of scratch each needs.

In: operations with layouts. Out: bytes of scratch, from types and layouts alone. Six operations may need some: `relayout`,
`reshape` and `permute` if a thread needs elements of another thread, `reduce` along an axis distributed over several warps,
`butterfly` with a bit that is one of the warp index, and every `take`. `tilec.passes.schedule.layouts.shared_conversions`
replaces them, so that lowering sees none of these.
"""

from __future__ import annotations

from functools import cache
from math import prod

from tilec.ir.core import Op, Value
from tilec.ir.layouts.blocked_layouts import ROW_PADDING_BYTES, reshaped, row_major, row_padding, with_axes
from tilec.ir.layouts.butterflies import WORD_BYTES, parts_of, words
from tilec.ir.layouts.layout import Layout, register_map
from tilec.ir.layouts.selections import selection
from tilec.ir.ops import AtomicScatter, Broadcast, Butterfly, Cast, Constant, Load, Permute, Reduce, Reshape, Take
from tilec.ir.ops.staging_ops import Relayout
from tilec.ir.types import TileType

Steps = tuple[int, ...]
BANK_BYTES = 4
FEW_LANES = 8
"""Lanes with adjacent rows up to which rows need no padding: the other lanes have other columns."""
REDUCED_BYTES = 8
"""Scratch for each value that a reduction passes between warps, wide enough for every dtype."""


@cache
def renamed(source: Layout, target: Layout) -> tuple[int, ...] | None:
    """`register_map` without a shift; None if elements must move between threads."""
    return register_map(source, target)


def moves_space(source: Layout, target: Layout) -> bool:
    """Whether a conversion keeps each thread's elements and moves them to another memory space, by instructions of a family."""
    return source.space is not target.space and source.in_space(target.space) == target


def is_uniform(value: Value) -> bool:
    """True for a constant and a broadcast scalar: every thread can produce any part of the tile by itself."""
    owner = value.owner
    return isinstance(owner, Constant) or (isinstance(owner, Broadcast) and owner.operands[0].tile.size == 1)


def is_shared(op: AtomicScatter) -> bool:
    """Whether threads need the old value of an atomic that another thread executes: they have the element too."""
    return any(value.layout is None or _is_copied(value.layout, value.tile.shape) for value in op.results)


def _is_copied(layout: Layout, shape: tuple[int, ...]) -> bool:
    return layout.is_replicated or layout.wraps(shape)


def is_free(value: Value, layout: Layout) -> bool:
    """Whether every thread already has the elements of `value` that `layout` assigns to it."""
    assert value.layout is not None, value.type
    return value.layout == layout or is_uniform(value) or renamed(value.layout, layout) is not None


def is_chosen(value: Value, layout: Layout) -> bool:
    """Whether every thread chooses its elements in `layout` from those that it has (`selection`). What is loaded passes through
    shared memory instead: threads wait for the load, and barriers add little to that."""
    source = value
    while isinstance(source.owner, Cast | Reshape):
        source = source.owner.operands[0]
    if isinstance(source.owner, Load) or value.layout is None:
        return False
    return selection(value.layout, layout, value.tile.shape) is not None


def conversion_steps(tile: TileType, *layouts: Layout) -> Steps:
    """Distance in elements between neighbors on each axis in scratch; rows are padded if lanes lie on several of them.

    Runs of several last axes that a thread has as a whole are padded too.
    If a thread has a whole vector of a column, the next thread begins several rows further: rows padded to whole vectors
    would then all begin in the same bank, so they are padded by one bank instead.
    """
    if tile.rank > 2 and tile.shape[:-2] == (1,) * (tile.rank - 2) and any(map(_has_lanes_down, layouts)):
        pitch = tile.shape[-1] + _bank_padding(tile)
        return (*[pitch * tile.shape[-2]] * (tile.rank - 2), pitch, 1)
    padding = row_padding(tile)
    if padding and any(digit.axis == 0 and digit.extent > 1 for layout in layouts for digit in layout.lanes):
        if any(_has_column_vectors(layout, tile.dtype.bytes) for layout in layouts):
            padding = max(BANK_BYTES, tile.dtype.bytes)
        return (tile.shape[-1] + padding // tile.dtype.bytes, 1)
    steps, run = row_major(tile.shape), max(_run(layout) for layout in layouts)
    if tile.rank > 2 and run * tile.dtype.bytes > ROW_PADDING_BYTES:
        return tuple(step + step // run * (ROW_PADDING_BYTES // tile.dtype.bytes) if step >= run else step for step in steps)
    return steps


def _run(layout: Layout) -> int:
    """How many neighbors a thread has of several last axes, which it has as a whole; 1 if it has at most one such axis. Threads
    that read a run each would all begin in the same banks."""
    run, axes = 1, 0
    spread = {digit.axis for digit in (*layout.lanes, *layout.warps)}
    for axis in range(layout.rank - 1, -1, -1):
        if axis in spread:
            break
        run *= prod(digit.extent for digit in layout.registers if digit.axis == axis)
        axes += 1
    return run if axes > 1 and axes < layout.rank else 1


def _has_lanes_down(layout: Layout) -> bool:
    """Whether adjacent lanes have adjacent rows of a matrix, the last two axes."""
    first = layout.lanes[0] if layout.lanes else None
    return first is not None and (first.axis, first.stride) == (layout.rank - 2, 1) and first.extent > FEW_LANES


def _bank_padding(tile: TileType) -> int:
    """Elements of padding with which rows begin in different banks: a row is then an odd number of banks."""
    return max(1, BANK_BYTES // tile.dtype.bytes) if tile.dtype.bytes_of(tile.shape[-1]) % (2 * BANK_BYTES) == 0 else 0


def _has_column_vectors(layout: Layout, size: int) -> bool:
    first = layout.registers[0] if layout.registers else None
    return first is not None and first.axis == 0 and first.stride == 1 and first.extent * size >= ROW_PADDING_BYTES


def conversion_bytes(op: Op, threads: int) -> int:
    """Bytes of scratch that `op` needs on a block of `threads`; 0 if no element moves between threads."""
    match op:
        case Relayout():
            value, layout = op.operands[0], op.result.layout
            assert layout is not None and value.layout is not None
            return 0 if is_uniform(value) or is_chosen(value, layout) else _moved_bytes(value.tile, value.layout, layout)
        case Reshape() | Permute():
            return _rearranged_bytes(op)
        case Reduce():
            return _reduced_bytes(op, threads)
        case Take():
            source = op.operands[0].tile
            return source.dtype.bytes_of(source.size)
        case Butterfly():
            layout = op.result.layout
            assert layout is not None
            moves = parts_of(layout, op.axis, op.mask).warps
            return threads * words(layout, op.result.tile.dtype) * WORD_BYTES if moves else 0
        case _:
            return 0


def _moved_bytes(tile: TileType, source: Layout, target: Layout) -> int:
    if moves_space(source, target) or renamed(source, target) is not None:
        return 0
    return tile.shape[0] * conversion_steps(tile, source, target)[0] * tile.dtype.bytes


def _rearranged_bytes(op: Reshape | Permute) -> int:
    source, layout, tile = op.operands[0], op.result.layout, op.result.tile
    if layout is None or source.layout is None:
        return 0
    if isinstance(op, Permute):
        same_elements = with_axes(source.layout, {old: new for new, old in enumerate(op.axes)}, layout.rank)
        return _moved_bytes(tile, same_elements, layout)
    if isinstance(source.owner, Constant):
        return 0
    same_elements = reshaped(source.layout, source.tile.shape, tile.shape)
    return tile.dtype.bytes_of(tile.size) if same_elements is None else _moved_bytes(tile, same_elements, layout)


def _reduced_bytes(op: Reduce, threads: int) -> int:
    layout = op.operands[0].layout
    assert layout is not None
    if all(digit.axis != op.axis or digit.extent == 1 for digit in layout.warps):
        return 0
    results = prod(digit.extent for digit in layout.registers if digit.axis not in (None, op.axis))
    values_per_result = 2 if op.kind.startswith("arg") else 1
    return threads * results * values_per_result * REDUCED_BYTES
