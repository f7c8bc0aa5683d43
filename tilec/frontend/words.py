"""Builders of the words that compute: one function each, from arguments to a term."""

from __future__ import annotations

from math import prod
from typing import Final

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call, Missing
from tilec.frontend.codes import converted
from tilec.frontend.emitter import Term, describe, number_of, tile_type, usable
from tilec.frontend.expressions import matmul, permute
from tilec.frontend.known_ranges import known_range
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.expr import cdiv as exact_cdiv
from tilec.ir.packed import Codes
from tilec.ir.types import DTYPES, PACKED, TileType, boolean, i32


@word("bid", "num_blocks")
def grid_position(call: Call) -> Term:
    """Block index or grid extent on an axis."""
    (axis,) = call.bind("axis")
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < 3:
        raise call.at.error(
            "E0203", f"`{call.word}` takes a grid axis 0, 1 or 2, found {describe(axis)}", hint=f"write `{call.word}(0)`"
        )
    op = ops.BlockId(axis=axis) if call.word == "bid" else ops.NumBlocks(axis=axis)
    call.scope.grid_axes.setdefault(axis, call.at)
    return call.emitter.emit(op, call.at, TileType(i32))[0]


@word("cdiv")
def cdiv(call: Call) -> Term:
    """`(a + (b - 1)) // b`, or the same number without that sum where it may leave the range of the dtype."""
    a, b = call.bind("a b")
    for term in (a, b):
        if isinstance(term, float) or (isinstance(term, Value) and not tile_type(term, call.at).dtype.is_integer):
            raise call.at.error("E0204", f"`cdiv` takes integers, found {describe(term)}", hint="use `ceil(a / b)` on floats")
    if isinstance(b, int) and b < 1:
        raise call.location(1).error("E0205", f"`cdiv` by {b}", hint="the divisor is positive")
    if _sum_may_wrap(call, a, b):
        return _without_sum(call, a, b)
    less_one = arithmetic.binary(call.emitter, "sub", b, 1, call.at)
    return arithmetic.binary(call.emitter, "floordiv", arithmetic.binary(call.emitter, "add", a, less_one, call.at), b, call.at)


def _dtype_limits(call: Call, a: Term, b: Term) -> tuple[int, int]:
    dtypes = [tile_type(term, call.at).dtype for term in (a, b) if isinstance(term, Value)]
    return max(dtypes, key=lambda dtype: dtype.bits).integer_range()


def _sum_may_wrap(call: Call, a: Term, b: Term) -> bool:
    if not isinstance(a, Value) and not isinstance(b, Value):
        return False
    (low, high), left, right = _dtype_limits(call, a, b), known_range(call.scope, a), known_range(call.scope, b)
    return left.low + right.low - 1 < low or left.high + right.high - 1 > high


def _without_sum(call: Call, a: Term, b: Term) -> Term:
    """`a // b + (a % b != 0)`: no sum that leaves the dtype if the result does not."""
    emitter, at = call.emitter, call.at
    quotient = arithmetic.binary(emitter, "floordiv", a, b, at)
    rest = arithmetic.binary(emitter, "mod", a, b, at)
    more = emitter.cast(arithmetic.compare(emitter, "ne", rest, 0, at), tile_type(quotient, at).dtype, at)
    result = arithmetic.binary(emitter, "add", quotient, more, at)
    known = [emitter.host(term) for term in (a, b)]
    if isinstance(result, Value) and known[0] is not None and known[1] is not None:
        emitter.know(result, exact_cdiv(known[0], known[1]))
    return result


@word("arange")
def arange(call: Call) -> Term:
    """Positions 0, 1, ... as i32."""
    (n,) = call.bind("n")
    shape = call.dims(n, "`arange`")
    if len(shape) != 1:
        raise call.at.error("E0203", "`arange` takes one extent", hint="write `arange(n)` and `reshape`")
    return call.emitter.emit(ops.Iota(), call.at, TileType(i32, shape))[0]


@word("full")
def full(call: Call) -> Term:
    """A tile of one value."""
    shape, value, dtype = call.bind("shape value dtype")
    extents, element = call.dims(shape), call.dtype(dtype)
    if isinstance(value, Value):
        if tile_type(value, call.at).shape:
            raise call.location(1).error("E0206", f"`full` takes a scalar, found {describe(value)}", hint="use `broadcast_to`")
        return call.emitter.broadcast(call.emitter.cast(value, element, call.at), extents, call.at)
    number = number_of(value, call.location(1))
    return call.emitter.constant(number, TileType(element, extents), call.at)


@word("zeros")
def zeros(call: Call) -> Term:
    """A tile of zeros."""
    shape, dtype = call.bind("shape dtype")
    element = call.dtype(dtype)
    return call.emitter.constant(ops.convert(element, 0), TileType(element, call.dims(shape)), call.at)


@word("where")
def where(call: Call) -> Term:
    """Element-wise choice."""
    condition, on_true, on_false = call.bind("condition on_true on_false")
    mask = call.emitter.value(condition, call.location(0))
    if mask.tile.dtype != boolean:
        raise call.location(0).error("E0210", f"the condition of `where` is a bool tile, found {describe(condition)}",
                           hint="compare it: `x != 0`")  # fmt: skip
    a, b = arithmetic.unify(call.emitter, on_true, on_false, call.at)
    shape = arithmetic.common_shape(mask.tile.shape, a.tile.shape, call.at)
    operands = [call.emitter.broadcast(value, shape, call.at) for value in (mask, a, b)]
    return call.emitter.emit(ops.Select(operands=operands), call.at, operands[1].tile)[0]


@word("maximum", "minimum")
def extremum(call: Call) -> Term:
    """Element-wise maximum or minimum."""
    a, b = call.bind("a b")
    return arithmetic.binary(call.emitter, call.word[:3], a, b, call.at)


@word("mulhi")
def mulhi(call: Call) -> Term:
    """Upper half of the product of two integers."""
    left, right = call.bind("a b")
    a, b = arithmetic.unify(call.emitter, left, right, call.at)
    dtype = a.tile.dtype
    if not dtype.is_integer:
        hint = "multiply floats with `*`" if dtype.is_float else "use `&` for both"
        raise call.at.error("E0204", f"`mulhi` takes integers, not {dtype}", hint=hint)
    return call.emitter.binary_op("mulhi", a, b, call.at)


@word("builtins.min", "builtins.max")
def builtin_extremum(call: Call) -> Term:
    """Python's `min` and `max` of scalars."""
    if len(call.arguments) < 2 or call.keywords:
        raise call.at.error("E0113", f"`{call.word[9:]}` takes two or more scalars here",
                     hint=f"to reduce a tile, import it: `from tilec import {call.word[9:]}`")  # fmt: skip
    result = usable(call.arguments[0])
    for term in call.arguments[1:]:
        for side in (result, term):
            if isinstance(side, Value) and tile_type(side, call.at).shape:
                raise call.at.error("E0206", f"`{call.word[9:]}` takes scalars here, found {describe(side)}",
                             hint=f"use `{call.word[9:]}imum(a, b)` on tiles")  # fmt: skip
        result = arithmetic.binary(call.emitter, call.word[9:], result, usable(term), call.at)
    return result


_NO_DIGITS: Final = frozenset(sign + text for sign in ("", "+", "-") for text in ("inf", "infinity", "nan"))


@word("builtins.float", "builtins.int", "builtins.bool")
def conversion(call: Call) -> Term:
    """Python's conversions of constants; `float("inf")` and `float("nan")` are two."""
    (term,) = call.bind("value")
    name = call.word[9:]
    if name == "float" and isinstance(term, str) and term.lower() in _NO_DIGITS:
        return float(term)
    if not isinstance(term, bool | int | float):
        raise call.at.error(
            "E0203", f"`{name}` converts constants, found {describe(term)}", hint="use `.astype(...)` or `i32(...)`"
        )
    try:
        return {"float": float, "int": int, "bool": bool}[name](term)
    except (OverflowError, ValueError):
        raise call.at.error("E0205", f"`{name}({term})` has no value") from None


@word("builtins.len")
def length(call: Call) -> Term:
    """Length of a tuple."""
    (term,) = call.bind("value")
    if not isinstance(term, tuple):
        raise call.at.error("E0217", f"`len` takes a tuple, found {describe(term)}", hint="use `x.shape[0]`")
    return len(term)


@word("abs", "builtins.abs", "builtins.round", *arithmetic.FUNCTIONS, *(f"math.{name}" for name in arithmetic.FUNCTIONS))
def elementwise(call: Call) -> Term:
    """A function of each element."""
    name = call.word.removeprefix("builtins.").removeprefix("math.")
    approximated = call.word in arithmetic.APPROXIMATED
    (term,), fast = _approximated(call, "x") if approximated else (call.bind("x"), False)
    if call.word.startswith("math.") and isinstance(term, Value):
        raise call.at.error("E0203", f"`{call.word}` takes constants", hint=f"use `tilec.{name}` on tiles")
    return arithmetic.function(call.emitter, name, term, call.location(0), fast=fast)


@word("pow")
def power(call: Call) -> Term:
    """`x ** y`."""
    (base, exponent), fast = _approximated(call, "x y")
    return arithmetic.binary(call.emitter, "pow", base, exponent, call.at, fast=fast)


def _approximated(call: Call, positional: str) -> tuple[list[Term], bool]:
    """Required arguments, and whether `fast=True` asks for the chip's approximation; E0203."""
    *found, fast = call.bind_optional(positional, "fast?")
    if not isinstance(fast, bool | Missing):
        raise call.at.error("E0203", f"`fast` is `True` or `False`, found {describe(fast)}", hint="write `fast=True`")
    return [term for term in found if not isinstance(term, Missing)], fast is True


@word("mma")
def mma(call: Call) -> Term:
    """Matrix product with an accumulator; E0203 for a `tf32` that is no truth value."""
    a, b, acc, tf32 = call.bind_optional("a b acc", "tf32?")
    if not isinstance(tf32, bool | Missing):
        raise call.at.error("E0203", f"`tf32` is `True` or `False`, found {describe(tf32)}", hint="write `tf32=True`")
    assert not isinstance(a, Missing) and not isinstance(b, Missing) and not isinstance(acc, Missing)
    return matmul(call.scope, a, b, call.node, acc, tf32=tf32 is True)


@word("astype")
def astype(call: Call) -> Term:
    """Convert the dtype."""
    term, wanted = call.bind("x dtype")
    dtype = call.dtype(wanted)
    if isinstance(term, Codes) or dtype in PACKED.values():
        return converted(call.emitter, term, dtype, call.at)
    return call.emitter.cast(term, dtype, call.at)


@word("bitcast")
def bitcast(call: Call) -> Term:
    """The same bits as another dtype of the same width."""
    term, wanted = call.bind("x dtype")
    value, dtype = call.emitter.value(term, call.location(0)), call.dtype(wanted)
    source = value.tile.dtype
    if "b" in (source.kind, dtype.kind):
        hint = "convert it with `.astype(i32)` first" if source.kind == "b" else "compare the bits: `x != 0`"
        raise call.at.error("E0201", f"`bitcast` takes numbers: {source} as {dtype}", hint=hint)
    if source.bits != dtype.bits:
        same = ", ".join(other.name for other in DTYPES.values() if other.bits == source.bits and other != source)
        widths = f"{source} has {source.bits} bits, {dtype} has {dtype.bits}"
        others = f"take a dtype of {source.bits} bits ({same})" if same else f"no other dtype has {source.bits} bits"
        hint = f"{others}, or convert the value with `.astype({dtype})`"
        raise call.at.error("E0201", f"`bitcast` keeps the width: {widths}", hint=hint)
    if source == dtype:
        return value
    return call.emitter.emit(ops.Bitcast(operands=[value]), call.at, TileType(dtype, value.tile.shape))[0]


@word("reshape")
def reshape(call: Call) -> Term:
    """Changes the shape; one extent may be inferred (-1)."""
    term, shape = call.bind("x shape")
    value = call.emitter.value(term, call.at)
    extents = call.dims(shape, infer=True)
    if extents.count(-1) > 1:
        raise call.at.error("E0203", "only one extent can be -1", hint="write the other extents out")
    if -1 in extents:
        known = prod(e for e in extents if e != -1)
        extents = tuple(value.tile.size // known if e == -1 else e for e in extents)
    if prod(extents) != value.tile.size:
        raise call.at.error(
            "E0202", f"{describe(value)} does not reshape to {extents}", hint="the number of elements stays the same"
        )
    return call.emitter.reshape(value, extents, call.at)


@word("permute")
def permutation(call: Call) -> Term:
    """Reorder axes."""
    term, axes = call.bind("x axes")
    value = call.emitter.value(term, call.at)
    items = axes if isinstance(axes, tuple) else (axes,)
    order = tuple(call.axis(item, value.tile.rank) for item in items)
    if sorted(order) != list(range(value.tile.rank)):
        raise call.at.error("E0202", f"`permute` names each of the {value.tile.rank} axes once", hint="for example `(1, 0)`")
    return permute(call.scope, value, order, call.node)


@word("broadcast_to")
def broadcast_to(call: Call) -> Term:
    """Repeats along axes of extent 1."""
    term, shape = call.bind("x shape")
    return call.emitter.broadcast(call.emitter.value(term, call.at), call.dims(shape), call.at)
