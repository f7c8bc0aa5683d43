"""Integer arithmetic: add, sub, mul, mad, mul24, div, rem, abs, neg, min, max, sad, dp4a, carries (PTX ISA, 9.7.1, 9.7.2).

add, sub, mul, mad, abs, neg, min and max also exist for floats; the float families decode an instruction of a float type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import UNDEFINED, Lanes
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Step

INTEGERS: Final = ("u16", "u32", "u64", "s16", "s32", "s64")
FLOATS: Final[dict[str, Callable[[Decoder], Step]]] = {}
"""Decoders of the float forms, by opcode; `floats` and `half` register them."""
_FIRST: Final = ("sat", "cc", "relu", "u16x2", "s16x2")
"""Modifiers before the type of an integer form."""


def is_float(d: Decoder) -> bool:
    """Whether a modifier is a float type."""
    return any(name in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2") for name in d.left)


def _wide_dtype(kind: str) -> Any:
    return TYPES[f"{kind[0]}{2 * TYPES[kind][0]}"][1]


def high_product(a: Lanes, b: Lanes, kind: str) -> Lanes:
    """The upper half of the double-width product."""
    bits, dtype = TYPES[kind]
    if bits < 64:
        wide = _wide_dtype(kind)
        return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide) >> wide(bits)).astype(dtype)
    x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    cross = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (cross >> half)
    if kind[0] == "s":
        zero = np.uint64(0)
        high = high - np.where(np.asarray(a) < 0, y, zero) - np.where(np.asarray(b) < 0, x, zero)
    return high.view(dtype)


def product(mode: str, kind: str) -> tuple[Callable[[Lanes, Lanes], Lanes], str]:
    """The function of mul.lo/hi/wide and the type of its result."""
    if mode == "lo":
        return (lambda a, b: a * b), kind
    if mode == "hi":
        return (lambda a, b: high_product(a, b, kind)), kind
    wide = _wide_dtype(kind)
    return (lambda a, b: a.astype(wide) * b.astype(wide)), f"{kind[0]}{2 * TYPES[kind][0]}"


def _binary(opcode: str, function: Callable[[Any, Any], Any], kinds: tuple[str, ...] = INTEGERS) -> None:
    def decode(d: Decoder) -> Step:
        if is_float(d) or (opcode in FLOATS and d.left and d.left[0] not in (*kinds, *_FIRST)):
            return FLOATS[opcode](d)
        saturate = opcode in ("add", "sub") and d.flag("sat")
        carry = opcode in ("add", "sub") and d.flag("cc")
        positive = opcode in ("min", "max") and d.flag("relu")
        kind = d.need(*kinds, *(("u16x2", "s16x2") if opcode in ("add", "min", "max") else ()))
        d.finish(3)
        if carry:
            raise d.unsupported("the carry flag")
        if positive and kind not in ("s32", "s16x2"):
            raise d.unsupported(".relu of a type other than .s32 and .s16x2")
        apply: Callable[[Any, Any], Any] = (lambda a, b: np.maximum(function(a, b), 0)) if positive else function
        if kind.endswith("x2"):
            return _packed(d, kind, apply)
        if not saturate:
            return d.pure(0, kind, [d.source(1, kind), d.source(2, kind)], apply)
        if kind != "s32":
            raise d.unsupported(".sat of a type other than .s32")
        low, high = -(1 << 31), (1 << 31) - 1

        def clamped(a: Lanes, b: Lanes) -> Lanes:
            return np.clip(function(a.astype(np.int64), b.astype(np.int64)), low, high).astype(np.int32)

        return d.pure(0, kind, [d.source(1, kind), d.source(2, kind)], clamped)

    lanewise(opcode)(decode)


def _packed(d: Decoder, kind: str, function: Callable[[Any, Any], Any]) -> Step:
    half = TYPES[kind[:-2]][1]

    def apply(a: Lanes, b: Lanes) -> Lanes:
        pair = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
        x, y = (np.ascontiguousarray(operand).view(half) for operand in pair)
        return np.ascontiguousarray(function(x, y)).view(np.uint32)

    return d.pure(0, "b32", [d.source(1, "b32"), d.source(2, "b32")], apply)


_binary("add", lambda a, b: a + b)
_binary("sub", lambda a, b: a - b)
_binary("min", np.minimum)
_binary("max", np.maximum)


@lanewise("mul", "mul24")
def mul(d: Decoder) -> Step:
    if d.instruction.opcode == "mul" and is_float(d):
        return FLOATS["mul"](d)
    if d.instruction.opcode == "mul24":
        raise d.unsupported("unknown opcode")
    mode = d.need("lo", "hi", "wide")
    kind = d.need(*(INTEGERS if mode != "wide" else ("u16", "s16", "u32", "s32")))
    d.finish(3)
    function, result = product(mode, kind)
    return d.pure(0, result, [d.source(1, kind), d.source(2, kind)], function)


@lanewise("mad")
def mad(d: Decoder) -> Step:
    if is_float(d):
        return FLOATS["mad"](d)
    mode = d.need("lo", "hi", "wide")
    if d.take("cc"):
        raise d.unsupported("the carry flag")
    kind = d.need(*(INTEGERS if mode != "wide" else ("u16", "s16", "u32", "s32")))
    d.finish(4)
    function, result = product(mode, kind)
    sources = [d.source(1, kind), d.source(2, kind), d.source(3, result)]
    return d.pure(0, result, sources, lambda a, b, c: function(a, b) + c)


def quotient(a: Lanes, b: Lanes) -> Lanes:
    """Truncating division; a zero divisor gives all ones, MIN / -1 gives MIN."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // np.where(zero, 1, b).astype(a.dtype))
    overflow = (b == -1) | zero
    divisor = np.where(overflow, 1, b).astype(a.dtype)
    floor = a // divisor
    inexact = (floor * divisor != a) & ((a < 0) != (divisor < 0))
    return np.where(zero, a.dtype.type(-1), np.where(overflow, np.negative(a), floor + inexact.astype(a.dtype)))


def remainder(a: Lanes, b: Lanes) -> Lanes:
    """The remainder of truncating division, with the sign of the dividend; for a zero divisor, the dividend."""
    a, b = np.broadcast_arrays(a, b)
    found = a - quotient(a, b) * b
    return np.where(b == 0, a, found)


@lanewise("div", "rem")
def div(d: Decoder) -> Step:
    """The PTX ISA leaves the result for a zero divisor open: poison of the kind UNDEFINED."""
    if is_float(d):
        return FLOATS["div"](d)
    kind = d.need(*INTEGERS)
    d.finish(3)
    function = quotient if d.instruction.opcode == "div" else remainder
    a, b, write = d.source(1, kind), d.source(2, kind), d.target(0, kind)

    def step(frame: Frame) -> None:
        x, y = a.value(frame), b.value(frame)
        poison = union(a.poison(frame), b.poison(frame))
        zero = np.broadcast_to(y == 0, frame.n)
        if zero.any():
            poison = union(poison, np.where(zero, UNDEFINED, 0).astype(np.uint8))
        write(frame, function(x, y), poison)

    return step


@lanewise("abs", "neg")
def unary(d: Decoder) -> Step:
    if is_float(d):
        return FLOATS[d.instruction.opcode](d)
    kind = d.need("s16", "s32", "s64")
    d.finish(2)
    function = np.abs if d.instruction.opcode == "abs" else np.negative
    return d.pure(0, kind, [d.source(1, kind)], function)


@lanewise("sad")
def sad(d: Decoder) -> Step:
    kind = d.need(*INTEGERS)
    d.finish(4)
    sources = [d.source(k, kind) for k in (1, 2, 3)]

    def apply(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        return c + np.where(a < b, b - a, a - b)

    return d.pure(0, kind, sources, apply)


@lanewise("dp4a")
def dp4a(d: Decoder) -> Step:
    first, second = d.need("u32", "s32"), d.need("u32", "s32")
    d.finish(4)
    result = "u32" if first == second == "u32" else "s32"

    def parts(value: Lanes, kind: str) -> Lanes:
        raw = np.ascontiguousarray(np.atleast_1d(value)).view(np.uint8 if kind == "u32" else np.int8)
        return raw.reshape(-1, 4).astype(np.int64)

    def apply(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        total = (parts(a, first) * parts(b, second)).sum(axis=1)
        return (total.astype(np.uint64).astype(np.uint32) + np.asarray(c).view(np.uint32)).view(TYPES[result][1])

    return d.pure(0, result, [d.source(1, "b32"), d.source(2, "b32"), d.source(3, result)], apply)
