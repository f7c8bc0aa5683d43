"""Kernels that promise by `ensures` what integers they leave: ranges, relative to what was there before, distinct, or sorted.
Right ones and wrong ones.

Lanes of blocks, iterations of a loop, or one tile are stored at indices that may permute them. A wrong kernel promises a
range that is off by one or a relation that does not hold, leaves a part of an `InOut` as it was, or carries a number
otherwise than its invariant says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.soundness.sketch import Sketch, WideKernel

if TYPE_CHECKING:
    import random

WRONG = 0.2
"""How often each decision is made wrongly."""


class Stored(NamedTuple):
    """Source text of the integers that are stored, their range `low <= v < high`, and relations between them."""

    text: str
    low: str
    high: str
    relations: tuple[str, ...] = ()


def promised(r: random.Random) -> WideKernel:
    """A kernel with one promise or two about one tensor."""
    s = Sketch(r, dims=[])
    part = r.choice([_lanes, _lanes, _lanes, _loop, _loop, _tile])
    part(s)
    kernel = s.kernel()
    kernel.schedule = " ".join(["promised", part.__name__.removeprefix("_"), *sorted(set(s.parts))])
    return kernel


def _lanes(s: Sketch) -> None:
    """Lanes of blocks, the last of which are outside."""
    r, width = s.r, s.r.choice([1, 2, 4])
    s.dims.append("N")
    limit = r.choice(["3", "5", "N"])
    facts = r.choice(["", "", ", distinct=True"]) if limit == "N" else r.choice(["", "", ", sorted=True"])
    s.parameters.append("x: In[i32, N]")
    s.head += [f"grid(cdiv(N, {width}))", f"values(x, 0, {limit}{facts})"]
    s.line(f"e = bid(0) * {width} + arange({width})")
    s.line(f"v = gather(x, e, pad={r.choice([0, 0, 7])})")
    relations = ("distinct",) if "distinct" in facts else ("sorted",) if "sorted" in facts else ()
    stored = r.choice([
        Stored("v", "0", limit, relations), Stored("v", "0", limit, relations), Stored("v + 1", "1", f"{limit} + 1", relations),
        Stored("v * 2 - 1", "-1", f"2 * {limit} - 2", relations), Stored("e", "0", "N", ("distinct", "sorted")),
        Stored("N - 1 - e", "0", "N", ("distinct",)), Stored("minimum(e, 3)", "0", "4", ("sorted",)),
        Stored("e // 2", "0", "N", ("sorted",)), Stored("e ^ 1", "0", "N + 1", ("distinct",)), Stored("v % 2", "0", "2"),
        Stored("where(v > 1, 1, 0)", "0", "2"), Stored("where(e > 0, e - 1, N - 1)", "0", "N", ("distinct",)),
    ])  # fmt: skip
    index = r.choice(["e", "e", "e", "N - 1 - e", "e ^ 1" if r.random() < WRONG else "e"])
    if index != "e":
        s.parts.append("moved")
        kept = () if "sorted" not in stored.relations else ("sorted",)
        stored = stored._replace(relations=tuple(one for one in stored.relations if one not in kept))
    access = _promise(s, "N", stored)
    condition = ""
    if access == "InOut" and r.random() < WRONG:
        condition = r.choice(["where(e > 0, {}, -1)", "where(v > 0, {}, N)"])
        s.parts.append("some")
    s.line(f"scatter(out, {condition.format(index) or index}, {_above(s, 'e', stored.text)}, mask=True)")


def _loop(s: Sketch) -> None:
    """Iterations of a loop, with a number that it carries and says something about."""
    r, extent = s.r, s.r.choice([2, 4, 8])
    s.parameters.append(f"x: In[i32, {extent}]")
    s.head += ["grid(1)", "values(x, 0, 3)"]
    carried, claim, stored = r.choice([
        ("c + where(load(x, j) > 0, 1, 0)", "0 <= c, c <= j", Stored("c", "0", f"{extent}", ("sorted",))),
        ("j + 1", "c == j", Stored("c", "0", f"{extent}", ("sorted", "distinct"))),
        ("maximum(c, load(x, j))", "0 <= c, c <= 2", Stored("c", "0", "3", ("sorted",))),
        ("maximum(minimum(load(x, j), j + 1), j + 1)", "c == j", Stored("minimum(c + 1, 2)", "1", "3", ("sorted",))),
        ("load(x, j)", "0 <= c, c <= 2", Stored("c + 1", "1", "4")),
        ("j + 1", "c == j, {} <= c + 1", Stored("1", "1", "2", ("sorted",))),
    ])  # fmt: skip
    index = r.choice(["j", "j", "j", f"{extent - 1} - j", "j ^ 1", "c" if claim.startswith("c == j") else "j"])
    if r.random() < 2 * WRONG:
        index = r.choice(
            [f"({index}) // 2", f"({index}) // 2", f"minimum({index}, {max(1, extent - 2)})", f"({index}) ^ {extent // 2}"]
        )
    if index not in ("j", "c"):
        stored = stored._replace(relations=tuple(one for one in stored.relations if one != "sorted"))
    access = _promise(s, str(extent), stored)
    if access == "InOut" and r.random() < WRONG / 2:
        s.parts.append("some")
        extent -= 1
    s.line("c = i32(0)")
    s.line(f"for j in range({extent}):")
    s.line(f"    invariant({claim.format(index)})")
    s.line(f"    store(out, {index}, {_above(s, index, stored.text)})")
    s.line(f"    c = {carried if r.random() > WRONG / 2 else r.choice(['c', 'j', 'load(x, j) + 1'])}")


def _tile(s: Sketch) -> None:
    """One tile, in a new order."""
    r, width = s.r, s.r.choice([2, 4, 8])
    s.parameters.append(f"x: In[i32, {width}]")
    s.head += ["grid(1)", "values(x, 0, 5)"]
    s.line(f"v = load(x, 0, shape={width})")
    stored = r.choice([
        Stored("argsort(v, 0)", "0", f"{width}", ("distinct",)), Stored("v", "0", "5"),
        Stored("sort(v, 0)", "0", "5", ("sorted",)),
        Stored("cumsum(where(v > 1, 1, 0), 0)", "0", f"{width} + 1", ("sorted",)),
        Stored("cumsum(where(v > 1, 1, 0), 0, exclusive=True)", "0", f"{width}", ("sorted",)),
        Stored(f"arange({width}) ^ 1", "0", f"{width}", ("distinct",)), Stored("cummax(v, 0)", "0", "5", ("sorted",)),
    ])  # fmt: skip
    index = r.choice([f"arange({width})", f"arange({width})", "argsort(v, 0)", f"{width - 1} - arange({width})"])
    if not index.startswith("arange"):
        stored = stored._replace(relations=tuple(one for one in stored.relations if one != "sorted"))
    access = _promise(s, str(width), stored)
    if access == "InOut" and r.random() < WRONG:
        index = f"({index}) // 2 * 2" if r.random() < 0.5 else f"where(v > 0, {index}, -1)"
        s.parts.append("some")
    s.line(f"scatter(out, {index}, {_above(s, '', stored.text)}, mask=True)")


def _promise(s: Sketch, extent: str, stored: Stored) -> str:
    """The tensor, what it holds before, and the promise; returns its access."""
    r = s.r
    access = r.choice(["Out", "Out", "InOut", "InOut"])
    s.parameters.append(f"out: {access}[i32, {extent}]")
    low, high = stored.low, stored.high
    if r.random() < WRONG:
        low, high = r.choice([(f"{low} + 1", high), (low, f"{high} - 1"), (f"{low} - 1", f"{high} + 1")])
    relations = [one for one in stored.relations if r.random() < 0.6]
    if r.random() < WRONG / 2:
        relations = [r.choice(["distinct", "sorted"])]
    if access == "InOut" and r.random() < 0.6:
        before = r.choice([(low, high), (low, high), ("0", "2"), (low, f"{high} + 1")])
        s.head.append(f"values(out, {before[0]}, {before[1]})")
        if r.random() < 0.3:
            s.parts.append("above")
    above = ", above=out" if "above" in s.parts else ""
    flags = "".join(f", {one}=True" for one in dict.fromkeys(relations) if not above)
    s.head.append(f"ensures(out, {low}, {high}{above}{flags})")
    s.parts += relations
    return access


def _above(s: Sketch, index: str, text: str) -> str:
    """What is stored where the promise is about the difference from what was there."""
    if "above" not in s.parts:
        return text
    if not index:
        return f"load(out, 0, shape={s.parameters[0].rpartition(', ')[2].rstrip(']')}) + {text}"
    return f"gather(out, e, pad=0) + {text}" if index == "e" else f"load(out, {index}) + {text}"
