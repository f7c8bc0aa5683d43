"""The value of tile IR operations on single Python numbers, written from the table in `tilec/ir/SEMANTICS.md` alone.

Shares no code with the compiler: integers are Python's, floats are doubles rounded by `struct`.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64}
FLOATS = ("f32", "f16", "bf16")
Number = int | float | bool


def limits(dtype: str) -> tuple[int, int]:
    """The minimum and maximum of a dtype."""
    bits = BITS[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "i" else (0, (1 << bits) - 1)


def low_bits(value: int, dtype: str) -> int:
    value &= (1 << BITS[dtype]) - 1
    return value - (1 << BITS[dtype]) if value > limits(dtype)[1] else value


def single(value: float) -> float:
    """Rounds to f32, ties to even."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def rounded(value: float, dtype: str) -> float:
    """Rounds an f32 to a float dtype, ties to even."""
    if dtype == "f16":
        try:
            return struct.unpack("<e", struct.pack("<e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype == "bf16" and math.isfinite(value):
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        upper, lower = bits >> 16, bits & 0xFFFF
        upper += lower > 0x8000 or (lower == 0x8000 and upper & 1)
        return struct.unpack("<f", struct.pack("<I", upper << 16))[0]
    return value


def integer_as_single(value: int) -> float:
    """Converts an integer to f32 with one rounding; going through a double could round twice."""
    if abs(value) < 1 << 53:
        return single(float(value))
    exact, step = Fraction(value), 1 << (abs(value).bit_length() - 24)
    rounded_down = value // step * step
    remainder = exact - rounded_down
    rounds_up = remainder * 2 > step or (remainder * 2 == step and (rounded_down // step) % 2 == 1)
    return float(rounded_down + step if rounds_up else rounded_down)


def integer_binary(kind: str, a: int, b: int, dtype: str) -> int:
    bits = BITS[dtype]
    if kind in ("floordiv", "mod"):
        if b == 0:
            return 0
        quotient = abs(a) // abs(b)
        if (a < 0) != (b < 0):
            quotient = -quotient - (abs(a) % abs(b) != 0)
        return low_bits(quotient if kind == "floordiv" else a - quotient * b, dtype)
    if kind in ("shl", "shr"):
        if b < 0 or b >= bits:
            return -1 if kind == "shr" and a < 0 else 0
        return low_bits(a * 2**b, dtype) if kind == "shl" else math.floor(Fraction(a, 2**b))
    if kind == "mulhi":
        return math.floor(Fraction(a * b, 2**bits))
    mask = (1 << bits) - 1
    match kind:
        case "add":
            return low_bits(a + b, dtype)
        case "sub":
            return low_bits(a - b, dtype)
        case "mul":
            return low_bits(a * b, dtype)
        case "min":
            return a if a < b else b
        case "max":
            return a if a > b else b
        case "and":
            return low_bits((a & mask) & (b & mask), dtype)
        case "or":
            return low_bits((a & mask) | (b & mask), dtype)
        case _:
            assert kind == "xor"
            return low_bits((a & mask) ^ (b & mask), dtype)


def integer_unary(kind: str, a: int, dtype: str) -> int:
    if kind == "abs":
        return low_bits(a if a >= 0 else -a, dtype)
    return low_bits(-a if kind == "neg" else -a - 1, dtype)


def float_binary(kind: str, a: float, b: float, dtype: str) -> float:
    if kind in ("min", "max"):
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        if a == b == 0:
            negative = [math.copysign(1, x) < 0 for x in (a, b)]
            return -0.0 if (any(negative) if kind == "min" else all(negative)) else 0.0
        return (a if a < b else b) if kind == "min" else (a if a > b else b)
    if kind == "div" and b == 0:
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1, b)
    try:
        exact = {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b}[kind]()
    except OverflowError:
        raise AssertionError("doubles hold every sum, product and quotient of two f32") from None
    return rounded(single(exact), dtype)


def compare(kind: str, a: Number, b: Number) -> bool:
    if a != a or b != b:
        return kind == "ne"
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[kind]


def cast(value: Number, target: str) -> Number:
    """From any dtype to an integer, f32, f16, bf16 or bool."""
    if target == "bool":
        return value != 0
    if target in FLOATS:
        return rounded(integer_as_single(int(value)) if isinstance(value, int) else single(value), target)
    if isinstance(value, float):
        low, high = limits(target)
        if math.isnan(value):
            return 0
        return low if value <= low else high if value >= high else math.trunc(value)
    return low_bits(int(value), target)


def arg(kind: str, values: list[float]) -> int:
    """`argmax` or `argmin`."""
    best = -1
    for index, value in enumerate(values):
        if value == value and (best < 0 or (value > values[best] if kind == "argmax" else value < values[best])):
            best = index
    return max(best, 0)


def extreme(kind: str, values: list[float]) -> float:
    """`max` or `min` along an axis."""
    result = values[0]
    for value in values[1:]:
        result = float_binary(kind, result, value, "f32")
    return result
