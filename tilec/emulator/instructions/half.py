"""f16 and bf16 arithmetic, scalar and packed in pairs: add, sub, mul, fma, min, max, and unary approximations (PTX ISA,
section 9.7.4). Every operation rounds once, to nearest even."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.rounding import flush_before_rounding, odd, round_to, two_sum, widen
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Step

Function = Callable[..., Lanes]


def packed_step(d: Decoder, kind: str, count: int, function: Function) -> Step:
    """The step of `function`, which maps typed lanes of the scalar type; the two halves of a packed type become twice the
    lanes."""
    if not kind.endswith("x2"):
        return d.pure(0, kind, [d.source(k, kind) for k in range(1, count + 1)], function)
    dtype = TYPES[kind[:-2]][1]

    def apply(*values: Lanes) -> Lanes:
        parts = [np.ascontiguousarray(v).view(dtype) for v in np.broadcast_arrays(*map(np.atleast_1d, values))]
        return np.ascontiguousarray(function(*parts)).view(np.uint32)

    return d.pure(0, "b32", [d.source(k, "b32") for k in range(1, count + 1)], apply)


def _exact(name: str, wide: list[Lanes]) -> Lanes:
    if name == "mul":
        return wide[0] * wide[1]
    if name == "fma":
        return odd(*two_sum(wide[0] * wide[1], wide[2]))
    return odd(*two_sum(wide[0], wide[1] if name == "add" else -wide[1]))


def flush_half(kind: str, value: Lanes) -> Lanes:
    """Flushes subnormal f16 values (as f64) to zero (.ftz)."""
    return np.where(np.abs(value) < 2.0**-14, np.copysign(0.0, value), value) if kind == "f16" else value


def arithmetic(d: Decoder, name: str) -> Step:
    """add, sub, mul, fma of f16, bf16 and their packed forms."""
    d.flag("rn")
    ftz, sat = d.flag("ftz"), d.flag("sat")
    relu = name == "fma" and d.flag("relu")
    kind = d.need("f16", "f16x2", "bf16", "bf16x2")
    single = kind.removesuffix("x2")
    if single == "bf16" and (ftz or sat):
        raise d.unsupported("flags of .bf16")
    count = 3 if name == "fma" else 2
    d.finish(count + 1)

    def apply(*values: Lanes) -> Lanes:
        wide = [widen(single, value) for value in values]
        if ftz:
            wide = [flush_half(single, value) for value in wide]
        exact = _exact(name, wide)
        found = round_to(single, exact)
        if ftz:
            found = flush_before_rounding(found, exact, np.zeros_like(exact))
        if sat:
            found = np.where(found > 0, np.minimum(found, np.float16(1)), np.float16(0))
        if relu:
            found = clamp_negative(single, found)
        return found

    return packed_step(d, kind, count, apply)


def clamp_negative(kind: str, value: Lanes) -> Lanes:
    """Sets negative values to 0; a NaN stays canonical (.relu)."""
    zero = value.dtype.type(0)
    wide = widen(kind, value)
    return np.where(np.isnan(wide), value, np.where(wide > 0, value, zero))


def min_max(d: Decoder, name: str, extremum: Callable[[bool, bool], Function]) -> Step:
    """min, max of f16, bf16 and their packed forms."""
    ftz, propagate = d.flag("ftz"), d.flag("NaN")
    if d.take("xorsign"):
        raise d.unsupported("unknown modifier .xorsign")
    kind = d.need("f16", "f16x2", "bf16", "bf16x2")
    single = kind.removesuffix("x2")
    d.finish(3)
    function = extremum(name == "max", propagate)

    def apply(a: Lanes, b: Lanes) -> Lanes:
        x, y = widen(single, a), widen(single, b)
        if ftz:
            x, y = flush_half(single, x), flush_half(single, y)
        found = round_to(single, function(x, y))
        nan: Any = np.isnan(widen(single, found))
        if nan.any():
            found = np.where(nan, np.uint16(0x7FFF), found.view(np.uint16)).view(found.dtype)
        return found

    return packed_step(d, kind, 2, apply)


def unary(d: Decoder, kind: str, function: Function) -> Step:
    """ex2.approx and tanh.approx of f16, bf16 and their packed forms."""
    single = kind.removesuffix("x2")
    d.finish(2)

    def apply(a: Lanes) -> Lanes:
        return round_to(single, function(widen(single, a)))

    return packed_step(d, kind, 1, apply)
