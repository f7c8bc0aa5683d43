"""Random integer expressions with a known range, from which correct index tiles of wide kernels are made.

Each expression has the interval of its values, so that it never overflows its dtype and a sufficient tensor extent is known.
All integer dtypes and operations occur; tiles are reshaped, permuted, reduced and cast in between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.programs.typed_tiles import BITS, INTEGERS, Shape, limits, tuple_text


@dataclass(frozen=True, slots=True)
class Ranged:
    """Source text of a tile and the interval of its elements."""

    text: str
    dtype: str
    shape: Shape
    low: int
    high: int

    def fits(self, dtype: str) -> bool:
        """True if every value is one of the dtype."""
        low, high = limits(dtype)
        return low <= self.low and self.high <= high


Option = tuple[str, int, int]
"""Source text of a result and the interval of its elements."""


def combinations(a: Ranged, b: Ranged) -> list[Option]:
    """Sum, difference, product, minimum and maximum."""
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return [
        (f"(({a.text}) + ({b.text}))", a.low + b.low, a.high + b.high),
        (f"(({a.text}) - ({b.text}))", a.low - b.high, a.high - b.low),
        (f"(({a.text}) * ({b.text}))", min(corners), max(corners)),
        (f"minimum({a.text}, {b.text})", min(a.low, b.low), min(a.high, b.high)),
        (f"maximum({a.text}, {b.text})", max(a.low, b.low), max(a.high, b.high)),
    ]


@dataclass(slots=True)
class Bounded:
    """Generates ranged expressions from ranged variables in `scope` and from `data`: names of integer tiles or scalars of any
    value, as `(name, dtype, shape)`; `conditions` are names of bool scalars."""

    r: random.Random
    scope: list[Ranged]
    data: list[tuple[str, str, Shape]]
    conditions: list[str]
    integers: tuple[str, ...] = INTEGERS

    def leaf(self, shape: Shape) -> Ranged:
        """A variable, positions, or data reduced to a small range."""
        in_scope = [v for v in self.scope if v.shape == shape]
        data = [d for d in self.data if d[2] == shape]
        roll = self.r.random()
        if in_scope and roll < 0.45:
            return self.r.choice(in_scope)
        if data and roll < 0.75:
            return self._reduced_data(*self.r.choice(data))
        if len(shape) == 1:
            return self._positions(shape[0])
        number = self.r.randint(0, 4)
        text = f"full({tuple_text(shape)}, {number}, i32)" if shape else f"i32({number})"
        return Ranged(text, "i32", shape, number, number)

    def _positions(self, extent: int) -> Ranged:
        text, roll = f"arange({extent})", self.r.random()
        if extent % 2 == 0 and roll < 0.3:
            text = f"{text}.reshape(({extent // 2}, 2)).permute((1, 0)).reshape(({extent},))"
        elif roll < 0.4:
            text = f"tilec.max(arange({extent * 2}).reshape(({extent}, 2)), axis=1)"
            return Ranged(text, "i32", (extent,), 0, extent * 2 - 1)
        elif roll < 0.5:
            text = f"tilec.argmax(arange({extent * 2}).reshape(({extent}, 2)), axis=1)"
            return Ranged(text, "i32", (extent,), 0, 1)
        return Ranged(text, "i32", (extent,), 0, extent - 1)

    def _reduced_data(self, name: str, dtype: str, shape: Shape) -> Ranged:
        limit = self.r.randint(1, 6)
        low, high = limits(dtype)
        options = [(f"({name} % {limit + 1})", 0, limit), (f"({name} & {7})", 0, 7)]
        options.append((f"minimum(maximum({name}, {max(low, -1)}), {limit})", max(low, -1), limit))
        options.append((f"where(({name} >= 0) & ({name} <= {limit}), {name}, 0)", 0, limit))
        options.append((f"({name} >> {BITS[dtype] - 2})", low >> (BITS[dtype] - 2), high >> (BITS[dtype] - 2)))
        options.append((f"where({name} > 1, 0, {limit}).astype({dtype})", 0, limit))
        text, low, high = self.r.choice(options)
        return Ranged(text, dtype, shape, low, high)

    def cast(self, value: Ranged, dtype: str) -> Ranged:
        """The value in another dtype that contains its range."""
        if value.dtype == dtype:
            return value
        text = f"({value.text}).astype({dtype})" if self.r.random() < 0.7 else f"{dtype}({value.text})"
        return Ranged(text, dtype, value.shape, value.low, value.high)

    def expression(self, shape: Shape, depth: int) -> Ranged:
        """A ranged tile."""
        if depth <= 0 or self.r.random() < 0.15:
            return self.leaf(shape)
        a = self.expression(shape, depth - 1)
        roll = self.r.random()
        if roll < 0.25:
            return self.cast(a, self.r.choice([d for d in self.integers if a.fits(d)]))
        if roll < 0.4:
            combined = self._unary(a)
        else:
            combined = self._binary(a, self.expression(shape, depth - 1))
        return (
            combined if combined is not None and combined.fits(combined.dtype) and combined.high - combined.low < 1 << 20 else a
        )

    def _unary(self, a: Ranged) -> Ranged | None:
        shift, divisor = self.r.randint(1, 2), self.r.randint(2, 4)
        options = [
            (f"(-({a.text}))", -a.high, -a.low),
            (f"(~({a.text}))", ~a.high, ~a.low),
            (f"abs({a.text})", 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high))),
            (f"(({a.text}) << {shift})", a.low << shift, a.high << shift),
            (f"(({a.text}) >> {shift})", a.low >> shift, a.high >> shift),
            (f"(({a.text}) // {divisor})", a.low // divisor, a.high // divisor),
            (f"(({a.text}) % {divisor})", 0, divisor - 1),
            (f"(({a.text}) * {divisor})", a.low * divisor, a.high * divisor),
            (f"(({a.text}) & 3)", 0, 3),
        ]
        if a.dtype[0] == "u":
            options = options[2:]
        if len(a.shape) == 1 and a.shape[0] % 2 == 0:
            transposed = f"({a.text}).reshape((2, {a.shape[0] // 2})).permute((1, 0)).reshape(({a.shape[0]},))"
            options += [(transposed, a.low, a.high)] * 3
        text, low, high = self.r.choice(options)
        return Ranged(text, a.dtype, a.shape, low, high)

    def _binary(self, a: Ranged, b: Ranged) -> Ranged | None:
        common_dtypes = [d for d in self.integers if a.fits(d) and b.fits(d)]
        dtype = self.r.choice([d for d in common_dtypes if d in (a.dtype, b.dtype)] or common_dtypes)
        a, b = self.cast(a, dtype), self.cast(b, dtype)
        if dtype[0] != "u" and self.r.random() < 0.1:
            b = self.cast(a, dtype)
        options = combinations(a, b)
        if len(a.shape) == 1 and a.shape[0] % 2 == 0 and self.r.random() < 0.2:
            b = Ranged(f"({a.text}).reshape((2, {a.shape[0] // 2})).permute((1, 0)).reshape(({a.shape[0]},))", *_type(a))
            options = [(f"(({a.text}) - {b.text})", a.low - a.high, a.high - a.low)]
        elif self.conditions and self.r.random() < 0.4:
            condition = self.r.choice(self.conditions)
            options = [(f"where({condition}, {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high))]
        elif b.low >= 1 and self.r.random() < 0.6:
            options = [(f"(({a.text}) % ({b.text}))", 0, b.high - 1)]
        text, low, high = self.r.choice(options)
        return Ranged(text, dtype, a.shape, low, high)


def _type(value: Ranged) -> tuple[str, Shape, int, int]:
    return value.dtype, value.shape, value.low, value.high
