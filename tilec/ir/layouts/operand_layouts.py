"""The layout in which lowering expects each operand of an operation.

In: an operation whose results have layouts. Out: a layout for each operand, None if any layout will do or the operand itself
determines it. `tilec.passes.schedule.layouts.conversions` inserts the conversions, and the verifier of schedules checks every
kernel.
"""

from __future__ import annotations

from tilec.ir.core import Op, Value
from tilec.ir.layouts.blocked_layouts import hidden
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import AtomicScatter, Broadcast, Butterfly, For, If, MemoryOp, Mma, Print, Take
from tilec.ir.ops.private_ops import PrivateUpdate
from tilec.ir.ops.staging_ops import GroupMma, PackPairs, RegisterGroupMma, WaitMma
from tilec.ir.ops.take_ops import TakeLoad
from tilec.target.families import MemorySpace

Layouts = tuple[Layout | None, ...]


def operand_layouts(op: Op) -> Layouts:
    """Layouts of the leading operands; further operands have None."""
    if op.elementwise:
        return (op.result.layout,) * len(op.operands)
    if isinstance(op, AtomicScatter):
        layout = op.results[0].layout if op.results else op.tile.layout
        return (None, *[layout] * (len(op.operands) - 1))
    if isinstance(op, MemoryOp) and op.indexed:
        return (*[None] * (len(op.operands) - len(op.indices)), *[op.tile.layout] * len(op.indices))
    match op:
        case PrivateUpdate():
            return (None, None, *[op.tile.layout] * (1 + len(op.indices)))
        case Broadcast():
            source, layout = op.operands[0], op.result.layout
            if source.layout is None or layout is None:
                return ()
            return (hidden(layout, {axis for axis, extent in enumerate(source.tile.shape) if extent == 1}),)
        case Mma():
            return (None, None, op.result.layout)
        case GroupMma():
            return (*[None] * 4, op.result.layout)
        case RegisterGroupMma():
            layout = op.result.layout
            return (packed_operand(layout, 2 * op.operands[0].tile.shape[1]) if layout else None, None, None, layout)
        case PackPairs():
            return (unpacked(op.result.layout) if op.result.layout else None,)
        case Take() | TakeLoad():
            return (None, op.result.layout)
        case WaitMma() | Butterfly():
            return (op.result.layout,)
        case Print():
            layout = op.anchor.layout if op.anchor is not None else None
            layout = layout and layout.in_space(MemorySpace.REGISTERS)
            return (*[None] * op.axes, *[layout] * len(op.tiles))
        case For():
            return (None, None, None, *yielded_layouts(op))
        case _:
            return ()


def packed_operand(accumulator: Layout, columns: int) -> Layout:
    """The layout of a packed operand A, `columns` deep, of a product with this accumulator (PTX ISA, "Register fragments for
    wgmma.mma_async.m64nNk16", A): rows are distributed as in the accumulator."""
    _, row_half, _, *row_digits = accumulator.registers
    (_, rows), pairs = accumulator.lanes, Digit(4, 1, 1)
    return Layout(2, (row_half, Digit(columns // 8, 1, 4), *row_digits), (pairs, rows), accumulator.warps)


def unpacked(packed: Layout) -> Layout:
    """The layout of a matrix whose pairs of neighbors have the layout `packed`."""
    registers, lanes, warps = (
        tuple(Digit(d.extent, d.axis, 2 * d.stride) if d.axis == 1 else d for d in digits)
        for digits in (packed.registers, packed.lanes, packed.warps)
    )
    return Layout(2, (Digit(2, 1, 1), *registers), lanes, warps)


def yielded_layouts(op: Op) -> Layouts:
    """Layouts of the values that a loop or branch yields."""
    return tuple(value.layout for value in carried(op))


def carried(op: Op) -> list[Value]:
    """The values that a loop or branch yields; for a loop, its body arguments in the next iteration."""
    return op.regions[0].arguments[1:] if isinstance(op, For) else op.results if isinstance(op, If) else []
