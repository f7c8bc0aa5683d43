"""Layout propagation from anchor ops: spreads the layouts that `mma` fixes, to avoid layout conversions.

Forwards, a layout determines those of element-wise results, reductions, loop-carried values and branch results. Backwards, it
determines those of operands that every thread can rematerialize: constants, `arange`, scalars, and arithmetic on them. An
operand needed in two layouts is computed twice, which costs less than a conversion through shared memory in every iteration.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import hidden, reshaped, with_axes, without_axis
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Broadcast, Constant, For, If, Iota, Mma, Permute, Reduce, Reshape
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.ir.types import TileType


def spread(function: Function) -> None:
    """Propagate the layouts that are already set, in place. Kernels without `mma` stay unchanged."""
    if any(isinstance(op, Mma | GroupProduct) for op in function.body.walk()):
        state = _State(function)
        while state.changed:
            state.changed = False
            state.block(function.body)


@dataclass(eq=False, slots=True)
class _State:
    function: Function
    changed: bool = True
    copies: dict[tuple[Value, Layout], Value] = field(default_factory=dict[tuple[Value, Layout], Value])
    home: dict[Op, Block] = field(default_factory=dict[Op, Block])

    def __post_init__(self) -> None:
        pending = [self.function.body]
        while pending:
            block = pending.pop()
            self.home |= dict.fromkeys(block.ops, block)
            pending += [region for op in block.ops for region in op.regions]

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
        for place, result in enumerate(op.results):
            yielded = (region.ops[-1].operands[place].layout for region in op.regions)
            if isinstance(result.type, TileType):
                self.set(result, next((layout for layout in yielded if layout is not None), None))

    def forward(self, op: Op) -> None:
        if op.result.layout is not None:
            return
        if op.elementwise:
            shape = op.result.tile.shape
            self.set(op.result, next((v.layout for v in op.operands if v.layout is not None and v.tile.shape == shape), None))
        elif isinstance(op, Reduce | Permute | Reshape):
            source = op.operands[0]
            if source.layout is None:
                return
            if isinstance(op, Reduce):
                self.set(op.result, without_axis(source.layout, op.axis))
            elif isinstance(op, Reshape):
                self.set(op.result, reshaped(source.layout, source.tile.shape, op.result.tile.shape))
            else:
                axes = {old: new for new, old in enumerate(op.axes)}
                self.set(op.result, with_axes(source.layout, axes, op.result.tile.rank))

    def backward(self, op: Op) -> None:
        if not op.elementwise or op.result.layout is None:
            return
        for place, value in enumerate(op.operands):
            if value.tile.rank and value.layout != op.result.layout:
                op.operands[place] = self.made_as(value, op.result.layout)

    def made_as(self, value: Value, layout: Layout) -> Value:
        """`value` in `layout`, rematerialized if it already has another one; `value` itself if that is impossible."""
        op = value.owner
        if (value, layout) in self.copies:
            return self.copies[value, layout]
        if not isinstance(op, Op) or op not in self.home or not self.is_free(op):
            return value
        if value.layout is None:
            made = op
        elif value.layout == layout:
            return value
        else:
            made = dataclasses.replace(op, operands=list(op.operands), results=[])
            made.define(value.tile)
            home = self.home[made] = self.home[op]
            home.ops.insert(home.ops.index(op) + 1, made)
            self.copies[value, layout] = made.result
        self.set(made.result, layout)
        if made.elementwise:
            wanted = [layout] * len(made.operands)
        elif isinstance(made, Broadcast) and made.operands[0].tile.rank:
            shape = made.operands[0].tile.shape
            wanted = [hidden(layout, {axis for axis, extent in enumerate(shape) if extent == 1})]
        elif isinstance(made, Reshape | Permute):
            axes = _moved_axes(made)
            assert axes is not None
            wanted = [with_axes(layout, {new: old for old, new in axes.items()}, made.operands[0].tile.rank)]
        else:
            return made.result
        made.operands = [self.made_as(v, w) if v.tile.rank else v for v, w in zip(made.operands, wanted, strict=True)]
        return made.result

    def is_free(self, op: Op) -> bool:
        """Whether a thread can compute any element of the result without other threads' elements."""
        if isinstance(op, Constant | Iota | Broadcast):
            return True  # `conversions` converts a broadcast's source to the slice of the layout that is needed
        if isinstance(op, Reshape | Permute) and _moved_axes(op) is None:
            return False
        if not op.elementwise and not isinstance(op, Reshape | Permute):
            return False
        owners = [value.owner for value in op.operands if value.tile.rank]
        return all(isinstance(owner, Op) and owner in self.home and self.is_free(owner) for owner in owners)


def _moved_axes(op: Reshape | Permute) -> dict[int, int] | None:
    """Old axis to new axis for every axis longer than 1; None if axes are split or joined."""
    if isinstance(op, Permute):
        return {old: new for new, old in enumerate(op.axes)}
    shapes = op.operands[0].tile.shape, op.result.tile.shape
    old, new = ([axis for axis, extent in enumerate(shape) if extent > 1] for shape in shapes)
    if [shapes[0][axis] for axis in old] != [shapes[1][axis] for axis in new]:
        return None
    return dict(zip(old, new, strict=True))
