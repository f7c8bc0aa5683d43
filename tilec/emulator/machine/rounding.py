"""Exact rounding to the narrow float formats f32, f16, bf16, tf32, by mode (rn, rz, rm, rp, rna).

An exact value is a pair of f64 arrays (s, e) with |e| at most half a unit in the last place of s: the value is s + e.
`two_sum` makes such pairs. Every function returns f32 arrays for f32 and tf32, float16 arrays for f16 and raw uint16 for
bf16.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes

_TINY: Final = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126, "tf32": 2.0**-126}
_BITS: Final = {"f32": 24, "f16": 11, "bf16": 8, "tf32": 11}
_MAX: Final = {"f32": float(np.finfo(np.float32).max), "f16": 65504.0, "bf16": float.fromhex("0x1.fep127")}
_MAX["tf32"] = float.fromhex("0x1.ffcp127")


_CANONICAL: Final = {4: np.uint32(0x7FFFFFFF).view(np.float32), 2: np.uint16(0x7FFF).view(np.float16)}


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a + b in f64 and its rounding error, exactly."""
    s = a + b
    b_part = s - a
    return s, (a - (s - b_part)) + (b - b_part)


def odd(s: Lanes, e: Lanes) -> Lanes:
    """The pair as one f64 rounded to odd; rounding it to a format of at most 51 bits equals rounding the exact value."""
    bits = np.ascontiguousarray(s).view(np.uint64)
    inexact = (e != 0) & np.isfinite(s) & np.isfinite(e) & ((bits & np.uint64(1)) == 0)
    return np.where(inexact, np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s) if inexact.any() else s


def round_to(kind: str, value: Lanes, mode: str = "rn") -> Lanes:
    """Rounds f64 values (exact, or rounded to odd) to `kind` by `mode`."""
    value = np.atleast_1d(np.asarray(value, np.float64))
    if mode == "rn" and kind == "f32":
        return canonical(value.astype(np.float32))
    if mode == "rn" and kind == "f16":
        return canonical(value.astype(np.float16))
    rounded = _quantise(kind, value, mode)
    if kind == "f16":
        return canonical(rounded.astype(np.float16))
    if kind == "bf16":
        return raw_bf16(rounded.astype(np.float32))
    return canonical(rounded.astype(np.float32))


def canonical(value: Lanes) -> Lanes:
    """f32 or f16 lanes with every NaN as chips produce it: all bits except the sign are set (PTX ISA, 9.7.3: payloads are not
    kept)."""
    nan = np.isnan(value)
    if not nan.any():
        return value
    return np.where(nan, _CANONICAL[value.dtype.itemsize], value)


def canonical_bits(kind: str, raw: Lanes) -> Lanes:
    """Raw bits of f32, f16, bf16 or a packed pair, with every NaN canonical."""
    bits = np.ascontiguousarray(np.atleast_1d(raw))
    if kind == "f32":
        infinity, canon, lanes = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF), bits
    else:
        infinity, canon, lanes = (
            np.uint16(0x7C00 if kind.startswith("f16") else 0x7F80),
            np.uint16(0x7FFF),
            bits.view(np.uint16),
        )
    nan = (lanes & canon) > infinity
    return np.where(nan, canon, lanes).view(bits.dtype) if nan.any() else bits


def _quantise(kind: str, value: Lanes, mode: str) -> Lanes:
    """The neighbour of each value in `kind` that `mode` selects, as f64."""
    magnitude = np.abs(value)
    _, exponent = np.frexp(np.maximum(magnitude, _TINY[kind]))
    unit = np.ldexp(1.0, exponent - _BITS[kind])
    steps = np.divide(value, unit)
    if mode == "rn":
        integral = np.rint(steps)
    elif mode == "rna":
        integral = np.trunc(steps + np.copysign(0.5, steps))
    else:
        integral = {"rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](steps)
    rounded = np.copysign(integral * unit, value)
    top = _MAX[kind]
    overflowed = np.abs(rounded) > top
    if overflowed.any():
        negative = rounded < 0
        to_largest = {"rz": np.ones_like(overflowed), "rm": ~negative, "rp": negative}.get(mode, np.zeros_like(overflowed))
        rounded = np.where(overflowed, np.copysign(np.where(to_largest, top, np.inf), rounded), rounded)
    return np.where(np.isfinite(value), rounded, value)


def raw_bf16(value: Lanes) -> Lanes:
    """The upper half of f32 values that are exactly bf16; a NaN is canonical."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return np.where(np.isnan(value), np.uint16(0x7FFF), (bits >> np.uint32(16)).astype(np.uint16))


def widen(kind: str, value: Any) -> Lanes:
    """f64 values of typed lanes of a float kind (bf16 as raw bits)."""
    if kind == "bf16":
        return (np.atleast_1d(value).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.atleast_1d(value).astype(np.float64)


def flush(value: Lanes) -> Lanes:
    """Flushes subnormal f32 or f16 values to zeros of their sign (.ftz)."""
    kind = value.dtype.type
    small = np.abs(value) < (kind(2.0**-14) if kind is np.float16 else kind(2.0**-126))
    return np.where(small, np.copysign(kind(0), value), value) if small.any() else value


def flush_before_rounding(found: Lanes, s: Lanes, e: Lanes) -> Lanes:
    """`found`, which is s + e rounded to f32 or f16, with zeros where the exact value is subnormal. Chips apply .ftz before
    they round: a value below the smallest normal number that would round up to it becomes zero too (measured on sm_90)."""
    kind = found.dtype.type
    least = 2.0**-14 if kind is np.float16 else 2.0**-126
    size = np.abs(s)
    tiny = (size < least) | ((size == least) & (e * np.sign(s) < 0))
    return np.where(tiny, np.copysign(kind(0), found), found) if tiny.any() else found


def fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c of f32 lanes, rounded once to nearest even."""
    product = a.astype(np.float64) * b.astype(np.float64)
    wide = c.astype(np.float64)
    s = product + wide
    bits = np.ascontiguousarray(s).view(np.uint64) & np.uint64(0x1FFFFFFF)
    if ((bits == np.uint64(0x10000000)) | (np.abs(s) < 2.0**-126)).any():
        s = odd(*two_sum(product, wide))
    return s.astype(np.float32)
