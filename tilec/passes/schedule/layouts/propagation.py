"""Layout propagation from anchor ops: spreads the layouts that `mma` fixes, to avoid layout conversions.

Forwards, a layout determines those of element-wise results, reductions, loop-carried values and branch results. Backwards, it
determines those of operands that every thread can rematerialize: constants, `arange`, scalars, and arithmetic on them. An
operand needed in two layouts is computed twice, which costs less than a conversion through shared memory in every iteration.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import hidden, reshaped, vectors_first, with_axes, without_axis
from tilec.ir.layouts.butterflies import is_binary
from tilec.ir.layouts.conversion_scratch import is_free
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.operand_layouts import unpacked
from tilec.ir.ops import (
    AtomicScatter,
    Broadcast,
    Butterfly,
    Cast,
    Constant,
    For,
    Gather,
    If,
    Iota,
    Load,
    Mma,
    Permute,
    Reduce,
    Reshape,
    Take,
)
from tilec.ir.ops.staging_ops import GroupProduct, PackPairs, Relayout
from tilec.ir.types import TileType
from tilec.target.families import MemorySpace


def propagate(function: Function) -> None:
    """Propagate the layouts that are already set, in place. Kernels without `mma` stay unchanged."""
    if any(isinstance(op, Mma | GroupProduct) for op in function.body.walk()):
        state = _State(function)
        for operand, needed in computed_operands(function):
            state.feed(operand, needed)
        state.spread_all()
        for op in [one for one in function.body.walk() if isinstance(one, PackPairs)]:
            if op.operands[0].layout is None and op.result.layout is not None:
                state.feed(op.operands[0], unpacked(op.result.layout))
        state.spread_all()


def computed_operands(function: Function) -> list[tuple[Value, Layout]]:
    """Operands of products that are not staged (`direct_products`), if threads compute them, with the layouts of fragments."""
    found: list[tuple[Value, Layout]] = []
    for op in function.body.walk():
        if isinstance(op, Mma) and op.result.tile.rank == 3:
            fragments = [value for value in op.operands[:2] if isinstance(value.owner, Relayout)]
            pairs = [(value.owner.operands[0], value.layout) for value in fragments if isinstance(value.owner, Relayout)]
            found += [(value, layout) for value, layout in pairs if layout is not None and _is_computed(value)]
    return found


def _is_computed(value: Value) -> bool:
    """Whether a tile is more than a cast of one that threads load: `direct_products` sets the layout of such a load itself."""
    owner = origin_of(value).owner
    return isinstance(owner, Op) and owner.elementwise


def origin_of(value: Value) -> Value:
    """The tile whose elements `value` has, cast and moved."""
    moves = moves_of(value)
    return moves[-1].operands[0] if moves else value


def moves_of(value: Value) -> list[Op]:
    """The casts, reshapes, permutations and broadcasts that make `value` of one tile, the last first."""
    found: list[Op] = []
    while isinstance(op := value.owner, Reshape | Permute | Broadcast | Cast) and op.operands[0].tile.rank:
        found.append(op)
        value = op.operands[0]
    return found


def carried_loads(function: Function) -> dict[Value, tuple[Value, Value, Value]]:
    """Values that a loop carries from one iteration to the next, of which each is a load: what is carried in, what an iteration
    loads for the next one, and the loop's result, by the argument of its body."""
    found: dict[Value, tuple[Value, Value, Value]] = {}
    for op in function.body.walk():
        if isinstance(op, For):
            body = op.regions[0]
            for argument, *others in zip(body.arguments[1:], op.initial, body.ops[-1].operands, op.results, strict=True):
                first, following, result = others
                if isinstance(first.owner, Load) and isinstance(following.owner, Load):
                    found[argument] = first, following, result
    return found


def computed_anywhere(function: Function) -> frozenset[Value]:
    """Tiles of which every thread can compute any element by itself: of positions, constants and scalars."""
    found: set[Value] = set()
    for op in function.body.walk():
        known = isinstance(op, Constant | Iota)
        moves = isinstance(op, Broadcast) or (isinstance(op, Reshape | Permute) and _moved_axes(op) is not None)
        if (op.elementwise or moves) and len(op.results) == 1:
            known = all(not value.tile.rank or value in found for value in op.operands)
        if known and op.result.tile.rank:
            found.add(op.result)
    return frozenset(found)


def rematerialize(function: Function, always: bool) -> None:
    """Computes the operands that a thread can compute by itself in the layout in which they are used, in place: the masks of a
    scan, where it combines totals, and of rows, and the positions of atomics. Every tile has a layout. Unless `always`, only
    where a conversion through shared memory goes, or becomes that of what a broadcast repeats."""
    state = _State(function, is_selective=not always)
    for op in list(function.body.walk()):
        if op.results and not op.regions and isinstance(op.results[0].type, TileType):
            state.backward(op)
        if isinstance(op, AtomicScatter):
            state.positions(op, op.results[0].layout if op.results else op.tile.layout)
        elif isinstance(op, Broadcast):
            state.spread(op)
    _remove_unused(function.body, {value for op in function.body.walk() for value in op.operands})


def _remove_unused(block: Block, used: set[Value]) -> None:
    """Removes what only rematerialized operations used."""
    ops: list[Op] = []
    for op in reversed(block.ops):
        for region in op.regions:
            _remove_unused(region, used)
        is_pure = op.elementwise or isinstance(op, Constant | Iota | Broadcast | Reshape | Permute)
        if not is_pure or not used.isdisjoint(op.results):
            ops.insert(0, op)
    block.ops = ops


@dataclass(eq=False, slots=True)
class _State:
    function: Function
    is_selective: bool = False
    changed: bool = True
    copies: dict[tuple[Value, Layout], Value] = field(default_factory=dict[tuple[Value, Layout], Value])
    parent: dict[Op, Block] = field(default_factory=dict[Op, Block])
    carried: dict[Value, tuple[Value, Value, Value]] = field(default_factory=dict[Value, tuple[Value, Value, Value]])

    def __post_init__(self) -> None:
        self.carried = carried_loads(self.function)
        pending = [self.function.body]
        while pending:
            block = pending.pop()
            self.parent |= dict.fromkeys(block.ops, block)
            pending += [region for op in block.ops for region in op.regions]

    def spread_all(self) -> None:
        """Spread layouts until nothing changes."""
        while self.changed:
            self.changed = False
            self.block(self.function.body)

    def feed(self, value: Value, layout: Layout) -> None:
        """Set the layout of a tile that follows from no accumulator, and those of the tiles that it is computed from, so that
        each thread loads what its own elements follow from. Others of several layouts are converted."""
        op = value.owner
        if value in self.carried:
            for one in (value, *self.carried[value]):
                self.set(one, vectors_first(layout))
        if value.layout is not None or not isinstance(op, Op) or op not in self.parent or op.regions:
            return
        self.set(value, vectors_first(layout) if isinstance(op, Load) else layout)
        if op.elementwise or isinstance(op, Broadcast | Reshape | Permute):
            for source in op.operands:
                needed = source_layout(op, source, layout)
                if needed is not None:
                    self.feed(source, needed)
        elif isinstance(op, Gather):
            self.positions(op, layout)

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            for region in op.regions:
                self.block(region)
            if isinstance(op, For):
                self.loop(op)
            elif isinstance(op, If):
                self.branch(op)
            elif op.results and not op.regions:
                self.forward(op)
                self.backward(op)

    def set(self, value: Value, layout: Layout | None) -> None:
        if layout is not None and value.layout is None and value.tile.rank:
            value.layout = layout
            self.changed = True

    def loop(self, op: For) -> None:
        body = op.regions[0]
        for argument, yielded, result in zip(body.arguments[1:], body.ops[-1].operands, op.results, strict=True):
            known = argument.layout or yielded.layout
            self.set(argument, known)
            self.set(result, argument.layout)

    def branch(self, op: If) -> None:
        for index, result in enumerate(op.results):
            yielded = (region.ops[-1].operands[index].layout for region in op.regions)
            if isinstance(result.type, TileType):
                self.set(result, next((layout for layout in yielded if layout is not None), None))

    def forward(self, op: Op) -> None:
        """Threads compute in registers, wherever an accumulator is."""
        if op.result.layout is not None:
            return
        layout = self.forward_layout(op)
        self.set(op.result, layout and layout.in_space(MemorySpace.REGISTERS))

    def forward_layout(self, op: Op) -> Layout | None:
        if op.elementwise:
            shape = op.result.tile.shape
            return next((v.layout for v in op.operands if v.layout is not None and v.tile.shape == shape), None)
        if isinstance(op, Take):
            return op.operands[1].layout
        if not isinstance(op, Reduce | Permute | Reshape | Butterfly) or op.operands[0].layout is None:
            return None
        source, layout = op.operands[0], op.operands[0].layout
        if isinstance(op, Reduce):
            return without_axis(layout, op.axis)
        if isinstance(op, Butterfly):
            return layout if is_binary(layout, op.axis) else None
        if isinstance(op, Reshape):
            return reshaped(layout, source.tile.shape, op.result.tile.shape)
        return with_axes(layout, {old: new for new, old in enumerate(op.axes)}, op.result.tile.rank)

    def backward(self, op: Op) -> None:
        if isinstance(op, Mma | GroupProduct) and isinstance(op.operands[-1].owner, Broadcast) and op.result.layout is not None:
            op.operands[-1] = self.in_layout(op.operands[-1], op.result.layout)  # sums that begin at numbers of rows or columns
        if not op.elementwise or op.result.layout is None:
            return
        for index, value in enumerate(op.operands):
            if value.tile.rank and value.layout != op.result.layout:
                op.operands[index] = self.in_layout(value, op.result.layout)

    def positions(self, op: AtomicScatter | Gather, layout: Layout | None) -> None:
        """The indices of an access whose tile has `layout`."""
        for place, value in enumerate(op.operands):
            if value in op.indices and layout is not None:
                op.operands[place] = self.in_layout(value, layout)

    def spread(self, op: Broadcast) -> None:
        """What a broadcast repeats, in the part of its layout that a thread needs."""
        (source,), layout = op.operands, op.result.layout
        if source.tile.rank and layout is not None:
            repeated = {axis for axis, extent in enumerate(source.tile.shape) if extent == 1}
            op.operands[0] = self.in_layout(source, hidden(layout, repeated))

    def in_layout(self, value: Value, layout: Layout) -> Value:
        """`value` in `layout`, rematerialized if it already has another one; `value` itself if that is impossible."""
        op = value.owner
        if (value, layout) in self.copies:
            return self.copies[value, layout]
        if not isinstance(op, Op) or op not in self.parent or not self.is_rematerializable(op):
            return value
        if self.is_selective and (is_free(value, layout) or self.converted(value, layout) > 1):
            return value
        if value.layout is None:
            rematerialized = op
        elif value.layout == layout:
            return value
        else:
            rematerialized = dataclasses.replace(op, operands=list(op.operands), results=[])
            rematerialized.define(value.tile)
            rematerialized.result.fits = value.fits  # it is the same number in another thread
            block = self.parent[rematerialized] = self.parent[op]
            block.ops.insert(block.ops.index(op) + 1, rematerialized)
            self.copies[value, layout] = rematerialized.result
        self.set(rematerialized.result, layout)
        needed = _needed_layouts(rematerialized, layout)
        rematerialized.operands[: len(needed)] = [
            self.in_layout(v, w) if v.tile.rank else v for v, w in zip(rematerialized.operands, needed, strict=False)
        ]
        return rematerialized.result

    def converted(self, value: Value, layout: Layout) -> int:
        """How many tiles go through shared memory if a value is computed in `layout`: those that no thread computes alone."""
        op = value.owner
        if not value.tile.rank or value.layout is None or is_free(value, layout):
            return 0
        if not isinstance(op, Op) or op not in self.parent or not self.is_rematerializable(op):
            return 1
        return sum(self.converted(one, needed) for one, needed in zip(op.operands, _needed_layouts(op, layout), strict=False))

    def is_rematerializable(self, op: Op) -> bool:
        """Whether a thread can compute any element of the result without other threads' elements."""
        if isinstance(op, Constant | Iota | Broadcast):
            return True  # `conversions` converts a broadcast's source to the slice of the layout that is needed
        if isinstance(op, Reshape | Permute) and _moved_axes(op) is None:
            return False
        if not op.elementwise and not isinstance(op, Reshape | Permute):
            return False
        owners = [value.owner for value in op.operands if value.tile.rank]
        return all(isinstance(owner, Op) and owner in self.parent and self.is_rematerializable(owner) for owner in owners)


def _needed_layouts(op: Op, layout: Layout) -> list[Layout]:
    """The layouts of the operands of an operation that is rematerialized in `layout`."""
    if op.elementwise:
        return [layout] * len(op.operands)
    if isinstance(op, Broadcast) and op.operands[0].tile.rank:
        return [hidden(layout, {axis for axis, extent in enumerate(op.operands[0].tile.shape) if extent == 1})]
    if isinstance(op, Reshape | Permute):
        axes = _moved_axes(op)
        assert axes is not None
        return [with_axes(layout, {new: old for old, new in axes.items()}, op.operands[0].tile.rank)]
    return []


def source_layout(op: Op, source: Value, layout: Layout) -> Layout | None:
    """The layout of an operand with which every element stays in its thread if the result has `layout`; None if there is
    none."""
    shape, other = op.result.tile.shape, source.tile.shape
    if not source.tile.rank:
        return None
    if isinstance(op, Broadcast):
        return hidden(layout, {axis for axis, extent in enumerate(other) if extent < shape[axis]})
    if isinstance(op, Reshape):
        return reshaped(layout, shape, other)
    if isinstance(op, Permute):
        return with_axes(layout, dict(enumerate(op.axes)), source.tile.rank)
    return layout


def _moved_axes(op: Reshape | Permute) -> dict[int, int] | None:
    """Old axis to new axis for every axis longer than 1; None if axes are split or joined."""
    if isinstance(op, Permute):
        return {old: new for new, old in enumerate(op.axes)}
    shapes = op.operands[0].tile.shape, op.result.tile.shape
    old, new = ([axis for axis, extent in enumerate(shape) if extent > 1] for shape in shapes)
    if [shapes[0][axis] for axis in old] != [shapes[1][axis] for axis in new]:
        return None
    return dict(zip(old, new, strict=True))
