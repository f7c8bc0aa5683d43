"""Builders of the words that sort along an axis: one `sort` of the tile IR, with positions as a tile that it moves."""

from __future__ import annotations

from tilec.frontend.arguments import Call, Missing
from tilec.frontend.emitter import Term, describe, tile_type
from tilec.frontend.scans import check_extent
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import DTYPES, TileType, boolean, i32


@word("sort")
def sort(call: Call) -> Term:
    """A tile in order, or several in the order of the first."""
    term, axis, descending = call.bind_optional("x axis", "descending?")
    assert not isinstance(term, Missing) and not isinstance(axis, Missing)
    terms = term if isinstance(term, tuple) else (term,)
    if not terms:
        raise call.location(0).error(
            "E0217", "`sort` of an empty tuple", hint="pass the keys, or a tuple of keys and other tiles"
        )
    values = [_tile(call, one) for one in terms]
    for value in values[1:]:
        if value.tile.shape != values[0].tile.shape:
            hint = "`broadcast_to` gives the tiles of a tuple one shape"
            raise call.location(0).error("E0202", f"`sort` takes tiles of one shape, found {describe(value)}", hint=hint)
    found = _sorted(call, values, call.axis(axis, values[0].tile.rank), call.flag(descending, "descending"))
    return tuple(found) if isinstance(term, tuple) else found[0]


@word("argsort")
def argsort(call: Call) -> Term:
    """The positions of the elements in order."""
    term, axis, descending = call.bind_optional("x axis", "descending?")
    assert not isinstance(term, Missing) and not isinstance(axis, Missing)
    value = _tile(call, term)
    number = call.axis(axis, value.tile.rank)
    return _sorted(call, [value, _positions(call, value, number)], number, call.flag(descending, "descending"))[1]


@word("topk")
def topk(call: Call) -> Term:
    """The largest elements and their positions."""
    term, count, axis = call.bind("x k axis")
    value = _tile(call, term)
    number = call.axis(axis, value.tile.rank)
    extent = value.tile.shape[number]
    if not isinstance(count, int) or isinstance(count, bool):
        raise call.location(1).error("E0203", f"`k` of `topk` is static, found {describe(count)}", hint="pass a constant")
    if not 0 < count <= extent or count & (count - 1):
        hint = f"take 1, 2, 4, ... up to {extent}, and leave the last ones unused"
        raise call.location(1).error("E0203", f"`topk` takes a power of two of elements, found {count}", hint=hint)
    values, positions = _sorted(call, [value, _positions(call, value, number)], number, descending=True)
    # The sum keeps every bit of a number, the maximum the range of positions.
    return _first(call, values, number, count, "sum"), _first(call, positions, number, count, "max")


def _tile(call: Call, term: Term) -> Value:
    """A tile with an axis; E0206, E0217."""
    if isinstance(term, bool | int | float) or not tile_type(term, call.location(0)).rank:
        raise call.location(0).error("E0206", f"`{call.word}` takes a tile, found a scalar", hint="a scalar has no axis")
    return call.emitter.value(term, call.at)


def _sorted(call: Call, values: list[Value], axis: int, descending: bool) -> list[Value]:
    if values[0].tile.dtype == boolean:
        hint = "use `where(condition, 1, 0)`"
        raise call.location(0).error("E0204", f"`{call.word}` takes numbers as keys", hint=hint)
    check_extent(call, values[0], axis)
    op = ops.Sort(axis=axis, descending=descending, operands=values)
    return call.emitter.emit(op, call.at, *(value.tile for value in values))


def _positions(call: Call, value: Value, axis: int) -> Value:
    """The position of each element along an axis."""
    shape = value.tile.shape
    line = call.emitter.emit(ops.Iota(), call.at, TileType(i32, (shape[axis],)))[0]
    thin = tuple(extent if other == axis else 1 for other, extent in enumerate(shape))
    return call.emitter.broadcast(call.emitter.reshape(line, thin, call.at), shape, call.at)


def _first(call: Call, value: Value, axis: int, count: int, kind: str) -> Value:
    """The first elements along an axis, every bit kept: of groups of `count`, the first group and zeros, as integers."""
    shape, dtype, emitter = value.tile.shape, value.tile.dtype, call.emitter
    if count == shape[axis]:
        return value
    bits = dtype if dtype.is_integer else DTYPES[f"i{dtype.bits}"]
    if bits != dtype:
        value = emitter.emit(ops.Bitcast(operands=[value]), call.at, TileType(bits, shape))[0]
    groups = (*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :])
    value = emitter.reshape(value, groups, call.at)
    group = _positions(call, value, axis)
    zero = [emitter.constant(0, TileType(one, groups), call.at) for one in (i32, bits)]
    is_first = emitter.emit(ops.Compare(kind="eq", operands=[group, zero[0]]), call.at, TileType(boolean, groups))[0]
    chosen = emitter.emit(ops.Select(operands=[is_first, value, zero[1]]), call.at, value.tile)[0]
    result = TileType(bits, (*groups[:axis], *groups[axis + 1 :]))
    found = emitter.emit(ops.Reduce(kind=kind, axis=axis, operands=[chosen]), call.at, result)[0]
    return found if bits == dtype else emitter.emit(ops.Bitcast(operands=[found]), call.at, TileType(dtype, result.shape))[0]
