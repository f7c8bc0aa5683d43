"""cvt (PTX ISA, section 9.7.9.21): between integers, floats and the packed narrow formats, by every rounding mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.instructions.half import clamp_negative
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.halves import low
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.rounding import canonical, flush, odd, round_to, two_sum, widen
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Step

INTEGERS: Final = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
FLOATS: Final = ("f16", "bf16", "f32", "f64")
EIGHT: Final = ("e4m3x2", "e5m2x2")
_TO_INTEGER: Final[dict[str, Callable[[Any], Any]]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLAGS: Final = ("rn", "rz", "rm", "rp", "rna", *_TO_INTEGER, "relu", "satfinite", "ftz", "sat")


@lanewise("cvt")
def cvt(d: Decoder) -> Step:
    flags: set[str] = set()
    while (flag := d.take(*_FLAGS)) is not None:
        if flag in flags:
            raise d.unsupported(f".{flag} twice")
        flags.add(flag)
    to = d.need(*INTEGERS, *FLOATS, "f16x2", "bf16x2", "tf32", *EIGHT)
    source = d.need(*INTEGERS, *FLOATS, "f16x2", *EIGHT)
    if to in EIGHT or source in EIGHT:
        return _eight_bits(d, flags, to, source)
    if to in ("f16x2", "bf16x2"):
        return _packed_pair(d, flags, to, source)
    d.finish(2)
    if to in INTEGERS and source in INTEGERS and not flags and 2 * TYPES[to][0] == TYPES[source][0]:
        return _truncate(d, to, source)
    if to in INTEGERS:
        function = _integer_to_integer(d, flags, to, source) if source in INTEGERS else _to_integer(d, flags, to, source)
        return d.pure(0, to, [d.source(1, source)], function)
    if source == "f16x2":
        raise d.unsupported("this conversion")
    if source in INTEGERS:
        return d.pure(0, to, [d.source(1, source)], _integer_to_float(d, flags, to, source))
    kind = "f32" if to == "tf32" else to
    return d.pure(0, "b32" if to == "tf32" else kind, [d.source(1, source)], _float_to_float(d, flags, to, source))


def _truncate(d: Decoder, to: str, source: str) -> Step:
    """Takes the low half of a register and its poison; poison of the high half is dropped."""
    wide, target, dtype = d.source(1, source), d.target(0, to), TYPES[to][1]

    def step(frame: Frame) -> None:
        value = np.asarray(wide.value(frame)).astype(dtype)
        target(frame, value, low(wide.halves(frame)))

    return step


def _reject_others(d: Decoder, flags: set[str], *allowed: str) -> None:
    unknown = flags - set(allowed)
    if unknown:
        raise d.unsupported(f"unknown modifier .{sorted(unknown)[0]}")


def _one_of(d: Decoder, flags: set[str], names: tuple[str, ...], default: str | None = None) -> str:
    found = [name for name in names if name in flags]
    if len(found) > 1 or (not found and default is None):
        raise d.unsupported(f"needs one of {', '.join('.' + name for name in names)}")
    return found[0] if found else str(default)


def _integer_to_integer(d: Decoder, flags: set[str], to: str, source: str) -> Callable[[Lanes], Lanes]:
    """Truncation, or with .sat the nearest value of the target type; a signed source is sign-extended."""
    _reject_others(d, flags, "sat")
    dtype = TYPES[to][1]
    if "sat" not in flags:
        return lambda a: np.asarray(a).astype(dtype)
    limits = np.iinfo(dtype)
    source_limits = np.iinfo(TYPES[source][1])
    low, high = max(limits.min, source_limits.min), min(limits.max, source_limits.max)
    return lambda a: np.clip(a, TYPES[source][1](low), TYPES[source][1](high)).astype(dtype)


def _to_integer(d: Decoder, flags: set[str], to: str, source: str) -> Callable[[Lanes], Lanes]:
    """Rounds to an integer, then clamps to the target's range; NaN gives 0, or the highest bit for 64-bit targets and f64."""
    _reject_others(d, flags, *_TO_INTEGER, "ftz", "sat")
    round_to_integral = _TO_INTEGER[_one_of(d, flags, tuple(_TO_INTEGER))]
    dtype = TYPES[to][1]
    limits = np.iinfo(dtype)
    bits = TYPES[to][0]
    nan = dtype(0)
    if source == "f64" or bits == 64:
        nan = np.array(1 << (bits - 1), f"u{bits // 8}").view(dtype)[()]
    top = float(limits.max) if bits < 64 else float(1 << (bits - (to[0] == "s")))

    def apply(a: Lanes) -> Lanes:
        wide = widen(source, a)
        if "ftz" in flags and source == "f32":
            wide = np.where(np.abs(wide) < 2.0**-126, 0.0, wide)
        wide = round_to_integral(wide)
        big, small, is_nan = wide >= top, wide <= float(limits.min), np.isnan(wide)
        safe = np.where(big | small | is_nan, 0.0, wide)
        converted = safe.astype(np.uint64 if to == "u64" else np.int64).astype(dtype)
        converted = np.where(big, dtype(limits.max), np.where(small, dtype(limits.min), converted))
        return np.where(is_nan, nan, converted)

    return apply


def _integer_to_float(d: Decoder, flags: set[str], to: str, source: str) -> Callable[[Lanes], Lanes]:
    _reject_others(d, flags, "rn", "rz", "rm", "rp", "ftz", "sat")
    mode = _one_of(d, flags, ("rn", "rz", "rm", "rp"))
    if to == "tf32":
        raise d.unsupported("this conversion")

    def apply(a: Lanes) -> Lanes:
        a = np.atleast_1d(a)
        if TYPES[source][0] < 64:
            wide = a.astype(np.float64)
        else:
            high = (a >> a.dtype.type(32)).astype(np.float64) * 4294967296.0
            low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
            s, e = two_sum(high, low)
            if to == "f64":
                if mode != "rn":
                    raise AssertionError
                return s
            wide = odd(s, e)
        if to == "f64":
            return wide
        if "sat" in flags:
            wide = np.clip(wide, 0.0, 1.0)
        return round_to(to, wide, mode)

    if to == "f64" and mode != "rn":
        raise d.unsupported("a directed rounding to .f64")
    return apply


def _float_to_float(d: Decoder, flags: set[str], to: str, source: str) -> Callable[[Lanes], Lanes]:
    if to == source:
        return _round_in_place(d, flags, to)
    widening = TYPES[source][0] < TYPES[to][0] if to != "tf32" else False
    if widening and to != "f64" and source == "bf16":
        _reject_others(d, flags, "ftz", "sat")
        if not flags:  # appends zero bits only: a NaN keeps its bits (measured on sm_90)
            return lambda a: (np.atleast_1d(a).astype(np.uint32) << np.uint32(16)).view(np.float32)
    _reject_others(d, flags, "rn", "rz", "rm", "rp", "rna", "ftz", "sat", "relu", "satfinite")
    if to == "tf32" and source != "f32":
        raise d.unsupported("this conversion")
    unrounded = widening or (to, source) == ("bf16", "f16")  # without a rounding ptxas makes the instruction of .rn
    mode = _one_of(d, flags, ("rn", "rz", "rm", "rp", "rna"), "rn" if unrounded else None)
    if mode == "rna" and to != "tf32":
        raise d.unsupported(".rna")

    def apply(a: Lanes) -> Lanes:
        wide = widen(source, a)
        if "ftz" in flags and source == "f32":
            wide = np.where(np.abs(wide) < 2.0**-126, np.copysign(0.0, wide), wide)
        if "sat" in flags:
            wide = np.where(wide > 0, np.minimum(wide, 1.0), 0.0)
        if to == "f64":
            return wide
        rounded = round_to(to, wide, mode)
        if mode == "rna" and not flags & {"relu", "satfinite"}:  # a NaN is truncated, not made canonical (measured on sm_90)
            rounded = np.where(np.isnan(wide), (_bits_of(a) & np.uint32(0xFFFFE000)).view(np.float32), rounded)
        rounded = _finite(to, rounded) if "satfinite" in flags else rounded
        if "ftz" in flags and to == "f32":
            rounded = flush(rounded)
        if "relu" in flags:
            rounded = clamp_negative("f32" if to == "tf32" else to, rounded)
        return rounded.view(np.uint32) if to == "tf32" else rounded

    return apply


def _bits_of(a: Lanes) -> Lanes:
    return np.ascontiguousarray(np.atleast_1d(a), np.float32).view(np.uint32)


def _finite(kind: str, value: Lanes) -> Lanes:
    """Replaces infinities with the largest finite value of their sign; a NaN stays."""
    wide = widen("f32" if kind == "tf32" else kind, value)
    if not np.isinf(wide).any():
        return value
    top = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127"), "f32": float(np.finfo(np.float32).max)}
    top["tf32"] = float.fromhex("0x1.ffcp127")
    return round_to(kind, np.where(np.isinf(wide), np.copysign(top[kind], wide), wide))


def _round_in_place(d: Decoder, flags: set[str], kind: str) -> Callable[[Lanes], Lanes]:
    """cvt.rzi.f32.f32 and similar: rounds to an integral value of the same format."""
    _reject_others(d, flags, *_TO_INTEGER, "ftz", "sat")
    modes = [flag for flag in flags if flag in _TO_INTEGER]

    def apply(a: Lanes) -> Lanes:
        wide = widen(kind, a)
        if "ftz" in flags:
            wide = np.where(np.abs(wide) < 2.0**-126, np.copysign(0.0, wide), wide)
        if modes:
            wide = np.copysign(_TO_INTEGER[modes[0]](wide), wide)
        if "sat" in flags:
            wide = np.where(wide > 0, np.minimum(wide, 1.0), 0.0)
        return wide if kind == "f64" else round_to(kind, wide)

    return apply


def _packed_pair(d: Decoder, flags: set[str], to: str, source: str) -> Step:
    """`cvt.rn.f16x2.f32 d, a, b`: a to the upper half, b to the lower."""
    if source != "f32":
        raise d.unsupported("this conversion")
    _reject_others(d, flags, "rn", "rz", "relu", "satfinite")
    mode, kind = _one_of(d, flags, ("rn", "rz")), to[:-2]
    d.finish(3)

    def convert(a: Lanes) -> Lanes:
        found = round_to(kind, widen("f32", a), mode)
        found = _finite(kind, found) if "satfinite" in flags else found
        found = clamp_negative(kind, found) if "relu" in flags else found
        return found.view(np.uint16).astype(np.uint32)

    return d.pure(0, "b32", [d.source(1, "f32"), d.source(2, "f32")], lambda a, b: convert(a) << np.uint32(16) | convert(b))


def _eight_bits(d: Decoder, flags: set[str], to: str, source: str) -> Step:
    """The two 8-bit formats (PTX ISA: always .satfinite): pairs of them from f32 or f16x2, and to f16x2."""
    if source in EIGHT:
        if to != "f16x2":
            raise d.unsupported("this conversion")
        _reject_others(d, flags, "rn", "relu")
        d.finish(2)
        table = canonical(np.array([_decode_eight(source, code) for code in range(256)], np.float16))

        def expand(a: Lanes) -> Lanes:
            low, high = (table[(np.atleast_1d(a) >> np.uint16(8 * k)) & np.uint16(255)] for k in range(2))
            parts = [clamp_negative("f16", v) if "relu" in flags else v for v in (low, high)]
            return parts[0].view(np.uint16).astype(np.uint32) | parts[1].view(np.uint16).astype(np.uint32) << np.uint32(16)

        return d.pure(0, "b32", [d.source(1, "b16")], expand)
    _reject_others(d, flags, "rn", "relu", "satfinite")
    if "rn" not in flags or "satfinite" not in flags or source not in ("f32", "f16x2"):
        raise d.unsupported("this conversion")

    def encode_one(wide: Lanes) -> Lanes:
        return encode_eight(to, np.where(wide < 0, 0.0, wide) if "relu" in flags else wide).astype(np.uint16)

    if source == "f32":
        d.finish(3)
        sources = [d.source(1, "f32"), d.source(2, "f32")]
        return d.pure(0, "b16", sources, lambda a, b: encode_one(widen("f32", a)) << np.uint16(8) | encode_one(widen("f32", b)))
    d.finish(2)

    def narrow(a: Lanes) -> Lanes:
        parts = np.ascontiguousarray(np.atleast_1d(a)).view(np.float16).reshape(-1, 2)
        return encode_one(widen("f16", parts[:, 1])) << np.uint16(8) | encode_one(widen("f16", parts[:, 0]))

    return d.pure(0, "b16", [d.source(1, "b32")], narrow)


def _decode_eight(kind: str, code: int) -> float:
    sign = -1.0 if code & 128 else 1.0
    exponent_bits, bias = (4, 7) if kind == "e4m3x2" else (5, 15)
    fraction_bits = 7 - exponent_bits
    exponent, fraction = (code & 127) >> fraction_bits, code & ((1 << fraction_bits) - 1)
    if kind == "e4m3x2" and code & 127 == 127:
        return float("nan")
    if kind == "e5m2x2" and exponent == 31:
        return sign * float("inf") if fraction == 0 else float("nan")
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - fraction_bits)
    return sign * (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)


def encode_eight(kind: str, wide: Lanes) -> Lanes:
    """The code of the nearest value (ties to even), saturating at the largest finite one; NaN is 0x7f."""
    bits, bias, top = (3, 7, 448.0) if kind == "e4m3x2" else (2, 15, 57344.0)
    magnitude = np.minimum(np.abs(wide), top)
    _, exponent = np.frexp(np.maximum(magnitude, 2.0 ** (1 - bias)))
    steps = np.rint(np.where(np.isnan(magnitude), 0.0, magnitude) / np.ldexp(1.0, exponent - 1 - bits)).astype(np.int64)
    code = steps + (exponent.astype(np.int64) - 1 + bias - 1) * (1 << bits)
    code = np.minimum(code, 0x7E if kind == "e4m3x2" else 0x7B)
    return np.where(np.isnan(wide), 0x7F, code | np.where(np.signbit(wide), 128, 0)).astype(np.uint8)


_ = Frame
