"""Elements at computed positions of an axis, from scratch. The barriers before and after are separate operations."""

from __future__ import annotations

from math import prod

from tilec.ir.ops.take_ops import TakeLoad
from tilec.lowering.context import Context, storage
from tilec.lowering.convert import scratch_addresses
from tilec.lowering.coordinates import TileCoordinates
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue, i1, i8


@lowers(TakeLoad)
def lower_take_load(context: Context, op: TakeLoad) -> None:
    """Every thread loads the elements at its indices. The smaller one of an index and the last position, as unsigned numbers,
    is a position for any index."""
    (pointer,) = context.registers(op.operands[0])
    tile, layout = op.result.tile, op.result.layout
    assert layout is not None
    size, is_bool = tile.dtype.bytes, tile.dtype.kind == "b"
    assert prod(op.source) * size <= op.operands[0].scratch.bytes, f"{op.source} of {tile.dtype} in {op.operands[0].type}"
    others = tuple(0 if axis == op.axis else step for axis, step in enumerate(op.steps))
    rows = scratch_addresses(context, pointer, layout, others, TileCoordinates(context, layout, tile.shape), size)
    last, distance = context.constant(op.source[op.axis] - 1), op.steps[op.axis] * size
    loaded: list[SsaValue] = []
    for row, index in zip(rows, context.registers(op.operands[1]), strict=True):
        chosen = context.select(context.compare("ult", index, last), index, last)
        loaded.append(context.load(context.offset(row, context.mul(chosen, distance)), i8 if is_bool else storage(tile.dtype)))
    context.assign(op.result, [context.trunc(value, i1) for value in loaded] if is_bool else loaded)
