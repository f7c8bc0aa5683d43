"""Kernels whose writes cover an `Out` only together, under conditions, or at computed positions: right ones and wrong ones.

A kernel visits the elements of `out` in loops, blocks or lanes. Conditions choose which of two or three writes takes one: of
block ids, iterations, positions, launch scalars, loaded elements, prefix sums, orders of sorted elements, bits, quotients. In a
wrong kernel a boundary is off by one, a condition is no complement, or fewer elements are visited than `out` has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.soundness.positions import digits, packed, parted, ragged, shared
from tests.soundness.sketch import Sketch, WideKernel

WRONG = 0.25
"""How often each decision is made wrongly."""
COMPLEMENTS = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
NEAR = {"<": (">",), ">=": ("<=",), "<=": (">=",), ">": ("<",), "==": (">", "<"), "!=": ("<=", ">=")}
"""Comparisons that are almost the complement: one element is in both or in neither."""


@dataclass(slots=True)
class Visit:
    """What visits an element: `at` is its index in source text, `j` the last of it; `width` of lanes, or 0 for a scalar;
    `outside` is an index that no element has, `exact` whether every visited index is that of an element."""

    at: str
    j: str
    width: int
    outside: str
    exact: bool


def written_together(r: random.Random) -> WideKernel:
    """A kernel of two or three writes, or of one at computed positions."""
    s = Sketch(r, dims=[])
    roll = r.random()
    if roll < 0.72:
        _conditional(s)
    else:
        part = r.choice([shared, digits, ragged, parted, packed])
        part(s)
        s.parts.append(part.__name__)
    kernel = s.kernel()
    kernel.schedule = " ".join(["writes", *sorted(set(s.parts))])
    return kernel


def _conditional(s: Sketch) -> None:
    r = s.r
    visit = r.choice([_loop, _loop, _lanes, _lanes, _blocks])(s)
    kinds = [_position, _bits, _loaded, _launch, _prefix_sums if visit.width else _chosen]
    kind = r.choice(kinds)
    quantity, thresholds = kind(s, visit)
    threshold = r.choice(thresholds)
    sign = r.choice(list(COMPLEMENTS))
    first = f"{quantity} {sign} {threshold}"
    other = COMPLEMENTS[sign]
    second = f"{quantity} {other} {threshold}"
    if r.random() < WRONG:
        wrong = [f"{quantity} {r.choice(NEAR[sign])} {threshold}", f"{quantity} {other} {threshold} + 1"]
        second = r.choice([*wrong, f"{quantity} {other} {threshold} - 1", f"{visit.j} {other} {threshold}", first])
    form = r.choice([_lane_writes, _lane_writes, _three_lane_writes] if visit.width else _FORMS)
    form(s, visit, first, second, (quantity, threshold))
    s.parts += [kind.__name__.removeprefix("_"), form.__name__.removeprefix("_")]


def _loop(s: Sketch) -> Visit:
    """Rows by blocks, columns by a loop, some of which visits too few or too many."""
    r = s.r
    s.dims += ["M", "N"]
    s.head.append("grid(M)")
    s.line("b = bid(0)")
    limit, extent = r.choice([("N", "N"), ("N", "N"), ("4", "4"), ("8", "8")])
    exact = r.random() > WRONG
    j = "j"
    if not exact:
        limit, extent = r.choice([("4", "N"), ("N", "N + 1"), ("N", "N - 1"), ("4", "5"), ("5", "N"), ("5", "4"), ("3", "N")])
        j = r.choice(["j", "j", "j + 1", f"j + {extent}" if extent.isdigit() else "j + 2", "j // 2", "4 - j"])
        exact = False
    elif r.random() < 0.15:
        j = f"{limit} - 1 - j"
    s.parameters.append(f"out: Out[f32, M, {extent}]")
    _names(s, "N", limit, extent)
    s.line(f"for j in range({limit}):")
    s.indent += "    "
    return Visit(f"(b, {j})", j if j.isalpha() else f"({j})", 0, "(b, -1)", exact)


def _blocks(s: Sketch) -> Visit:
    """One block for each element, of one axis or two."""
    r = s.r
    s.dims += ["M", "N"]
    exact = r.random() > WRONG
    if r.random() < 0.4:
        extent = "N" if exact else r.choice(["N + 1", "N - 1", "cdiv(N, 2) * 2"])
        s.head.append("grid(N)")
        s.line("b = bid(0)")
        s.parameters.append(f"out: Out[f32, {extent}]")
        s.dims.remove("M")
        _names(s, "N", "", extent)
        return Visit("b", "b", 0, "-1", exact)
    count, extent = ("N", "N") if exact else r.choice([("N - 1", "N"), ("N", "N + 1"), ("cdiv(N, 2)", "N"), ("4", "N")])
    s.head.append(f"grid(M, {count})")
    s.line("b, j = bid(0), bid(1)")
    s.parameters.append(f"out: Out[f32, M, {extent}]")
    _names(s, "N", count, extent)
    return Visit("(b, j)", "j", 0, "(b, -1)", exact)


def _lanes(s: Sketch) -> Visit:
    """Positions of a tile, in one block or in one for each row."""
    r = s.r
    width = r.choice([2, 4, 4, 8, 16])
    exact = r.random() > WRONG
    extent = str(width) if exact else r.choice(["N", str(width + 1), "N"])
    rows = r.random() < 0.5
    s.line("b = bid(0)")
    s.head.append("grid(M)" if rows else "grid(1)")
    s.dims += ["M"] * rows + ["N"] * (extent == "N")
    s.parameters.append(f"out: Out[f32, {'M, ' * rows}{extent}]")
    if extent == "N" and r.random() < 0.4:
        s.head.append(f"requires(N <= {width})")
    j = f"arange({width})"
    roll = r.random()
    if roll < 0.1:
        j = f"({width - 1} - {j})"
    elif roll < 0.2:
        j = f"flip({j}, 0)"
    elif roll < 0.3:
        j = f"butterfly({j}, 0, 1)"
    elif roll < 0.37:
        j = f"({j} + 1)"
    s.line(f"p = {j}")
    outside = r.choice([extent, extent, "-1", str(width) if exact else extent])
    return Visit("(b, {})" if rows else "{}", "p", width, outside, exact)


def _names(s: Sketch, dim: str, *texts: str) -> None:
    """Gives a tensor the dim if an extent that does not determine it, or the grid, names it."""
    if not any(f", {dim}]" in one or f"[f32, {dim}" in one for one in s.parameters) and any(dim in text for text in texts):
        s.parameters.append(f"{s.name('w')}: In[f32, {dim}]")


# Quantities of conditions: source text, and numbers to compare it with.
Quantity = tuple[str, list[str]]


def _position(s: Sketch, visit: Visit) -> Quantity:
    j, r = visit.j, s.r
    divisor = r.choice([2, 3, 4])
    return r.choice([
        (j, ["1", "2", "4"]), (f"{j} % {divisor}", ["1", str(divisor - 1)]), (f"{j} // {divisor}", ["1", "2"]),
        (f"({j} & 1)", ["1"]), (f"({j} & {divisor})", ["1", str(divisor)]), (f"({j} >> 1)", ["1", "2"]),
        (f"({j} + b)", ["2", "3"]), (f"abs({j} - b)", ["1", "2"]), (f"(2 * {j} - b)", ["0", "1"]), (j, ["b", "b + 1"]),
        (f"({j} + b) % 2", ["1"]), (f"({j} ^ b)", ["1", "2"]), (f"clamp({j} - 1, 0, 2)", ["1", "2"]), ("b", ["1", "2"]),
    ])  # fmt: skip


def _row_element(s: Sketch) -> str:
    """An element for each row or block, loaded or, where the tensor has none, 0; the name of it."""
    r = s.r
    name, tensor = s.name("v"), s.name("x")
    dtype = r.choice(["i32", "i32", "i32", "u8", "i64", "u32"])
    extent = next((dim for dim in ("M", "N") if dim in s.dims and f"grid({dim}" in s.head[0]), "1")
    bounded = r.random()
    if bounded < 0.3:
        high = r.choice(["4", "9", "32", extent])
        s.head.append(f"values({tensor}, 0, {high})")
    depth, lines = s.indent, len(s.body)
    loop = next((k for k, line in enumerate(s.body) if line.strip().startswith("for ")), lines)
    if r.random() < 0.25 and extent != "1":
        part = r.choice([f"{extent} // 2", f"cdiv({extent}, 2)", "K"])
        s.dims += ["K"] * (part == "K" and "K" not in s.dims)
        text = [f"{name} = i32(0)", f"if b < {part}:", f"    {name} = load({tensor}, b).astype(i32)"]
        extent = part.replace(f"cdiv({extent}, 2)", f"({extent} + 1) // 2")
    else:
        text = [f"{name} = load({tensor}, {'b' if extent != '1' else '0'}).astype(i32)"]
    s.parameters.append(f"{tensor}: In[{dtype}, {extent}]")
    s.body[loop:loop] = [f"    {line}" for line in text]
    s.indent = depth
    return name


def _tile(s: Sketch, visit: Visit) -> str:
    """A loaded tile for the lanes."""
    name, tensor = s.name("t"), s.name("y")
    dtype = s.r.choice(["i32", "i32", "u8", "i16", "f32"])
    rows = "M" in s.dims
    s.parameters.append(f"{tensor}: In[{dtype}, {'M, ' * rows}{visit.width}]")
    if dtype != "f32" and s.r.random() < 0.5:
        s.head.append(f"values({tensor}, 0, {s.r.choice(['3', '9', str(visit.width)])})")
    cast = s.r.choice([".astype(i32)", ".astype(i32)", ""])
    box = f"({tensor}, (b, 0), shape=(1, {visit.width}))" if rows else f"({tensor}, 0, shape={visit.width})"
    s.line(f"{name} = load{box}.reshape(({visit.width},)){cast if dtype != 'f32' else ''}")
    return name


def _loaded(s: Sketch, visit: Visit) -> Quantity:
    r, j = s.r, visit.j
    if visit.width and r.random() < 0.5:
        t = _tile(s, visit)
        return t, ["1", "0", "3"]
    v = _row_element(s)
    return r.choice([
        (v, ["1", "5"]), (f"{v} % 2", ["0", "1"]), (f"({v} & 1)", ["1"]), (f"abs({v} // 4)", ["1"]), (v, [j, f"{j} // 2"]),
        (f"minimum({v}, {j})", ["1", "2"]), (f"maximum({v}, {j})", ["2", "3"]), (j, [v]), (f"({v} >> 1)", ["1", j]),
    ])  # fmt: skip


def _bits(s: Sketch, visit: Visit) -> Quantity:
    r, j = s.r, visit.j
    v = _row_element(s) if r.random() < 0.7 else "b"
    return r.choice([
        (f"({v} ^ {j})", ["1", "2", "3"]), (f"({v} >> {j}) % 2", ["0", "1"]), (f"({v} >> {j} & 1)", ["0", "1"]),
        (v, [f"(1 << {j})"]), (f"({v} & {j})", ["0", "1"]), (f"({v} | {j})", ["3", "2"]), (f"({v} & 1 << {j})", ["0"]),
        (f"(~{j} & 3)", ["1", "2"]), (f"({j} << 1)", ["2", v]), (f"mulhi({v}, {j})", ["0"]), (f"(1 << {j})", ["4", "3"]),
    ])  # fmt: skip


def _launch(s: Sketch, visit: Visit) -> Quantity:
    r, j = s.r, visit.j
    s.parameters.append(f"S: {r.choice(['i32', 'i32', 'i32', 'u8'])}")
    if r.random() < 0.7:
        low = r.choice([0, 1, 2, 17])
        s.head.append(f"requires(S >= {low}, S <= {low + r.choice([2, 5, 23])})")
    divisor = "S" if any("requires(S >= 1" in line or "requires(S >= 2" in line for line in s.head) else "maximum(S, 1)"
    return r.choice([
        (j, ["S", "S - 1", "S // 2"]), ("S", ["2", j, "b"]), (f"({j} % {divisor})", ["1"]), (f"({j} // {divisor})", ["1"]),
        (f"({j} + S) % 2", ["0", "1"]), (f"((1 << {j}) // {divisor})", ["1"]), (f"(S >> {j})", ["1"]), (f"{j} * S", ["3", "b"]),
    ])  # fmt: skip


def _chosen(s: Sketch, visit: Visit) -> Quantity:
    """A number that a branch, a loop or a reduction leaves."""
    r, j = s.r, visit.j
    v = _row_element(s)
    c = s.name("c")
    roll = r.random()
    if roll < 0.4:
        s.line(f"{c} = {j} if {v} > {r.choice(['0', '2', j])} else {r.choice(['0', 'b', f'3 - {j}', v])}")
    elif roll < 0.7:
        s.line(f"{c} = {j}")
        s.line(f"if {v} {r.choice(['<', '>', '=='])} {r.choice(['1', j])}:")
        s.line(f"    {c} = {r.choice(['0', v, 'b', f'{j} // 2'])}")
    else:
        s.line(f"{c} = i32(0)")
        s.line(f"for k in range({r.choice(['2', '3'])}):")
        s.line(f"    if {v} > k:")
        s.line(f"        {c} = {c} + 1" if r.random() < 0.6 else f"        {c} = k\n{s.indent}        break")
    return c, ["1", "2", j]


def _prefix_sums(s: Sketch, visit: Visit) -> Quantity:
    """Sums up to a lane, and places in a sorted order."""
    r, t, width = s.r, _tile(s, visit), visit.width
    c = s.name("c")
    positive = f"where({t} > {r.choice([0, 1])}, 1, 0)"
    exclusive = r.choice(["", ", exclusive=True", ", reverse=True"])
    texts = [
        f"cumsum({positive}, 0{exclusive})", f"cumsum({positive}, 0{exclusive})", f"argsort({t}, 0)",
        f"argsort({t}, 0{r.choice(['', ', descending=True'])})", f"cummax({positive} * p, 0)", f"cummin({positive}, 0)",
        f"sort({positive}, 0)", f"take({positive}, argsort({t}, 0), 0)", f"cumprod({positive}, 0)",
        f"tilec.sum({positive}) + zeros(({width},), i32)", f"flip(cumsum({positive}, 0), 0)",
    ]  # fmt: skip
    s.line(f"{c} = {r.choice(texts)}")
    if r.random() < 0.15:
        zero = f"zeros({width}, i32)"
        s.line(f"{c} = {c} + take({c}, {zero}, 0) + take({c}, {zero} + {width - 1}, 0)")
    return c, ["1", "2", "p", str(width // 2), "tilec.max(" + c + ")"]


# Forms of writes.


def _write(s: Sketch, visit: Visit, at: str | None = None) -> str:
    text = "zeros((1, 1), f32)" if visit.at.startswith("(") else "zeros((1,), f32)"
    return f"store(out, {at or visit.at}, {text}, mask=True)" if at or not visit.exact else f"store(out, {visit.at}, 1.0)"


def _if_else(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    s.line(f"if {first}:")
    s.line(f"    {_write(s, visit)}")
    s.line("else:" if s.r.random() > WRONG else f"elif {second}:")
    s.line(f"    {_write(s, visit)}")


def _two_ifs(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    for condition in (first, second):
        s.line(f"if {condition}:")
        s.line(f"    {_write(s, visit)}")


def _two_masks(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    """Each write goes outside where its condition is false."""
    last = visit.at.removeprefix("(b, ").removesuffix(")")
    for condition in (first, second):
        depth = s.name("a")
        s.line(f"{depth} = {last} if {condition} else {s.r.choice(['-1', '-1', '100000'])}")
        s.line(_write(s, visit, f"(b, {depth})" if visit.at != "b" else depth))


def _three_ifs(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    quantity, threshold = parts
    more = s.r.choice(["1", "2"])
    middle = more if s.r.random() > WRONG else "1" if more == "2" else "2"
    for condition in (
        f"{quantity} < {threshold}",
        f"{quantity} >= {threshold} and {quantity} < {threshold} + {middle}",
        f"{quantity} >= {threshold} + {more}",
    ):
        s.line(f"if {condition}:")
        s.line(f"    {_write(s, visit)}")


def _nested(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    inner = s.r.choice(["b > 0", "b % 2 == 0", f"{visit.j} > 1"])
    s.line(f"if {inner}:")
    s.line(f"    {_write(s, visit)}")
    s.line("else:")
    for condition in (first, second):
        s.line(f"    if {condition}:")
        s.line(f"        {_write(s, visit)}")


def _continued(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    s.line(f"if {first}:")
    s.line(f"    {_write(s, visit)}")
    if s.indent != "    ":
        s.line(f"    {'continue' if s.r.random() > WRONG else 'break'}")
    else:
        s.line("    return")
    s.line(_write(s, visit))


def _lane_writes(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    if s.r.random() < 0.25:
        name = s.name("q")
        s.line(f"{name} = {first}")
        first, second = name, f"~{name}" if s.r.random() > WRONG else second
    _scatters(s, visit, [first, second])


def _three_lane_writes(s: Sketch, visit: Visit, first: str, second: str, parts: tuple[str, str]) -> None:
    quantity, threshold = parts
    more = s.r.choice(["1", "2"])
    middle = more if s.r.random() > WRONG else "1" if more == "2" else "2"
    inside = f"({quantity} >= {threshold}) & ({quantity} < {threshold} + {middle})"
    _scatters(s, visit, [f"{quantity} < {threshold}", inside, f"{quantity} >= {threshold} + {more}"])


def _scatters(s: Sketch, visit: Visit, conditions: list[str]) -> None:
    for condition in conditions:
        at = visit.at.format(f"where({condition}, {visit.j}, {visit.outside})")
        s.line(f"scatter(out, {at}, zeros(({visit.width},), f32), mask=True)")


_FORMS = [_if_else, _two_ifs, _two_ifs, _two_ifs, _two_masks, _three_ifs, _nested, _continued]
