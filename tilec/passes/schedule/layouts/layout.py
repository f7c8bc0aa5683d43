"""Assigns the layout of every tile and the vector width of every access.

In: a proven function with `num_warps` set, its pipelined loops already staged, and the bytes of 16-bit elements that a thread
has side by side, which a target may load in two. Out: the same function with a `Layout` on every tile value, `vector` and
`whole` on every access. A tensor whose loads may be wider than its alignment gets that alignment, which the launcher then
requires. Nine rules determine layouts:

1. A tile's natural layout depends only on its shape without axes of extent 1: those bytes of a 16-bit type per thread on the
   last axis (fewer of `narrow_rows` and `small_tiles`), lanes along it, warps along the axis before it, the rest in registers.
   Tiles of equal shape therefore need no conversion.
2. Element-wise results have the layout of their first operand that is neither a constant nor a broadcast; in kernels with
   butterflies or atomics at positions, of the first that a thread cannot compute by itself. If a thread has more elements of
   that operand than it needs in the layout of another one, they have the other one's (`tilec.ir.layouts.selections`).
3. A reduction drops the axis' digits: registers are combined, lanes and warps become replicas.
4. A reshape or permutation keeps every element in its thread if the digits of the layout divide the new axes.
5. A butterfly keeps the layout if each bit of the position is a bit of a register, lane or warp index.
6. The result of a `take` has the layout of its indices: the tile goes through shared memory in any case.
7. Layouts set by the staging pass (`mma`, shared loads) are kept, and propagate to dependent operations (`propagation`).
8. Axes of two elements that `join` adds and `split` takes apart are in registers (`register_axes`).
9. A tile to which a loop adds another, from a constant, has the layout of what is added where that saves a conversion in every
   iteration (`carried_sums`).

Operand layouts need not match here: `conversions` inserts the conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import (
    FIRST_DIGIT,
    hidden,
    interleaved,
    natural,
    reshaped,
    spread,
    with_axes,
    without_axis,
)
from tilec.ir.layouts.butterflies import is_binary
from tilec.ir.layouts.conversion_scratch import is_chosen
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import (
    AtomicScatter,
    Broadcast,
    Butterfly,
    Cast,
    Constant,
    For,
    If,
    Iota,
    Load,
    Permute,
    Reduce,
    Reshape,
    Select,
    Store,
    Take,
)
from tilec.ir.ops.sync_ops import Ring
from tilec.ir.types import TileType
from tilec.passes.schedule.layouts import overlapping, repeated_loads
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.passes.schedule.layouts.carried_sums import added, carried_layout
from tilec.passes.schedule.layouts.narrow_rows import consecutive, load_adjacent
from tilec.passes.schedule.layouts.propagation import computed_anywhere, computed_operands, propagate, rematerialize
from tilec.passes.schedule.layouts.register_axes import apart, doubled, is_apart, joined, split_axes
from tilec.passes.schedule.layouts.small_tiles import pays
from tilec.target.families import MemorySpace
from tilec.target.schedule import VECTOR


@dataclass(frozen=True, slots=True)
class Known:
    """What rules ask about a function: tiles of which a thread can compute any element by itself, how many last axes of a tile
    are taken apart, what repeats the parts of joined tiles."""

    free: frozenset[Value]
    split: dict[Value, int]
    joined: frozenset[Op]
    warps: int


NaturalLayout = Callable[[tuple[int, ...]], Layout]
"""The natural layout of a tile's shape, for the warps and the widest load of a function."""


def assign(function: Function, run: int = VECTOR, widest: int = VECTOR) -> Function:
    """Set layouts and vectors, in place. `run`: bytes of 16-bit elements that a thread has side by side; `widest`: maximum
    bytes of a load."""
    _set_vectors(function, min(run, widest))
    vector = FIRST_DIGIT * run // VECTOR
    is_usual = run == VECTOR
    is_spread = is_usual and pays(function, lambda copy, is_spread: _distribute(copy, None, vector, is_spread))
    distribute = partial(_distribute, vector=vector, is_spread=is_spread)
    distribute(function, consecutive(function, distribute) if is_usual else None)
    return function


def _distribute(function: Function, number: int | None, vector: int, is_spread: bool) -> None:
    """Set layouts: natural ones of `vector` elements, of fewer where small tiles are spread, with at most `number`
    consecutive elements of a thread."""

    def natural_of(shape: tuple[int, ...]) -> Layout:
        layout = (spread if is_spread else natural)(shape, function.num_warps, vector)
        return interleaved(layout, number) if number else layout

    propagate(function)
    load_adjacent(function)
    _load_as_broadcast(function, natural_of)
    axes, parts = split_axes(function), joined(function)
    free = computed_anywhere(function) if axes or parts or _moves_positions(function) else frozenset[Value]()
    known = Known(free, axes, parts, function.num_warps)
    _block(function.body, natural_of, known)
    rematerialize(function, always=bool(free))
    repeated_loads.spread(function)


def _moves_positions(function: Function) -> bool:
    """Whether positions are needed in several layouts: in butterflies, and for atomics at positions."""
    return any(isinstance(op, Butterfly | AtomicScatter) for op in function.body.walk())


def _set_vectors(function: Function, widest: int) -> None:
    alignments = Alignments(function)
    if widest > VECTOR:
        alignments.raise_for_loads(widest)
    for op in function.body.walk():
        if isinstance(op, Load | Store):
            tensor = op.operands[0].tensor
            limit = widest if isinstance(op, Load) else VECTOR
            op.vector = max(tensor.dtype.bytes, gcd(alignments.of(op, tensor.align), limit))
            op.whole = alignments.divisor_of_rows(tensor) % op.vector == 0
    overlapping.mark(function, alignments)


def _load_as_broadcast(function: Function, natural_of: NaturalLayout) -> None:
    """Give a load whose only use is a broadcast the broadcast's layout, so that several threads load the same elements: reading
    a cached line again costs less than a conversion through shared memory. With a producer, whose consumers should not meet
    at a barrier in a loop, and with products whose operands threads compute, that is the layout that products need, also of
    loads from which threads compute what is repeated."""
    uses: dict[Value, int] = {}
    for op in function.body.walk():
        for value in op.operands:
            uses[value] = uses.get(value, 0) + 1
    is_fed = any(isinstance(op, Ring) and op.sync == "mbarriers" for op in function.body.walk())
    is_fed = is_fed or bool(computed_operands(function))
    for op in function.body.walk():
        if not isinstance(op, Broadcast) or not op.operands[0].tile.rank:
            continue
        value, axes = op.operands[0], list(range(op.result.tile.rank))
        repeated = {axis for axis, extent in enumerate(value.tile.shape) if extent == 1}
        while uses[value] == 1 and (source := _source(value, is_fed)) is not None:
            if isinstance(value.owner, Reshape):
                kept = [axes[axis] for axis, extent in enumerate(value.tile.shape) if extent > 1]
                wide = [axis for axis, extent in enumerate(source.tile.shape) if extent > 1]
                if len(kept) != len(wide):
                    break
                axes = [-1] * source.tile.rank
                for axis, outer in zip(wide, kept, strict=True):
                    axes[axis] = outer
            elif isinstance(value.owner, Permute):
                axes = [axes[value.owner.axes.index(axis)] for axis in range(source.tile.rank)]
            value = source
        if uses[value] == 1 and isinstance(value.owner, Load) and value.layout is None:
            needed = op.result.layout if is_fed else None
            layout = hidden((needed or natural_of(op.result.tile.shape)).in_space(MemorySpace.REGISTERS), repeated)
            numbers = {outer: axis for axis, outer in enumerate(axes) if outer >= 0}
            value.layout = with_axes(layout, numbers, value.tile.rank)


def _source(value: Value, is_computed: bool) -> Value | None:
    """The tile that a value is a cast or reshape of, or a permutation of or computed from with scalars and constants at most if
    `is_computed`; None if there is no such tile."""
    op = value.owner
    if isinstance(op, Cast | Reshape) or (isinstance(op, Permute) and is_computed):
        return op.operands[0]
    if not is_computed or not isinstance(op, Op) or not op.elementwise:
        return None
    tiles = [one for one in op.operands if not _is_uniform(one)]
    return tiles[0] if len(tiles) == 1 else None


def _is_uniform(value: Value) -> bool:
    op = value.owner
    if isinstance(op, Broadcast | Reshape):
        return _is_uniform(op.operands[0])
    return isinstance(op, Constant) or not value.tile.rank


def _block(block: Block, natural_of: NaturalLayout, known: Known) -> None:
    for op in block.ops:
        _op(op, natural_of, known)


def _op(op: Op, natural_of: NaturalLayout, known: Known) -> None:
    if isinstance(op, For):
        _loop(op, natural_of, known)
        return
    for region in op.regions:
        _block(region, natural_of, known)
    if isinstance(op, If):
        for position, result in enumerate(op.results):
            result.layout = result.layout or op.regions[0].ops[-1].operands[position].layout
        return
    for result in op.results:
        if isinstance(result.type, TileType) and result.type.rank and result.layout is None:
            result.layout = _layout(op, result, natural_of, known).in_space(MemorySpace.REGISTERS)


def _loop(op: For, natural_of: NaturalLayout, known: Known) -> None:
    body = op.regions[0]
    carried = body.arguments[1:]
    sums = added(op)
    for argument, initial in zip(carried, op.initial, strict=True):
        if argument.tile.rank and argument.layout is None and argument not in sums:
            argument.layout = initial.layout or natural_of(argument.tile.shape)
    _block(body, natural_of, known)
    for argument, (total, term) in sums.items():
        usual = natural_of(argument.tile.shape)
        argument.layout = carried_layout(term, usual)
        total.result.layout = argument.layout if total.operands[0] is argument else term.layout
    for result, argument in zip(op.results, carried, strict=True):
        result.layout = argument.layout


def _layout(op: Op, result: Value, natural_of: NaturalLayout, known: Known) -> Layout:
    shape = result.tile.shape
    match op:
        case Reduce():
            source = op.operands[0].layout
            assert source is not None
            return without_axis(source, op.axis)
        case Permute():
            source = op.operands[0].layout
            assert source is not None
            moved = with_axes(source, {old: new for new, old in enumerate(op.axes)}, len(shape))
            return _apart(result, known, moved) or moved
        case Reshape():
            source = op.operands[0]
            same = reshaped(source.layout, source.tile.shape, shape) if source.layout is not None else None
            return _apart(result, known, same) or same or natural_of(shape)
        case Broadcast() if op in known.joined and op.operands[0].layout is not None:
            return doubled(op.operands[0].layout)
        case Select() if op.operands[1].owner in known.joined and op.operands[1].layout is not None:
            return op.operands[1].layout
        case Butterfly():
            source = op.operands[0].layout
            assert source is not None
            return source if is_binary(source, op.axis) else natural_of(shape)
        case Take():
            indices = op.operands[1]
            return indices.layout if _anchors(indices, known) and indices.layout is not None else natural_of(shape)
        case Constant() | Iota() | Load() | Broadcast():
            return natural_of(shape)
        case _:
            anchors = [v for v in op.operands if v.layout is not None and v.tile.shape == shape and _anchors(v, known)]
            if anchors:
                return _chosen_layout(anchors)
            return next((v.layout for v in op.operands if v.layout and v.tile.shape == shape), natural_of(shape))


def _anchors(value: Value, known: Known) -> bool:
    """Whether a tile determines the layout of what is computed from it."""
    return not isinstance(value.owner, Constant | Broadcast) and value not in known.free


def _chosen_layout(tiles: list[Value]) -> Layout:
    """The layout of the first tile, or one of another in which each thread can choose from the elements that it has of the
    first."""
    first, *others = tiles
    layouts = [other.layout for other in others if other.layout is not None and other.layout != first.layout]
    assert first.layout is not None
    return next((layout for layout in layouts if is_chosen(first, layout)), first.layout)


def _apart(value: Value, known: Known, usual: Layout | None) -> Layout | None:
    """The layout of a tile that is taken apart; None for others, and if it has its usual layout."""
    axes = known.split.get(value, 0)
    if not axes or (usual is not None and is_apart(usual, axes)):
        return None
    return apart(value.tile.shape, axes, known.warps)
