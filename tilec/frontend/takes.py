"""Builder of `take`, which moves elements of a tile by computed positions."""

from __future__ import annotations

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, shape_text, tile_type
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import TileType, i32


@word("take")
def take(call: Call) -> Term:
    """The elements at given positions along an axis; the other axes broadcast."""
    term, indices, axis = call.bind("x indices axis")
    value, positions = _tile(call, term, 0), _tile(call, indices, 1)
    shape, wanted = value.tile.shape, positions.tile.shape
    number = call.axis(axis, len(shape))
    if positions.tile.dtype != i32:
        hint = "convert them with `.astype(i32)`"
        raise call.location(1).error("E0204", f"the indices of `take` are i32, found {positions.tile.dtype}", hint=hint)
    if len(wanted) != len(shape):
        missing = ", ".join(":" if other == number else "None" for other in range(len(shape)))
        hint = f"insert axes of extent 1: `[{missing}]`" if len(wanted) == 1 else "give one index for each element to take"
        message = f"the indices of `take` have the axes of the tile: {shape_text(wanted)} for {shape_text(shape)}"
        raise call.location(1).error("E0202", message, hint=hint)
    others = arithmetic.common_shape(_at(shape, number, 1), _at(wanted, number, 1), call.location(1))
    result = call.dims(_at(others, number, wanted[number]))
    value = call.emitter.broadcast(value, call.dims(_at(others, number, shape[number])), call.at)
    positions = call.emitter.broadcast(positions, result, call.at)
    op = ops.Take(axis=number, operands=[value, positions])
    return call.emitter.emit(op, call.at, TileType(value.tile.dtype, result))[0]


def _tile(call: Call, term: Term, position: int) -> Value:
    """A tile with an axis; E0206, E0217."""
    at = call.location(position)
    if isinstance(term, bool | int | float) or not tile_type(term, at).rank:
        what, hint = "a tile", "a scalar has no axis"
        if position:
            what, hint = "a tile of indices", "make a tile of them: `full(shape, index, i32)`"
        raise at.error("E0206", f"`take` takes {what}, found a scalar", hint=hint)
    return call.emitter.value(term, at)


def _at(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    """A shape with another extent on an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])
