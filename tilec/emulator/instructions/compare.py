"""setp, set, testp, copysign (PTX ISA, sections 9.7.5, 9.7.6, 9.7.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.lanes import where
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.rounding import flush, widen
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.ptx.syntax import Pair

_ORDERED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_UNSIGNED: Final = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED: Final = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
_KINDS: Final = (*(f"{k}{b}" for k in "bus" for b in (16, 32, 64)), "f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
_JOIN: Final[dict[str, Callable[[Any, Any], Any]]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def comparison(d: Decoder, name: str, kind: str, ftz: bool) -> Callable[[Lanes, Lanes], Lanes]:
    """The function of a comparison on typed lanes; with a NaN, ordered comparisons are false and unordered ones true."""
    is_float = kind[0] == "f" or kind.startswith("bf")
    if not is_float:
        if kind[0] == "b" and name not in ("eq", "ne"):
            raise d.unsupported(f"comparison .{name} of .{kind}")
        if name in _UNSIGNED and kind[0] == "u":
            return _ORDERED[_UNSIGNED[name]]
        if name not in _ORDERED:
            raise d.unsupported(f"comparison .{name} of .{kind}")
        return _ORDERED[name]

    def wide(value: Lanes) -> Lanes:
        if kind == "bf16":
            return widen(kind, value)
        return flush(value) if ftz and kind in ("f32", "f16") else value

    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(wide(a)) | np.isnan(wide(b))) ^ (name == "num")
    base = _ORDERED[_UNORDERED.get(name, name)] if name in _UNORDERED or name in _ORDERED else None
    if base is None:
        raise d.unsupported(f"comparison .{name} of .{kind}")
    if name == "ne":
        return lambda a, b: (wide(a) < wide(b)) | (wide(a) > wide(b))
    if name in _UNORDERED:
        return lambda a, b: base(wide(a), wide(b)) | np.isnan(wide(a)) | np.isnan(wide(b))
    return lambda a, b: base(wide(a), wide(b))


@lanewise("setp")
def setp(d: Decoder) -> Step:
    name = d.need(*_ORDERED, *_UNSIGNED, *_UNORDERED, "num", "nan")
    join = d.take(*_JOIN)
    ftz = d.flag("ftz")
    kind = d.need(*_KINDS)
    d.finish(4 if join else 3)
    if kind.endswith("x2"):
        return _packed(d, name, kind, ftz, join)
    result = d.operands[0]
    first = d.target(result.first if isinstance(result, Pair) else result, "pred")
    second = d.target(result.second, "pred") if isinstance(result, Pair) else None
    a, b = d.source(1, kind), d.source(2, kind)
    extra = d.source(3, "pred") if join else None
    compare = comparison(d, name, kind, ftz)

    def step(frame: Frame) -> None:
        result_value = compare(a.value(frame), b.value(frame))
        poison = union(a.poison(frame), b.poison(frame))
        negative = ~np.asarray(result_value) if second is not None else result_value
        if extra is not None and join is not None:
            other = extra.value(frame)
            poison = union(poison, extra.poison(frame))
            result_value, negative = _JOIN[join](result_value, other), _JOIN[join](negative, other)
        first(frame, np.asarray(result_value), poison)
        if second is not None:
            second(frame, np.asarray(negative), poison)

    return step


def _packed(d: Decoder, name: str, kind: str, ftz: bool, join: str | None) -> Step:
    """A packed comparison: the results of the low and of the high halves (`p|q`)."""
    result = d.operands[0]
    if join or not isinstance(result, Pair):
        raise d.unsupported("this form of a packed comparison")
    half = kind[:-2]
    compare = comparison(d, name, half, ftz)
    a, b = d.source(1, "b32"), d.source(2, "b32")
    targets = [d.target(result.first, "pred"), d.target(result.second, "pred")]

    def step(frame: Frame) -> None:
        poison = None
        x, y = a.value(frame), b.value(frame)
        poison = union(a.poison(frame), b.poison(frame))
        for k, target in enumerate(targets):
            parts = [(np.atleast_1d(v) >> np.uint32(16 * k)).astype(np.uint16).view(TYPES[half][1]) for v in (x, y)]
            target(frame, compare(parts[0], parts[1]), poison)

    return step


@lanewise("set")
def set_(d: Decoder) -> Step:
    name = d.need(*_ORDERED, *_UNSIGNED, *_UNORDERED, "num", "nan")
    ftz = d.flag("ftz")
    result, kind = d.need("u32", "s32", "f32"), d.need(*_KINDS)
    d.finish(3)
    compare = comparison(d, name, kind, ftz)
    yes: Any = np.float32(1) if result == "f32" else TYPES[result][1](-1 if result == "s32" else 0xFFFFFFFF)
    no = TYPES[result][1](0)

    def chosen(a: Lanes, b: Lanes) -> Lanes:
        return where(compare(a, b), yes, no)

    return d.pure(0, result, [d.source(1, kind), d.source(2, kind)], chosen)


@lanewise("testp")
def testp(d: Decoder) -> Step:
    name, kind = d.need("finite", "infinite", "number", "notanumber", "normal", "subnormal"), d.need("f32", "f64")
    d.finish(2)
    tiny = TYPES[kind][1](2.0**-126 if kind == "f32" else 2.0**-1022)
    functions: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((a == 0) | (np.abs(a) >= tiny)),  # PTX ISA, testp: zeros count as normal
        "subnormal": lambda a: (a != 0) & (np.abs(a) < tiny),
    }
    return d.pure(0, "pred", [d.source(1, kind)], functions[name])


@lanewise("copysign")
def copysign(d: Decoder) -> Step:
    kind = d.need("f32", "f64")
    d.finish(3)
    return d.pure(0, kind, [d.source(1, kind), d.source(2, kind)], lambda a, b: np.copysign(b, a))


_ = (Source, Poison)
