"""Kernels whose index arithmetic comes near the limits of its dtype: some operations wrap, others come within one of it.

An index is computed from loaded numbers, scalars, dims and block ids of large declared ranges, by operations whose interval is
tracked: most results stay within their dtype, some leave it by a little. The last step brings the index into a small tensor.
"""

from __future__ import annotations

import random

from tests.programs.typed_tiles import limits
from tests.soundness.bounded import Option, Ranged, combinations
from tests.soundness.sketch import Sketch, WideKernel

MAY_WRAP = 0.12
"""How often a result may leave its dtype."""
DTYPES = ("i32", "i32", "i32", "i64", "u32", "i16", "u64", "i8", "u8")


def near_limits(r: random.Random) -> WideKernel:
    """A kernel of one load or store at a computed index."""
    s = Sketch(r, dims=["N"])
    s.head.append("grid(N)")
    s.line("b = bid(0)")
    scope = [Ranged("b", "i32", (), 0, (1 << 31) - 2)]
    for _ in range(r.choice([1, 2, 2, 3])):
        scope.append(r.choice([_loaded, _loaded, _scalar])(s))
    if r.random() < 0.3:
        s.head.append("requires(N <= 70000)")
        scope[0] = Ranged("b", "i32", (), 0, 69999)
    for _ in range(r.choice([1, 2, 3])):
        scope.append(_named(s, _expression(r, scope, 2)))
    scope.append(_tile(s, r.choice(scope[1:])))
    part = r.choice([_straight, _straight, _carried, _carried, _carried, _branched])
    if r.random() < 0.03:
        part = _halved
    part(s, scope)
    _access(s, r.choice(scope[-2:]))
    s.parameters.append("out: Out[f32, N]")
    s.line("store(out, b, 1.0)")
    kernel = s.kernel()
    kernel.schedule = f"limits {part.__name__.removeprefix('_')}"
    return kernel


def _range(r: random.Random, dtype: str) -> tuple[int, int]:
    """An interval at an end of the dtype, around zero, or at a root of its size."""
    low, high = limits(dtype)
    root = 1 << (high.bit_length() // 2)
    kinds = [(high - r.randint(0, 3), high), (low, low + r.randint(0, 3)), (0, high // 2), (low // 2, high // 2), (0, root)]
    kinds += [(max(low, -root), root), (low, high), (0, high), (1, r.choice([3, 31, 32, 33])), (max(low, -3), 2)]
    kinds += [(high // 2, high // 2 + r.randint(0, 2)), (0, high // r.choice([3, 4, 5, 7]))]
    first, last = r.choice(kinds)
    return max(low, first), min(high, last)


def _loaded(s: Sketch) -> Ranged:
    dtype = s.r.choice(DTYPES)
    low, high = _range(s.r, dtype)
    tensor, name = s.name("x"), s.name("d")
    s.parameters.append(f"{tensor}: In[{dtype}, N]")
    if (low, high) != limits(dtype):
        s.head.append(f"values({tensor}, {low}, {high + 1})")
    s.line(f"{name} = load({tensor}, b)")
    return Ranged(name, dtype, (), low, high)


def _scalar(s: Sketch) -> Ranged:
    dtype = s.r.choice(["i32", "i32", "u32", "i64", "i16", "u8"])
    low, high = _range(s.r, dtype)
    name = s.name("P")
    s.parameters.append(f"{name}: {dtype}")
    s.head.append(f"requires({name} >= {low}, {name} <= {high})")
    return Ranged(name, dtype, (), low, high)


def _named(s: Sketch, value: Ranged) -> Ranged:
    name = s.name("k")
    s.line(f"{name} = {value.text}")
    return Ranged(name, value.dtype, value.shape, value.low, value.high)


def _tile(s: Sketch, value: Ranged) -> Ranged:
    """Lanes next to a value; only the prover says whether these wrap."""
    if value.dtype not in ("i32", "i64", "u32") or s.r.random() < 0.5:
        return value
    lanes = "arange(4)" if value.dtype == "i32" else f"arange(4).astype({value.dtype})"
    sign, change = s.r.choice([("+", 3), ("-", -3), ("*", None)])
    low, high = limits(value.dtype)
    ends = [value.low * k for k in (0, 3)] + [value.high * k for k in (0, 3)]
    first, last = (min(ends), max(ends)) if change is None else (value.low + min(0, change), value.high + max(0, change))
    if (first < low or last > high) and s.r.random() > MAY_WRAP:
        return value
    return _named(s, Ranged(f"tilec.max({value.text} {sign} {lanes})", value.dtype, (), max(first, low), min(last, high)))


def _expression(r: random.Random, scope: list[Ranged], depth: int) -> Ranged:
    if depth == 0:
        return r.choice(scope)
    a = _expression(r, scope, depth - 1)
    roll = r.random()
    if roll < 0.2:
        return _cast(r, a)
    if roll < 0.5:
        options = _unary(r, a)
        dtype = a.dtype
    else:
        b = _expression(r, scope, depth - 1)
        dtype = r.choice([a.dtype, b.dtype, "i64"])
        low, high = limits(dtype)
        if not all(low <= v.low and v.high <= high for v in (a, b)) and r.random() > MAY_WRAP:
            return a
        a, b = _as(a, dtype), _as(b, dtype)
        options = _binary(r, a, b)
    low, high = limits(dtype)
    inside = [option for option in options if low <= option[1] and option[2] <= high]
    text, first, last = r.choice(inside if inside and r.random() > MAY_WRAP else options)
    return Ranged(text, dtype, (), max(low, min(first, high)), min(high, max(last, low)))


def _as(value: Ranged, dtype: str) -> Ranged:
    if value.dtype == dtype:
        return value
    low, high = limits(dtype)
    inside = low <= value.low and value.high <= high
    ends = (value.low, value.high) if inside else (low, high)
    return Ranged(f"({value.text}).astype({dtype})", dtype, (), *ends)


def _cast(r: random.Random, value: Ranged) -> Ranged:
    fitting = [dtype for dtype in DTYPES if value.fits(dtype)]
    return _as(value, r.choice(fitting if fitting and r.random() > MAY_WRAP / 2 else DTYPES))


def _unary(r: random.Random, a: Ranged) -> list[Option]:
    shift, factor = r.choice([1, 1, 2, 7, 15, 30, 31]), r.choice([2, 3, 5, 1 << 7, 1 << 15, 46341])
    shift = min(shift, int(a.dtype[1:]) - 1)
    factor = min(factor, limits(a.dtype)[1])
    one = r.choice([1, 1, 2, 3])
    options = [
        (f"({a.text} + {one})", a.low + one, a.high + one),
        (f"({a.text} - {one})", a.low - one, a.high - one),
        (f"({a.text} * {factor})", min(a.low * factor, a.high * factor), max(a.low * factor, a.high * factor)),
        (f"({a.text} << {shift})", a.low << shift, a.high << shift),
        (f"({a.text} >> {shift})", a.low >> shift, a.high >> shift),
        (f"({a.text} // {factor})", a.low // factor, a.high // factor),
        (f"({a.text} % {factor})", 0, factor - 1),
        (f"abs({a.text})", 0, max(abs(a.low), abs(a.high))),
        (f"maximum({a.text}, {one})", max(a.low, one), max(a.high, one)),
        (f"minimum({a.text}, {factor})", min(a.low, factor), min(a.high, factor)),
        (f"clamp({a.text}, {one}, {factor})", min(one, factor), factor),
    ]
    if a.dtype[0] != "u":
        options += [(f"(-{a.text})", -a.high, -a.low), (f"(~{a.text})", ~a.high, ~a.low)]
        options += [(f"(0 - {a.text})", -a.high, -a.low), (f"({a.text} * -1)", -a.high, -a.low)]
        options += [(f"({limits(a.dtype)[1]} - {a.text})", limits(a.dtype)[1] - a.high, limits(a.dtype)[1] - a.low)]
    return options


def _binary(r: random.Random, a: Ranged, b: Ranged) -> list[Option]:
    options = combinations(a, b)
    condition = r.choice([f"{a.text} > {b.text}", f"{a.text} != 0", "b > 3"])
    if a.text == b.text and r.random() < 0.5:
        product, low, high = options[2]
        return [(product, 0 if a.low <= 0 <= a.high else low, high)]
    options += [
        (f"where({condition}, {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
        (f"({a.text} if {condition} else {b.text})", min(a.low, b.low), max(a.high, b.high)),
    ]
    if min(a.low, b.low) >= 0:
        top = max(a.high, b.high)
        options += [(f"({a.text} & {b.text})", 0, min(a.high, b.high))]
        options += [(f"({a.text} {sign} {b.text})", 0, (1 << top.bit_length()) - 1) for sign in "|^"]
        options += [(f"mulhi({a.text}, {b.text})", 0, max(a.high, b.high))] if a.dtype in ("i32", "u32") else []
    if b.low >= 1:
        options += [(f"({a.text} // {b.text})", min(a.low, 0), max(a.high, 0)), (f"({a.text} % {b.text})", 0, b.high - 1)]
    if b.low >= 0 and b.high < 64:
        shifted = [a.low << b.low, a.low << b.high, a.high << b.low, a.high << b.high]
        options += [(f"({a.text} << {b.text})", min(shifted), max(shifted))]
        options += [(f"({a.text} >> {b.text})", min(a.low, 0), max(a.high, 0))]
    return options


def _straight(s: Sketch, scope: list[Ranged]) -> None:
    scope.append(_named(s, _expression(s.r, scope, 2)))


def _branched(s: Sketch, scope: list[Ranged]) -> None:
    """A value that one branch changes, in some kernels to one that only the condition keeps inside."""
    r = s.r
    value = _named(s, r.choice(scope))
    low, high = limits(value.dtype)
    one = r.choice([1, 2, 1 << 6])
    limit = r.choice([high - one, high - one + 1, high // 2, value.high - 1])
    s.line(f"if {value.text} {r.choice(['<', '<='])} {limit}:")
    s.line(f"    {value.text} = {value.text} {r.choice(['+', '+', '*'])} {one}")
    scope.append(Ranged(value.text, value.dtype, (), low, high))


def _carried(s: Sketch, scope: list[Ranged]) -> None:
    """A number that a loop carries and changes, bounded or not."""
    r = s.r
    start = _named(s, r.choice(scope))
    low, high = limits(start.dtype)
    c = start.text
    count = r.choice(["2", "3", "31", "32", "7", "N"])
    s.line(f"for i in range({count}):")
    s.indent = "        "
    if r.random() < 0.4:
        bound = r.choice([high - 1, high // 2, start.high, start.high + 31])
        s.line(f"invariant({c} <= {min(bound, high)}, {c} >= {min(start.low, max(low, 0))})")
    one, factor = r.choice([1, 2, 100]), r.choice([2, 3])
    clamped = r.choice([high - one, high // 2, start.high, high])
    updates = [
        f"{c} + {one}", f"{c} * {factor}", f"{c} << 1", f"{c} - {one}", f"minimum({c} + {one}, {clamped})",
        f"minimum({c}, {high - one}) + {one}", f"maximum({c} - {one}, {max(low, 0)})",
        f"where({c} < {clamped}, {c} + {one}, {c})", f"where({c} > {clamped}, 0, {c} + {one})",
        f"{c} // 2", f"({c} + {one}) % {max(1, clamped)}", f"{c} >> 1",
    ]  # fmt: skip
    if r.random() < 0.35:
        s.line(f"if {c} {r.choice(['>', '>=', '=='])} {clamped}:")
        s.line(f"    {r.choice(['break', 'break', 'continue'])}")
    s.line(f"{c} = {r.choice(updates)}")
    if r.random() < 0.3:
        inside = "i" if start.dtype == "i32" else f"i32(i).astype({start.dtype})"
        s.line(f"{c} = {r.choice(['maximum', 'minimum'])}({c}, {inside})")
    s.indent = "    "
    scope.append(Ranged(c, start.dtype, (), low, high))


def _halved(s: Sketch, scope: list[Ranged]) -> None:
    """A search that halves an interval near the limits, with a midpoint that may wrap."""
    r = s.r
    top = r.choice([(1 << 31) - 1, (1 << 30), 1 << 30 | 1, 100])
    wanted = _loaded(s)
    s.line(f"low, high = i32(0), i32({top})")
    s.line(f"wanted = {wanted.text}.astype(i64)")
    s.line("while low < high:")
    s.line(f"    invariant(0 <= low, low <= high, high <= {top})")
    s.line(f"    middle = {r.choice(['(low + high) // 2', 'low + (high - low) // 2', '(low + high) >> 1'])}")
    s.line("    if middle.astype(i64) < wanted:")
    s.line("        low = middle + 1")
    s.line("    else:")
    s.line("        high = middle")
    scope.append(Ranged("low", "i32", (), 0, top))


def _access(s: Sketch, value: Ranged) -> None:
    """Reads a small tensor at the value, brought into it."""
    r = s.r
    size = r.choice([1, 7, 8])
    text = value.text
    options = [f"{text} % {size}", f"minimum(maximum({text}, 0), {size - 1})", f"clamp({text}, 0, {size - 1})"]
    options += [f"where(({text} >= 0) & ({text} < {size}), {text}, 0)"]
    options += [f"{text} & {size - 1}"] if size != 7 else []
    options += (
        [f"{text} // {value.high // size + 1}"] if value.low >= 0 and value.high // size + 1 <= limits(value.dtype)[1] else []
    )
    s.parameters.append(f"small: In[f32, {size}]")
    index = r.choice(options)
    if r.random() < 0.3:
        s.line(f"v = load(small, offset=({index}).astype(i64), shape=1)")
    elif r.random() < 0.3 and value.dtype == "i32":
        s.line(f"v = load(small, {text}, shape=4, pad=0)")
    else:
        s.line(f"v = load(small, ({index}).astype(i32))")
