"""f32 and f64 arithmetic: add, sub, mul, fma, mad, div, rcp, sqrt, rsqrt, abs, neg, min, max, ex2, lg2, sin, cos, tanh
(PTX ISA, section 9.7.3), also with an addend of another width (`add.f32.f16`, `fma.f32.bf16`) and packed `.f32x2`.

`.rn` is exact, and so are `.rz`, `.rm` and `.rp`; `.approx` and `.full` compute in f64 and round once, within the ISA's bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.instructions import half
from tilec.emulator.instructions.integers import FLOATS
from tilec.emulator.machine.lanes import where
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.rounding import (
    canonical,
    canonical_bits,
    flush,
    flush_before_rounding,
    fused,
    odd,
    round_to,
    two_sum,
    widen,
)
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.ptx.syntax import Immediate

_MODES: Final = ("rn", "rz", "rm", "rp")
_HALVES: Final = ("f16", "bf16", "f16x2", "bf16x2")
Function = Callable[..., Lanes]


def saturate(value: Lanes) -> Lanes:
    """Clamps to [0, 1]; NaN becomes +0 (.sat)."""
    return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))


def _with_canonical_nan(function: Function) -> Function:
    def apply(*values: Lanes) -> Lanes:
        return canonical(function(*values))

    return apply


def finish_float(d: Decoder, function: Function, kind: str, ftz: bool, sat: bool, count: int, sources: list[Source]) -> Step:
    """The step of a float operation with .ftz and .sat."""
    d.finish(count)
    inner = whole = function if kind == "f64" else _with_canonical_nan(function)
    if ftz:

        def flushed(*values: Lanes) -> Lanes:
            return flush(whole(*(flush(np.asarray(v)) if np.asarray(v).dtype == np.float32 else v for v in values)))

        inner = flushed
    if sat:
        unclamped = inner

        def clamped(*values: Lanes) -> Lanes:
            return saturate(unclamped(*values))

        inner = clamped
    return d.pure(0, kind, sources, inner)


def _exact(name: str, mode: str) -> Function:
    """add, sub, mul or fma of f32 in a directed rounding mode."""

    def apply(*values: Lanes) -> Lanes:
        wide = [np.atleast_1d(v).astype(np.float64) for v in values]
        if name == "mul":
            return round_to("f32", wide[0] * wide[1], mode)
        if name == "fma":
            s, e = two_sum(wide[0] * wide[1], wide[2])
        else:
            s, e = two_sum(wide[0], wide[1] if name == "add" else -wide[1])
        if mode == "rm":  # an exact cancellation gives -0 in this mode only
            values_zero = (s == 0) & (e == 0) & ~(np.signbit(s))
            cancelled = values_zero & ~_all_zero(name, wide)
            s = np.where(cancelled, -0.0, s)
        return round_to("f32", odd(s, e), mode)

    return apply


def _tiny_first(name: str, function: Function) -> Function:
    """`function` on flushed operands, with zeros where the exact result is subnormal. A sum of normal numbers below the
    smallest normal one is exact, so only mul and fma can differ from flushing afterwards."""
    if name not in ("mul", "fma"):
        return function

    def apply(*values: Lanes) -> Lanes:
        wide = [np.atleast_1d(value).astype(np.float64) for value in values]
        product = wide[0] * wide[1]
        s, e = (product, np.zeros_like(product)) if name == "mul" else two_sum(product, wide[2])
        return flush_before_rounding(np.asarray(function(*values)), s, e)

    return apply


def _all_zero(name: str, wide: list[Lanes]) -> Lanes:
    first = wide[0] * wide[1] if name == "fma" else wide[0]
    last = wide[-1] if name != "sub" else -wide[-1]
    return (first == 0) & (last == 0) & ~np.signbit(first) & ~np.signbit(last)


_NEAREST: Final[dict[str, Function]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": fused,
}


def arithmetic(d: Decoder) -> Step:
    """add, sub, mul, fma, mad with a float type."""
    name = {"mad": "fma"}.get(d.instruction.opcode, d.instruction.opcode)
    if any(kind in _HALVES for kind in d.left) and "f32" not in d.left:
        return half.arithmetic(d, name)
    mode = d.take(*_MODES) or "rn"
    ftz, sat = d.flag("ftz"), d.flag("sat")
    kind = d.need("f32", "f64", "f32x2")
    count = 3 if name == "fma" else 2
    if kind == "f32x2":
        function = _NEAREST[name] if mode == "rn" else _exact(name, mode)
        return _pairs(d, _tiny_first(name, function) if ftz else function, ftz, count)
    if kind == "f64":
        return _double(d, name, mode, count)
    narrow = d.take("f16", "bf16")
    function = _NEAREST[name] if mode == "rn" else _exact(name, mode)
    function = _tiny_first(name, function) if ftz else function
    sources = [d.source(k, "f32") for k in range(1, count + 1)] if narrow is None else _mixed(d, name, narrow, count)
    return finish_float(d, function, "f32", ftz, sat, count + 1, sources)


def _mixed(d: Decoder, name: str, narrow: str, count: int) -> list[Source]:
    """`add.f32.f16 d, a, c`: all operands except the last are narrow and widened exactly."""
    if name == "mul":
        raise d.unsupported(f"unknown modifier .{narrow}")

    def wide(source: Source) -> Source:
        return Source(lambda frame: widen(narrow, source.value(frame)).astype(np.float32), source.poison)

    return [*(wide(d.source(k, narrow)) for k in range(1, count)), d.source(count, "f32")]


def _pairs(d: Decoder, function: Function, ftz: bool, count: int) -> Step:
    """Operands are registers: ptxas (13.5) takes no constant."""
    d.finish(count + 1)
    if any(isinstance(operand, Immediate) for operand in d.operands):
        raise d.unsupported("a constant as a pair of floats")

    def apply(*values: Lanes) -> Lanes:
        parts = [np.ascontiguousarray(v).view(np.float32) for v in np.broadcast_arrays(*map(np.atleast_1d, values))]
        if ftz:
            return np.ascontiguousarray(canonical(flush(function(*map(flush, parts))))).view(np.uint64)
        return np.ascontiguousarray(canonical(function(*parts))).view(np.uint64)

    return d.pure(0, "b64", [d.source(k, "b64") for k in range(1, count + 1)], apply)


def _double(d: Decoder, name: str, mode: str, count: int) -> Step:
    if mode != "rn":
        raise d.unsupported("a directed rounding of .f64")
    d.finish(count + 1)
    function = _NEAREST[name] if name != "fma" else _fma_double
    return d.pure(0, "f64", [d.source(k, "f64") for k in range(1, count + 1)], function)


def _fma_double(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    from fractions import Fraction

    out: list[float] = []
    for x, y, z in zip(*(np.broadcast_arrays(*map(np.atleast_1d, (a, b, c)))), strict=True):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            out.append(x * y + z)
            continue
        total = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        try:
            out.append(float(total) if total else float(x * y + z))
        except OverflowError:
            out.append(np.inf if total > 0 else -np.inf)
    return np.array(out, np.float64)


def extremum(larger: bool, propagate: bool) -> Function:
    """max or min: a NaN is ignored unless `propagate`; -0 is less than +0."""
    pick = np.fmax if larger else np.fmin

    def apply(a: Lanes, b: Lanes) -> Lanes:
        # A product with 1 makes a signalling NaN quiet: over those alone NumPy prefers a number.
        found = np.asarray(pick(a * a.dtype.type(1), b * b.dtype.type(1)))
        zeros = (a == 0) & (b == 0)
        if np.any(zeros):
            sign = np.signbit(a) & np.signbit(b) if larger else np.signbit(a) | np.signbit(b)
            signed = where(sign, -found.dtype.type(0), found.dtype.type(0))
            found = where(zeros, signed, found)
            found = where(zeros & sign, np.copysign(found, found.dtype.type(-1)), found)
        nan = np.isnan(a) | np.isnan(b) if propagate else np.isnan(found)
        if np.any(nan):
            found = where(nan, np.abs(found.dtype.type(np.nan)), found)
        return found

    return apply


def min_max(d: Decoder) -> Step:
    """min, max of floats; three operands give the extremum of all (sm_100)."""
    name = d.instruction.opcode
    if any(kind in _HALVES for kind in d.left):
        return half.min_max(d, name, extremum)
    ftz, propagate = d.flag("ftz"), d.flag("NaN")
    absolute = d.flag("xorsign")
    if absolute:
        raise d.unsupported("unknown modifier .xorsign")
    kind = d.need("f32", "f64")
    function = extremum(name == "max", propagate)
    count = len(d.operands) - 1
    if count == 3 and kind == "f32":
        function = _of_three(function)
    elif count != 2:
        raise d.unsupported(f"{count} operands")
    return finish_float(d, function, kind, ftz, False, count + 1, [d.source(k, kind) for k in range(1, count + 1)])


def sign_only(d: Decoder) -> Step:
    """abs and neg change only the sign bit. A NaN of 16 or 32 bits becomes the canonical one, as on sm_90; the PTX ISA leaves
    its bits open. A NaN of f64 keeps its bits."""
    name = d.instruction.opcode
    ftz = d.flag("ftz")
    kind = d.need("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    raw = {"f32": "b32", "f64": "b64", "f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}[kind]
    bits: Any = {"f32": np.uint32(1 << 31), "f64": np.uint64(1 << 63), "b16": np.uint16(1 << 15)}.get(
        kind, np.uint16(1 << 15) if raw == "b16" else np.uint32(0x80008000)
    )
    if ftz and kind != "f32":
        raise d.unsupported(f".ftz with .{kind}")
    d.finish(2)

    def apply(a: Lanes) -> Lanes:
        if ftz:
            a = flush(np.atleast_1d(a).view(np.float32)).view(np.uint32)
        found = a & ~bits if name == "abs" else a ^ bits
        return found if kind == "f64" else canonical_bits(kind, found)

    return d.pure(0, raw, [d.source(1, raw)], apply)


def div(d: Decoder) -> Step:
    """div.rn is exact, because 53 bits suffice for a quotient of 24-bit numbers."""
    mode = d.need(*_MODES, "approx", "full")
    ftz = d.flag("ftz")
    kind = d.need("f32", "f64")
    if d.instruction.opcode != "div":
        raise d.unsupported("a remainder of floats")

    def apply(a: Lanes, b: Lanes) -> Lanes:
        x, y = np.broadcast_arrays(np.atleast_1d(a).astype(np.float64), np.atleast_1d(b).astype(np.float64))
        q = x / y
        if kind == "f64":
            return q
        if mode in ("rz", "rm", "rp"):
            raise AssertionError
        return q.astype(np.float32)

    if mode in ("rz", "rm", "rp") or (kind == "f64" and mode != "rn"):
        raise d.unsupported(f"division with .{mode}")
    return finish_float(d, apply, kind, ftz, False, 3, [d.source(1, kind), d.source(2, kind)])


FLOATS.update(add=arithmetic, sub=arithmetic, mul=arithmetic, mad=arithmetic, div=div)
FLOATS.update(min=min_max, max=min_max, abs=sign_only, neg=sign_only)
lanewise("fma")(arithmetic)


def _of_three(function: Function) -> Function:
    def apply(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        return function(function(a, b), c)

    return apply


def _unary(function: Callable[[Any], Any]) -> Function:
    def apply(a: Lanes) -> Lanes:
        return np.asarray(function(np.atleast_1d(a).astype(np.float64)))

    return apply


_ELEMENTARY: Final[dict[str, Function]] = {
    "rcp": _unary(lambda a: 1.0 / a),
    "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(lambda a: 1.0 / np.sqrt(a)),
    "ex2": _unary(np.exp2),
    "lg2": _unary(np.log2),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "tanh": _unary(np.tanh),
}


@lanewise("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def elementary(d: Decoder) -> Step:
    """Roots, reciprocals and transcendental functions; rcp and sqrt also have exact rounding modes."""
    name = d.instruction.opcode
    mode = d.need("approx", *(_MODES if name in ("rcp", "sqrt") else ()))
    ftz = d.flag("ftz")
    kind = d.need("f32", *(("f64",) if name in ("rcp", "sqrt", "rsqrt") else ()), *(_HALVES if name in ("ex2", "tanh") else ()))
    if kind in _HALVES:
        return half.unary(d, kind, _ELEMENTARY[name])
    if kind == "f64" and mode != "rn":
        raise d.unsupported(f".{mode} of .f64")
    function = _ELEMENTARY[name]
    if kind == "f64":
        return finish_float(d, function, kind, ftz, False, 2, [d.source(1, kind)])
    rounding = "rn" if mode == "approx" else mode

    def apply(a: Lanes) -> Lanes:
        wide = function(a)
        if rounding != "rn":
            wide = odd(wide, _residue(name, np.atleast_1d(a).astype(np.float64), wide))
        return round_to("f32", wide, rounding)

    return finish_float(d, apply, "f32", ftz, False, 2, [d.source(1, "f32")])


def _residue(name: str, a: Lanes, found: Lanes) -> Lanes:
    """The sign of exact - found for rcp and sqrt, for a correct directed rounding where f64 is inexact."""
    from fractions import Fraction

    signs: list[float] = []
    for x, y in zip(a.tolist(), found.tolist(), strict=True):
        if not (np.isfinite(x) and np.isfinite(y)) or x == 0 or y == 0:
            signs.append(0.0)
        elif name == "rcp":
            rest = 1 - Fraction(x) * Fraction(y)
            signs.append(float((rest > 0) - (rest < 0)) * np.copysign(1.0, x))
        else:
            rest = Fraction(x) - Fraction(y) * Fraction(y)
            signs.append(float((rest > 0) - (rest < 0)))
    return np.array(signs)
