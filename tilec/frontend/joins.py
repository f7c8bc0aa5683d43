"""Builders of `join` and `split`, which need no operation of their own: a choice by position along an axis of two elements.

`split` adds the chosen element and a zero as integers, on the bits of floats, so that no bit changes, of a NaN or zero neither.
"""

from __future__ import annotations

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, describe
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import DTYPES, TileType, boolean, i32


@word("join")
def join(call: Call) -> Term:
    """Two tiles along a new last axis."""
    left, right = call.bind("a b")
    a, b = arithmetic.unify(call.emitter, left, right, call.at)
    return joined(call, a, b)


def joined(call: Call, a: Value, b: Value) -> Value:
    """Two tiles of one type along a new last axis."""
    shape = (*a.tile.shape, 2)
    call.dims(shape)  # the result may have too many elements
    sides = [call.emitter.broadcast(call.emitter.reshape(side, (*shape[:-1], 1), call.at), shape, call.at) for side in (a, b)]
    choice = ops.Select(operands=[_is_at(call, 0, shape), *sides])
    return call.emitter.emit(choice, call.at, sides[0].tile)[0]


@word("split")
def split(call: Call) -> Term:
    """The two tiles along the last axis."""
    (term,) = call.bind("x")
    value = call.emitter.value(term, call.location(0))
    if not value.tile.rank or value.tile.shape[-1] != 2:
        hint = "its last axis has 2 elements: `reshape` or `permute` it first"
        raise call.location(0).error("E0202", f"`split` takes a tile of shape (..., 2), found {describe(value)}", hint=hint)
    return tuple(_element(call, value, position) for position in (0, 1))


def _element(call: Call, value: Value, position: int) -> Value:
    """The elements at a position of the last axis."""
    emitter, dtype, shape = call.emitter, value.tile.dtype, value.tile.shape
    at = _is_at(call, position, shape)
    if dtype == boolean:
        chosen = emitter.binary_op("and", at, value, call.at)
        return _reduced(call, "max", chosen)
    bits = dtype if dtype.is_integer else DTYPES[f"i{dtype.bits}"]
    if bits != dtype:
        value = emitter.emit(ops.Bitcast(operands=[value]), call.at, TileType(bits, shape))[0]
    zero = emitter.constant(0, value.tile, call.at)
    chosen = emitter.emit(ops.Select(operands=[at, value, zero]), call.at, value.tile)[0]
    found = _reduced(call, "sum", chosen)
    return found if bits == dtype else emitter.emit(ops.Bitcast(operands=[found]), call.at, TileType(dtype, shape[:-1]))[0]


def _reduced(call: Call, kind: str, value: Value) -> Value:
    shape = value.tile.shape
    op = ops.Reduce(kind=kind, axis=len(shape) - 1, operands=[value])
    return call.emitter.emit(op, call.at, TileType(value.tile.dtype, shape[:-1]))[0]


def _is_at(call: Call, position: int, shape: tuple[int, ...]) -> Value:
    """Where the index along the last axis, which has two elements, is `position`."""
    index = call.emitter.emit(ops.Iota(), call.at, TileType(i32, (2,)))[0]
    index = call.emitter.broadcast(index, shape, call.at)
    wanted = call.emitter.constant(position, index.tile, call.at)
    return call.emitter.emit(ops.Compare(kind="eq", operands=[index, wanted]), call.at, TileType(boolean, shape))[0]
