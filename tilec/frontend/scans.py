"""Builders of the words that combine elements along an axis in order, `flip` and `butterfly`: composed of butterflies.

A scan of `n` elements keeps two tiles: the prefix of each element within its group, and its total. A group of `2 d`
is made of two of `d`: each element gets the other group's total by a butterfly, and where its position has the bit `d`, the
other group precedes it. The tree is the same for every layout, so that machine code computes what the interpreter computes. In
natural layouts a thread has `INNER` neighbors of a row: these are combined first, so that only their totals travel to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tilec.frontend.arguments import Call, Missing
from tilec.frontend.emitter import Number, Term, describe, tile_type
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.layouts.blocked_layouts import FIRST_DIGIT
from tilec.ir.types import DType, TileType, boolean, f32, i32

INNER: Final = FIRST_DIGIT
"""Neighbors that are combined first, before the totals of all such groups are."""

Values = list[Value]
Combine = Callable[[Values, Values], Values]


@word("butterfly")
def butterfly(call: Call) -> Term:
    """Elements whose positions differ in the bits of a mask."""
    term, axis, mask = call.bind("x axis mask")
    value, number = _tile(call, term), call.axis(axis, tile_type(term, call.location(0)).rank)
    extent = check_extent(call, value, number)
    if not isinstance(mask, int) or isinstance(mask, bool):
        raise call.at.error("E0203", f"the mask of `butterfly` is static, found {describe(mask)}", hint="pass an integer")
    if not 0 <= mask < extent:
        hint = f"positions along an axis of {extent} have masks from 0 to {extent - 1}"
        raise call.at.error("E0203", f"`butterfly` has no partner at `i ^ {mask}`", hint=hint)
    return moved(call, value, number, mask)


@word("flip")
def flip(call: Call) -> Term:
    """The elements of an axis in reverse order."""
    term, axis = call.bind("x axis")
    value, number = _tile(call, term), call.axis(axis, tile_type(term, call.location(0)).rank)
    return moved(call, value, number, check_extent(call, value, number) - 1)


@word("cumsum", "cumprod", "cummax", "cummin")
def cumulative(call: Call) -> Term:
    """The sum, product, maximum or minimum of all elements up to each."""
    term, axis, reverse, exclusive = call.bind_optional("x axis", "reverse? exclusive?")
    assert not isinstance(term, Missing) and not isinstance(axis, Missing)
    value, number = _tile(call, term), call.axis(axis, tile_type(term, call.location(0)).rank)
    dtype, without_own = value.tile.dtype, call.flag(exclusive, "exclusive")
    if dtype == boolean:
        hint = "use `where(condition, 1, 0)`"
        raise call.location(0).error("E0204", f"`{call.word}` takes numbers", hint=hint)
    if without_own and call.word in ("cummax", "cummin"):
        hint = f"`{call.word}` has no value before the first element"
        raise call.at.error("E0203", f"`exclusive` is a parameter of `cumsum` and `cumprod`, not `{call.word}`", hint=hint)
    check_extent(call, value, number)
    wide = f32 if dtype.is_float and call.word in _KINDS_IN_F32 else dtype
    value, kind = _cast(call, value, wide), _KINDS[call.word]

    def combine(before: Values, after: Values) -> Values:
        return [call.emitter.binary_op(kind, before[0], after[0], call.at)]

    scan_ = Scan(call, number, combine, call.flag(reverse, "reverse"), True, _identity(call.word, wide, without_own))
    (result,) = scan_.exclusive([value]) if without_own else scan_.inclusive([value])
    return _cast(call, result, dtype)


_KINDS: Final = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}
_KINDS_IN_F32: Final = ("cumsum", "cumprod")


def _identity(word: str, dtype: DType, is_first: bool) -> Number | None:
    """What precedes the first element. Of sums it is the first result if `is_first`, else the zero that keeps the sign of any
    zero added to it. No float is one of `max`, which a number wins over a NaN."""
    if word in ("cummax", "cummin"):
        return None if dtype.is_float else dtype.integer_range()[word == "cummin"]
    number = 1 if word == "cumprod" else 0
    return number if not dtype.is_float else float(number) if number or is_first else -0.0


@word("scan")
def scan(call: Call) -> Term:
    """All elements up to each, combined by the author's function."""
    term, axis, reverse = call.bind_optional("x axis", "reverse?")
    assert not isinstance(term, Missing) and not isinstance(axis, Missing)
    terms = term if isinstance(term, tuple) else (term,)
    if not terms:
        raise call.location(1).error("E0217", "`scan` of an empty tuple", hint="pass a tile, or a tuple of tiles")
    values = [_tile(call, one) for one in terms]
    shape = values[0].tile.shape
    for value in values:
        if value.tile.shape != shape:
            hint = "`broadcast_to` gives the tiles of a tuple one shape"
            raise call.location(1).error("E0202", f"`scan` takes tiles of one shape, found {describe(value)}", hint=hint)
    number = call.axis(axis, len(shape))
    check_extent(call, values[0], number)
    is_tuple = isinstance(term, tuple)

    def combine(before: Values, after: Values) -> Values:
        assert call.function is not None
        found = call.function(tuple(before) if is_tuple else before[0], tuple(after) if is_tuple else after[0])
        return _like(call, found, before, is_tuple)

    found = Scan(call, number, combine, call.flag(reverse, "reverse"), False, None).inclusive(values)
    return tuple(found) if is_tuple else found[0]


def _like(call: Call, found: Term, wanted: Values, is_tuple: bool) -> Values:
    """What the author's function returned, which has the types of its arguments; E0201, E0202, E0217."""
    items = found if isinstance(found, tuple) and is_tuple else (found,)
    if isinstance(found, tuple) != is_tuple or len(items) != len(wanted):
        needed = f"a tuple of {len(wanted)}" if is_tuple else "a tile"
        hint = "it takes two arguments like `x` and returns one like them"
        raise call.location(0).error("E0217", f"the function of `scan` returns {describe(found)}, not {needed}", hint=hint)
    out: Values = []
    for item, value in zip(items, wanted, strict=True):
        if not isinstance(item, Value):
            item = call.emitter.broadcast(call.emitter.cast(item, value.tile.dtype, call.at), value.tile.shape, call.at)
        if item.type != value.type:
            code = "E0201" if tile_type(item, call.location(0)).dtype != value.tile.dtype else "E0202"
            message = f"the function of `scan` returns {describe(item)} for {describe(value)}"
            raise call.location(0).error(code, message, hint="each result has the dtype and the shape of its argument")
        out.append(item)
    return out


@dataclass(frozen=True)
class Scan:
    """A scan of one or several tiles along an axis. `identity`: what may precede the first element, if there is such a value;
    tiles are then one. `commutes`: whether the order of the two arguments of `combine` does not matter."""

    call: Call
    axis: int
    combine: Combine
    reverse: bool
    commutes: bool
    identity: Number | None

    def inclusive(self, values: Values) -> Values:
        return self._whole(values, own=True)

    def exclusive(self, values: Values) -> Values:
        """Without the element itself. There is an identity."""
        return self._whole(values, own=False)

    def _whole(self, values: Values, own: bool) -> Values:
        shape, axis = values[0].tile.shape, self.axis
        if shape[axis] <= INNER:
            return self._prefixes(values, axis, own)[0]
        groups = (*shape[:axis], shape[axis] // INNER, INNER, *shape[axis + 1 :])
        prefixes, totals = self._prefixes([self._reshaped(value, groups) for value in values], axis + 1, own, totals=True)
        before = self._prefixes([self._any_of(total, axis + 1) for total in totals], axis, own=False)[0]
        one_each = (*groups[: axis + 1], 1, *groups[axis + 2 :])
        before = [self.call.emitter.broadcast(self._reshaped(value, one_each), groups, self.call.at) for value in before]
        found = self.combine(before, prefixes)
        if self.identity is None:
            found = self._where(self._at(groups, axis, "eq", self._first(groups[axis])), prefixes, found)
        return [self._reshaped(value, shape) for value in found]

    def _prefixes(self, values: Values, axis: int, own: bool, *, totals: bool = False) -> tuple[Values, Values]:
        """The prefix of each element along an axis, itself included if `own`, and the total of all if `totals`. Without an
        identity, the first element of prefixes that exclude it may be anything."""
        shape, total = values[0].tile.shape, values
        prefix = values if own or self.identity is None else [self._constant(value) for value in values]
        bits = [1 << bit for bit in range(shape[axis].bit_length() - 1)]
        for bit in bits:
            other = [moved(self.call, value, axis, bit) for value in total]
            is_after = self._at_bit(shape, axis, bit)
            joined = self._joined(total, other, is_after) if totals or bit != bits[-1] or (own and bit == 1) else total
            if own and bit == 1:
                found = joined
            elif own or self.identity is not None or bit > 1:
                found = self.combine(other, prefix)
            else:
                found = other
            if not own and self.identity is None and bit > 1:
                found = self._where(self._is_group_start(shape, axis, bit), other, found)
            prefix = self._where(is_after, found, prefix)
            total = joined
        return prefix, total

    def _joined(self, total: Values, other: Values, is_after: Value) -> Values:
        """The total of two groups, in the order of their positions."""
        if self.commutes:
            return self.combine(total, other)
        return self.combine(self._where(is_after, other, total), self._where(is_after, total, other))

    def _first(self, extent: int) -> int:
        return extent - 1 if self.reverse else 0

    def _at_bit(self, shape: tuple[int, ...], axis: int, bit: int) -> Value:
        """Where the group of an element comes after its partner's."""
        return self._at(shape, axis, "eq" if self.reverse else "ne", 0, bit)

    def _is_group_start(self, shape: tuple[int, ...], axis: int, bit: int) -> Value:
        """Where an element is the first of its group of `bit`."""
        return self._at(shape, axis, "eq", self._first(bit), bit - 1)

    def _at(self, shape: tuple[int, ...], axis: int, kind: str, number: int, mask: int = -1) -> Value:
        """Where the position along an axis, or the bits `mask` of it, compare with a number."""
        call, type = self.call, TileType(i32, (shape[axis],))
        position = call.emitter.emit(ops.Iota(), call.at, type)[0]
        if mask != -1:
            position = call.emitter.binary_op("and", position, call.emitter.constant(mask, type, call.at), call.at)
        operands = [position, call.emitter.constant(number, type, call.at)]
        found = call.emitter.emit(ops.Compare(kind=kind, operands=operands), call.at, TileType(boolean, type.shape))[0]
        along = tuple(extent if other == axis else 1 for other, extent in enumerate(shape))
        return call.emitter.broadcast(self._reshaped(found, along), shape, call.at)

    def _where(self, condition: Value, on_true: Sequence[Value], on_false: Sequence[Value]) -> Values:
        choices = zip(on_true, on_false, strict=True)
        return [
            self.call.emitter.emit(ops.Select(operands=[condition, a, b]), self.call.at, a.tile)[0] if a is not b else a
            for a, b in choices
        ]

    def _any_of(self, value: Value, axis: int) -> Value:
        """The element that all along an axis equal."""
        shape = (*value.tile.shape[:axis], *value.tile.shape[axis + 1 :])
        op = ops.Reduce(kind="max", axis=axis, operands=[value])
        return self.call.emitter.emit(op, self.call.at, TileType(value.tile.dtype, shape))[0]

    def _constant(self, value: Value) -> Value:
        assert self.identity is not None
        return self.call.emitter.constant(self.identity, value.tile, self.call.at)

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.call.emitter.reshape(value, shape, self.call.at)


def moved(call: Call, value: Value, axis: int, mask: int) -> Value:
    """Element `i ^ mask` along an axis."""
    if not mask:
        return value
    return call.emitter.emit(ops.Butterfly(axis=axis, mask=mask, operands=[value]), call.at, value.tile)[0]


_PADS: Final = {"cumsum": " 0", "cumprod": " 1", "cummax": " -inf", "cummin": " inf"}
"""What changes no result of a word."""


def check_extent(call: Call, value: Value, axis: int) -> int:
    """The extent of an axis, which is a power of two; E0202."""
    extent = value.tile.shape[axis]
    if extent & (extent - 1):
        hint = f"load {1 << extent.bit_length()} elements with `pad=`{_PADS.get(call.word, '')}"
        message = f"`{call.word}` takes a power of two of elements, axis {axis} has {extent}"
        raise call.location(0).error("E0202", message, hint=hint)
    return extent


def _tile(call: Call, term: Term) -> Value:
    """A tile with an axis; E0206, E0217."""
    if isinstance(term, bool | int | float) or not tile_type(term, call.location(0)).rank:
        raise call.location(0).error("E0206", f"`{call.word}` takes a tile, found a scalar", hint="a scalar has no axis")
    return call.emitter.value(term, call.at)


def _cast(call: Call, value: Value, dtype: DType) -> Value:
    return call.emitter.value(call.emitter.cast(value, dtype, call.at), call.at)
