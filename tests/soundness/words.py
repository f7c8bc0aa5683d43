"""Kernels over the whole language whose index tiles also go through its newer words: sorts, prefix sums and scans, flips,
halves that are joined and split, bits of another dtype, repetitions by `static_range`, tests for NaN, `print`, `resident`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.programs.typed_tiles import Shape, limits
from tests.soundness.bounded import Bounded, Ranged
from tests.soundness.sketch import Sketch, WideKernel
from tests.soundness.wide import grown

SHARE = 0.4
"""How often an expression ends in one of these words."""


def with_words(r: random.Random) -> WideKernel:
    """A kernel of `wide` with these words in its expressions, and a few statements of them."""
    s = Sketch(r)
    s.bounded = Worded(r, [], [], [], s.integers)
    return grown(s, _statements)


@dataclass(slots=True)
class Worded(Bounded):
    """Ranged expressions with the newer words."""

    def expression(self, shape: Shape, depth: int) -> Ranged:
        """A ranged tile, with probability `SHARE` through one of the words."""
        value = Bounded.expression(self, shape, depth)
        if depth <= 0 or self.r.random() > SHARE:
            return value
        options = [*self._numbers(value), *(self._along(value) if len(shape) == 1 else [])]
        fitting = [one for one in options if one.fits(one.dtype)]
        return self.r.choice(fitting) if fitting else value

    def _numbers(self, value: Ranged) -> list[Ranged]:
        """The value clamped, halved in width or with other bits."""
        low, high = sorted(self.r.sample(range(6), 2))
        clamped = [min(max(end, low), high) for end in (value.low, value.high)]
        found = [Ranged(f"clamp({value.text}, {low}, {high})", value.dtype, value.shape, clamped[0], clamped[1])]
        other = {"i32": "u32", "u32": "i32", "i64": "u64"}.get(value.dtype)
        if other is not None and value.low >= 0 and value.high <= limits(other)[1]:
            found.append(Ranged(f"bitcast({value.text}, {other})", other, value.shape, value.low, value.high))
        if value.dtype in ("i32", "u32"):
            factor = self.r.choice([1, 1 << 20, 1 << 30, limits(value.dtype)[1]])
            ends = [end * factor >> 32 for end in (value.low, value.high)]
            found.append(Ranged(f"mulhi({value.text}, {factor})", value.dtype, value.shape, *ends))
        return found

    def _along(self, value: Ranged) -> list[Ranged]:
        """Words that keep the shape of a tile with one axis."""
        (extent,), r = value.shape, self.r
        if extent & (extent - 1):
            return []
        text, low, high = value.text, value.low, value.high
        ways = r.choice(["", ", reverse=True"])
        same = [f"sort({text}, 0)", f"sort({text}, 0, descending=True)", f"flip({text}, 0)", f"cummax({text}, 0{ways})"]
        same.append(f"cummin({text}, 0{ways})")
        if extent > 1:
            same.append(f"butterfly({text}, 0, {r.choice([1, extent // 2])})")
        found = [Ranged(one, value.dtype, value.shape, low, high) for one in same]
        found.append(Ranged(f"argsort({text}, 0{r.choice(['', ', descending=True'])})", "i32", value.shape, 0, extent - 1))
        found.append(
            Ranged(f"cumsum({text}, 0{ways})", value.dtype, value.shape, min(low, low * extent), max(high, high * extent))
        )
        before = Ranged(f"cumsum({text}, 0, exclusive=True)", value.dtype, value.shape, *_before(low, high, extent))
        found += [before, before]
        if low >= 0 and high**extent < 1 << 16:
            found.append(
                Ranged(f"cumprod({text}, 0)", value.dtype, value.shape, min(low, low**extent), max(high, high**extent))
            )
        return found


def _before(low: int, high: int, extent: int) -> tuple[int, int]:
    """The interval of sums of up to `extent - 1` numbers."""
    return min(0, low * (extent - 1)), max(0, high * (extent - 1))


def _statements(s: Sketch, width: int) -> None:
    """One or two statements of the words."""
    for part in s.r.sample(
        [_halves, _largest, _scanned, _counted, _counted, _repeated, _not_a_number, _rounded, _printed, _resident], 2
    ):
        part(s, width)
        s.parts.append(part.__name__.removeprefix("_"))


def _also(s: Sketch, *values: Ranged) -> None:
    s.bounded.scope += [*values, *values]


def _halves(s: Sketch, width: int) -> None:
    """Two tiles as one, changed, and apart again."""
    a = s.bounded.expression((width,), 1)
    b = s.bounded.expression((width,), 1)
    dtypes = [dtype for dtype in s.integers if a.fits(dtype) and b.fits(dtype)]
    dtype = s.r.choice(dtypes)
    first, second = s.name("h"), s.name("h")
    s.line(f"{first}, {second} = split(join({s.bounded.cast(a, dtype).text}, {s.bounded.cast(b, dtype).text}))")
    _also(s, Ranged(first, dtype, (width,), a.low, a.high), Ranged(second, dtype, (width,), b.low, b.high))


def _largest(s: Sketch, width: int) -> None:
    """The largest elements, and where they are."""
    value = s.bounded.expression((width,), 2)
    count = s.r.choice([k for k in (1, 2, 4, 8) if k <= width])
    found, indices = s.name("h"), s.name("h")
    s.line(f"{found}, {indices} = topk({value.text}, {count}, 0)")
    _also(s, Ranged(found, value.dtype, (count,), value.low, value.high), Ranged(indices, "i32", (count,), 0, width - 1))


def _scanned(s: Sketch, width: int) -> None:
    """A scan by a tile function."""
    value = s.bounded.expression((width,), 2)
    name, found = s.name("step"), s.name("h")
    act = s.r.choice(["maximum(first, second)", "minimum(first, second)", "second", "where(first > second, first, second)"])
    s.helpers.append(f"@tilec.function\ndef {name}(first, second):\n    return {act}")
    s.line(f"{found} = scan({name}, {value.text}, 0{s.r.choice(['', ', reverse=True'])})")
    _also(s, Ranged(found, value.dtype, (width,), value.low, value.high))


def _counted(s: Sketch, width: int) -> None:
    """How many elements are marked before each in one tile, less those in another; both may have been through other shapes."""
    counts: list[str] = []
    for _ in range(2):
        value = s.bounded.expression((width,), 1)
        marks = f"where({value.text} > {s.r.randint(value.low, value.high)}, 1, 0)"
        if width > 2:
            marks += "".join(f".reshape((2, {width // 2})).reshape(({width},))" for _ in range(s.r.randint(0, 2)))
        counts.append(f"cumsum({marks}, 0{s.r.choice([', exclusive=True', ', exclusive=True', ', reverse=True', ''])})")
    name = s.name("h")
    s.line(f"{name} = {counts[0]} - {counts[1]}")
    _also(s, Ranged(name, "i32", (width,), -width, width))


def _repeated(s: Sketch, width: int) -> None:
    """A number that repetitions change."""
    start = s.bounded.expression((), 1)
    times, name = s.r.randint(1, 3), s.name("h")
    start = s.bounded.cast(start, s.r.choice([d for d in ("i32", "i64") if start.fits(d)] or ["u64"]))
    s.line(f"{name} = {start.text}")
    s.line(f"for u in static_range({times}):")
    s.line(f"    {name} = {name} + u")
    more = times * (times - 1) // 2
    _also(s, Ranged(name, start.dtype, (), start.low + more, start.high + more))


def _float(s: Sketch) -> str:
    dtype = s.r.choice(["f32", "f32", "f16", "bf16"])
    return f"load({s.tensor('In', dtype, s.rows)}, {s.row})"


def _not_a_number(s: Sketch, width: int) -> None:
    name = s.name("q")
    s.line(f"{name} = {s.r.choice(['isnan', 'isinf', 'isfinite'])}({_float(s)})")
    s.bounded.conditions.append(name)


def _rounded(s: Sketch, width: int) -> None:
    name = s.name("d")
    dtype = s.r.choice(["i32", "i8", "u8", "i64"])
    s.line(f"{name} = round({_float(s)}).astype({dtype})")
    s.bounded.data.append((name, dtype, ()))


def _printed(s: Sketch, width: int) -> None:
    value = s.bounded.expression(s.r.choice([(), (width,)]), 1)
    s.line(f'tilec.print("number {{}}", {value.text})')


def _resident(s: Sketch, width: int) -> None:
    tensor = s.tensor("In", "i32", s.rows)
    s.head.append(f"resident({tensor})")
    name = s.name("d")
    s.line(f"{name} = load({tensor}, {s.row})")
    s.bounded.data.append((name, "i32", ()))
