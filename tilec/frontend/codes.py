"""Tiles of packed dtypes: elements of 4 bits, as the codes that are stored.

In: a tile of u8 whose elements are codes, 0 to 15, or a tile of numbers. Out: the numbers that codes stand for, and the codes
of numbers. Nothing else is done with codes: words refuse them, and name `.astype`.
"""

from __future__ import annotations

from typing import Final

from tilec.frontend import arithmetic
from tilec.frontend.emitter import At, Emitter, Number, Term
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.packed import Codes
from tilec.ir.types import PACKED, DType, TileType, f16, f32, i8, i32, u8, u16

F4_NUMBERS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of f4e2m1 by code; bit 3 is the sign (OCP MX specification v1.0, table 5)."""
_BIAS: Final = 16384.0
"""2^14: exponents of f16 have a bias of 15, those of f4e2m1 of 1."""


def to_numbers(emitter: Emitter, codes: Codes, dtype: DType, at: At) -> Value:
    """The numbers as a dtype: exact where it has them, else by the rules of a cast from i8, u8 or f16."""
    match codes.dtype.kind:
        case "u":
            return emitter.cast(codes.value, dtype, at)
        case "i":
            return emitter.cast(_signed(emitter, codes.value, at), dtype, at)
        case _:
            return emitter.cast(_floats(emitter, codes.value, at), dtype, at)


def of_numbers(emitter: Emitter, value: Value, dtype: DType, at: At) -> Codes:
    """The codes of numbers. Integers keep their low 4 bits; floats become integers toward zero, at most the ends of the range,
    and NaN 0. As f4e2m1 numbers round to nearest even, at most 6 in magnitude, and NaN is 6."""
    if dtype.is_float:
        return Codes(_rounded(emitter, emitter.cast(value, f32, at), at), dtype)
    if value.tile.dtype.is_float:
        low, high = dtype.integer_range()
        value = _with(emitter, "min", _with(emitter, "max", emitter.cast(value, i32, at), low, at), high, at)
    return Codes(_with(emitter, "and", emitter.cast(value, u8, at), 15, at), dtype)


def code_of(number: Number, dtype: DType, at: At) -> int:
    """The code of a constant; E0205 if the dtype lacks it."""
    if dtype.is_float:
        if abs(number) in F4_NUMBERS:
            sign = 8 if number < 0 or str(float(number)).startswith("-") else 0
            return F4_NUMBERS.index(abs(number)) + sign
        raise at.error("E0205", f"`{number}` is no {dtype}", hint=f"{dtype} has {', '.join(f'{one:g}' for one in F4_NUMBERS)}")
    low, high = dtype.integer_range()
    if isinstance(number, bool) or (isinstance(number, float) and not number.is_integer()) or not low <= number <= high:
        raise at.error("E0205", f"`{number}` does not fit {dtype}", hint=f"{dtype} has {low} to {high}")
    return int(number) & 15


def instead(dtype: DType) -> DType:
    """The narrowest dtype that has all numbers of a packed one."""
    return {"u": u8, "i": i8}.get(dtype.kind, f16)


def _signed(emitter: Emitter, codes: Value, at: At) -> Value:
    return _with(emitter, "sub", _with(emitter, "xor", emitter.cast(codes, i8, at), 8, at), 8, at)


def _floats(emitter: Emitter, codes: Value, at: At) -> Value:
    """Sign, exponent and mantissa where an f16 has them, then times the difference of the biases: exact, as 0.5 is the
    subnormal 2^-15 before."""
    wide = emitter.cast(codes, u16, at)
    sign = _with(emitter, "shl", _with(emitter, "and", wide, 8, at), 12, at)
    rest = _with(emitter, "shl", _with(emitter, "and", wide, 7, at), 9, at)
    bits = emitter.binary_op("or", sign, rest, at)
    return _with(emitter, "mul", emitter.emit(ops.Bitcast(operands=[bits]), at, TileType(f16, codes.tile.shape))[0], _BIAS, at)


_STEPS: Final = (("gt", 0.25), ("ge", 0.75), ("gt", 1.25), ("ge", 1.75), ("gt", 2.5), ("ge", 3.5), ("gt", 5.0))
"""From which magnitude on a number has a higher code: halfway between neighbours, of which it takes the even one."""


def _rounded(emitter: Emitter, value: Value, at: At) -> Value:
    shape = value.tile.shape
    bits = emitter.emit(ops.Bitcast(operands=[value]), at, TileType(i32, shape))[0]
    magnitude = _with(emitter, "and", bits, (1 << 31) - 1, at)
    magnitude = emitter.emit(ops.Bitcast(operands=[magnitude]), at, TileType(f32, shape))[0]
    code = emitter.constant(0, TileType(u8, shape), at)
    for kind, limit in _STEPS:
        above = emitter.value(arithmetic.compare(emitter, kind, magnitude, limit, at), at)
        code = emitter.binary_op("add", code, emitter.cast(above, u8, at), at)
    is_nan = emitter.value(arithmetic.compare(emitter, "ne", value, value, at), at)
    sign = emitter.cast(emitter.value(arithmetic.compare(emitter, "lt", bits, 0, at), at), u8, at)
    signed = emitter.binary_op("or", code, _with(emitter, "shl", sign, 3, at), at)
    largest = emitter.constant(len(F4_NUMBERS) - 1, code.tile, at)
    return emitter.emit(ops.Select(operands=[is_nan, largest, signed]), at, code.tile)[0]


def _with(emitter: Emitter, kind: str, value: Value, number: Number, at: At) -> Value:
    """An operation on a tile and a number."""
    return emitter.binary_op(kind, value, emitter.constant(number, value.tile, at), at)


def converted(emitter: Emitter, term: Term, dtype: DType, at: At) -> Value | Codes:
    """`.astype` from or to a packed dtype."""
    if isinstance(term, Codes):
        if term.dtype == dtype:
            return term
        if dtype not in PACKED.values():
            return to_numbers(emitter, term, dtype, at)
        term = to_numbers(emitter, term, instead(term.dtype), at)
    return of_numbers(emitter, emitter.value(term, at), dtype, at)
