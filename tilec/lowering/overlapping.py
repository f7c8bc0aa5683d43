"""Loads of boxes that overlap, such as the taps of a stencil: the vectors that a thread's elements lie in, at multiples of
their size, and of those the elements.

In: offsets that are a value plus a constant. Boxes whose offsets differ in that constant alone then have the same addresses and
conditions for the vectors that they share, of which LLVM keeps one load, since it is text without effects.
"""

from __future__ import annotations

from tilec.ir.core import Value
from tilec.ir.layouts.blocked_layouts import vector_length
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Binary, Constant
from tilec.ir.ops.overlapping_ops import OverlappingLoad
from tilec.lowering.boxes import Box
from tilec.lowering.context import Context, literal
from tilec.lowering.rules import lowers
from tilec.lowering.words import Words
from tilec.mlir.types import SsaValue


@lowers(OverlappingLoad)
def lower_overlapping_load(context: Context, op: OverlappingLoad) -> None:
    """One or two vectors for each run of a thread's elements; each lies inside or outside of the tensor, since rows end at
    vectors."""
    tile = op.result.tile
    layout = op.result.layout or Layout(tile.rank, (), (), ())
    width = vector_length(layout, op.vector // tile.dtype.bytes)
    offsets, moved = zip(*(_parts(offset) for offset in op.offsets), strict=True)
    box = Box(context, op.source, list(offsets), tile.shape, layout, moved)
    words, path, lead = Words(context, tile.dtype, width), context.path(op.source), op.lead % width
    padding = None if op.pad is None else words.pack([literal(context, op.pad, tile.dtype)] * width)

    def vector(register: int, ahead: int) -> list[SsaValue]:
        pointer = box.pointer(register, ahead)
        if padding is None:
            return words.elements(words.load(pointer, path))
        return words.elements(words.load_if(box.element_in_bounds(register, ahead), pointer, padding, path))

    found: list[SsaValue] = []
    for register in range(0, layout.num_registers, width):
        elements = vector(register, -lead) + (vector(register, width - lead) if lead else [])
        found += elements[lead : lead + width]
    context.assign(op.result, found)


def _parts(offset: Value) -> tuple[Value, int]:
    """A value and a constant whose sum an offset is, where the sum is shown not to wrap; else the offset and 0."""
    op = offset.owner
    if isinstance(op, Binary) and op.kind == "add" and offset.fits:
        for value, other in (op.operands, op.operands[::-1]):
            if isinstance(other.owner, Constant):
                return value, int(other.owner.value)
    return offset, 0
