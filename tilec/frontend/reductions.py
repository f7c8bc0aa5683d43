"""Builders of the words that reduce a tile: over an axis, several axes or all, one `reduce` of the tile IR for each axis."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tilec.frontend.arguments import Call, Missing
from tilec.frontend.emitter import Term, tile_type, usable
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import TileType, boolean, f32, i32

_OF_BOOLEANS: Final = {"any": "max", "all": "min"}
"""Kinds of a reduction of booleans: False is below True."""


@word("sum", "max", "min")
def reduction(call: Call) -> Term:
    """Reduces axes of numbers."""
    if len(call.arguments) == 2 and call.word in ("max", "min") and isinstance(call.arguments[0], int | float):
        raise call.at.error("E0113", f"`{call.word}` reduces a tile here", hint=f"use `{call.word}imum(a, b)` on scalars")
    term, axis, keepdims = call.bind_optional("x axis?", "keepdims?")
    value = _numbers(call, term)
    dtype, axes = value.tile.dtype, _axes(call, axis, value.tile.rank)
    narrow = call.word == "sum" and dtype.is_float and dtype != f32 and len(axes) > 1
    if narrow:  # the sums of the first axis are not rounded before they are added
        value = call.emitter.cast(value, f32, call.at)
    result = _reduced(call, call.word, value, axes, keepdims)
    return call.emitter.cast(result, dtype, call.at) if narrow else result


@word("any", "all")
def truth(call: Call) -> Term:
    """Reduces axes of booleans."""
    term, axis, keepdims = call.bind_optional("x axis?", "keepdims?")
    assert not isinstance(term, Missing)
    if _is_scalar(call, term):
        raise call.location(0).error("E0206", f"`{call.word}` reduces a tile, found a scalar", hint="use the condition itself")
    type = tile_type(term, call.location(0))
    if type.dtype != boolean:
        raise call.location(0).error(
            "E0204", f"`{call.word}` takes booleans, not {type.dtype}", hint="compare the tile: `x != 0`"
        )
    value = call.emitter.value(term, call.at)
    return _reduced(call, _OF_BOOLEANS[call.word], value, _axes(call, axis, type.rank), keepdims)


@word("argmax", "argmin")
def position(call: Call) -> Term:
    """Position along one axis."""
    term, axis = call.bind_optional("x axis?")
    value = _numbers(call, term)
    if isinstance(axis, Missing) and value.tile.rank > 1:
        raise call.at.error(
            "E0113",
            f"`{call.word}` of a tile with {value.tile.rank} axes needs `axis=`",
            hint="name the axis, or `reshape` to one axis first",
        )
    return _reduce(call, call.word, value, 0 if isinstance(axis, Missing) else call.axis(axis, value.tile.rank))


def _numbers(call: Call, term: Term | Missing) -> Value:
    """The tile of numbers that is reduced; E0204, E0206."""
    assert not isinstance(term, Missing)
    if _is_scalar(call, term):
        hint = f"use `{call.word}imum(a, b)`" if call.word in ("max", "min") else "a scalar needs no reduction"
        raise call.location(0).error("E0206", f"`{call.word}` reduces a tile, found a scalar", hint=hint)
    if tile_type(term, call.location(0)).dtype.kind == "b":
        hint = {"max": "use `any(x)`", "min": "use `all(x)`"}.get(call.word, "use `where(condition, 1, 0)`")
        raise call.location(0).error("E0204", f"`{call.word}` takes numbers", hint=hint)
    return call.emitter.value(term, call.at)


def _is_scalar(call: Call, term: Term) -> bool:
    """Whether a term is a number or a tile without axes; E0217 if it is neither that nor a tile."""
    return isinstance(term, bool | int | float) or not tile_type(term, call.location(0)).rank


def _axes(call: Call, term: Term | Missing, rank: int) -> tuple[int, ...]:
    """The reduced axes in ascending order: one, those of a tuple, or all for None; E0203."""
    if isinstance(term, Missing) or term is None:
        return tuple(range(rank))
    axes = sorted(call.axis(usable(item), rank) for item in (term if isinstance(term, tuple) else (term,)))
    if not axes:
        raise call.at.error("E0203", f"`{call.word}` over no axis", hint="name an axis, or leave `axis` out for all of them")
    for first, second in pairwise(axes):
        if first == second:
            raise call.at.error("E0203", f"`{call.word}` names axis {first} twice", hint="name each axis once")
    return tuple(axes)


def _reduced(call: Call, kind: str, value: Value, axes: tuple[int, ...], keepdims: Term | Missing) -> Value:
    """One reduction after the other, from the last axis, so that the numbers of the others stay."""
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(value.tile.shape))
    for axis in reversed(axes):
        value = _reduce(call, kind, value, axis)
    return call.emitter.reshape(value, kept, call.at) if call.flag(keepdims, "keepdims") else value


def _reduce(call: Call, kind: str, value: Value, axis: int) -> Value:
    shape = value.tile.shape[:axis] + value.tile.shape[axis + 1 :]
    type = TileType(i32 if kind.startswith("arg") else value.tile.dtype, shape)
    return call.emitter.emit(ops.Reduce(kind=kind, axis=axis, operands=[value]), call.at, type)[0]
