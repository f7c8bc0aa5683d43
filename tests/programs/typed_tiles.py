"""Random typed expressions of the kernel language, as source text: all dtypes, all operations on values, any static shape.

`Tiles.expression(dtype, shape, depth)` gives the text of a tile computed from the variables in scope. Nothing here determines
an address, so every operation may get every value: zero divisors, shifts by the width, NaN, the ends of each range. The mode
selects the float operations. `sums` and `products` have one correct result in every implementation: sums, differences,
quotients and roots round once, and so do products, except that a product and a sum may be fused. `smooth` has all of them,
reductions and approximations, and nothing that could amplify a small difference: no float determines an integer, a bool or a
step function.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32")
INTEGERS = SIGNED + UNSIGNED
"""Those of programs without u64, which a kind of their own has: so programs of a number stay what they were."""
FLOATS = ("f32", "f16", "bf16")
NARROW_FLOATS = ("f8e4m3", "f8e5m2")
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64}
APPROXIMATE = ("exp2", "exp", "log2", "log", "rsqrt", "tanh", "sigmoid", "sin", "cos")
EXACT_UNARY = ("floor", "ceil", "sqrt")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A name in scope."""

    name: str
    dtype: str
    shape: Shape


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    bits = BITS[dtype]
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def tuple_text(shape: Shape) -> str:
    """A shape as source text."""
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


@dataclass(slots=True)
class Tiles:
    """Generates expressions. `scope` may grow between calls; `max_elements` bounds the elements of any intermediate tile."""

    r: random.Random
    scope: list[Variable]
    mode: str = "any"  # any, sums, products, smooth
    max_elements: int = 1024
    dtypes: tuple[str, ...] = INTEGERS + FLOATS
    folds: tuple[int, ...] = (2, 4, 8, 16)  # extents of reduced axes
    used: set[str] = field(default_factory=set[str])

    @property
    def exact(self) -> bool:
        """True if every result has a single correct value."""
        return self.mode in ("sums", "products")

    def sources(self, dtype: str) -> list[str]:
        """Dtypes that may be converted to `dtype`, or compared to give it."""
        dtypes = [*self.dtypes, "boolean"]
        return dtypes if self.mode != "smooth" or dtype in FLOATS else [d for d in dtypes if d not in FLOATS]

    def scalar_condition(self) -> str:
        """A condition on data: a reduction of some tile in scope."""
        tiles = [v for v in self.scope if v.shape and v.dtype != "boolean" and v.dtype in self.sources("boolean")]
        if not tiles:
            return "b > 0"
        value = self.r.choice(tiles)
        text = f"{value.name}.reshape(({prod(value.shape)},))"
        roll = self.r.random()
        if roll < 0.3:
            return f"tilec.argmax({text}) {self.r.choice(['>', '<='])} {prod(value.shape) // 2}"
        return f"tilec.{self.r.choice(['max', 'min'])}({text}) {self.r.choice(['>', '<', '!=', '=='])} {self.r.choice([0, 1])}"

    def number(self, dtype: str) -> str:
        """A literal of the dtype: small numbers, and the ends of its range."""
        if dtype == "boolean":
            return self.r.choice(["True", "False"])
        if dtype in BITS:
            low, high = limits(dtype)
            low = max(low, -(2**62))
            return str(self.r.choice([0, 1, 2, 3, 5, 7, high, high - 1, low, min(high, 31), max(low, -1)]))
        return self.r.choice(["0.0", "-0.0", "1.0", "0.5", "-2.0", "3.25", "100.0", "-0.375"])

    def leaf(self, dtype: str, shape: Shape) -> str:
        """A variable of that type, reshaped or broadcast if that helps, or a constant."""
        same = [v.name for v in self.scope if v.dtype == dtype and v.shape == shape]
        sized = [v.name for v in self.scope if v.dtype == dtype and shape and v.shape and prod(v.shape) == prod(shape)]
        spread = [v for v in self.scope if v.dtype == dtype and _spreads(v.shape, shape)]
        cast = [v.name for v in self.scope if v.dtype in self.sources(dtype) and v.shape == shape]
        roll = self.r.random()
        if same and roll < 0.6:
            return self.r.choice(same)
        if sized and roll < 0.75:
            return f"{self.r.choice(sized)}.reshape({tuple_text(shape)})"
        if spread and roll < 0.85:
            return f"broadcast_to({self.r.choice(spread).name}, {tuple_text(shape)})"
        if cast and roll < 0.95 and dtype != "boolean":
            return f"{self.r.choice(cast)}.astype({dtype})"
        if dtype == "i32" and len(shape) == 1 and roll < 0.98:
            return f"arange({shape[0]})"
        if same:
            return self.r.choice(same)
        fitted = [text for v in self.r.sample(self.scope, len(self.scope)) if (text := self.fitted(v, dtype, shape))]
        if fitted and self.r.random() < 0.85:
            return fitted[0]
        return f"full({tuple_text(shape)}, {self.number(dtype)}, {dtype})" if shape else f"{dtype}({self.number(dtype)})"

    def fitted(self, v: Variable, dtype: str, shape: Shape) -> str:
        """A variable reduced or repeated to a shape and cast, or an empty string if that is impossible."""
        size, target_size = prod(v.shape), prod(shape)
        if not v.shape or not shape or (v.dtype != dtype and v.dtype not in self.sources(dtype)):
            return ""
        if size % target_size == 0 and v.dtype != "boolean":
            text = f"tilec.max({v.name}.reshape(({target_size}, {size // target_size})), axis=1).reshape({tuple_text(shape)})"
        elif target_size % size == 0:
            text = f"broadcast_to({v.name}.reshape((1, {size})), ({target_size // size}, {size})).reshape({tuple_text(shape)})"
        else:
            return ""
        return text if v.dtype == dtype else f"{text}.astype({dtype})"

    def expression(self, dtype: str, shape: Shape, depth: int) -> str:
        """Text of a tile of that type, every operand parenthesized."""
        if depth <= 0 or self.r.random() < 0.12:
            return self.leaf(dtype, shape)
        roll = self.r.random()
        if roll < 0.14:
            return self._cast(dtype, shape, depth)
        if roll < 0.22:
            condition = self.expression("boolean", shape, depth - 1)
            a, b = self.expression(dtype, shape, depth - 1), self.expression(dtype, shape, depth - 1)
            return f"where({condition}, {a}, {b})"
        if roll < 0.34 and shape:
            return self._moved(dtype, shape, depth)
        if roll < 0.44 and dtype != "boolean":
            reduced = self._reduced(dtype, shape, depth)
            if reduced is not None:
                return reduced
        if dtype == "boolean":
            return self._truth(shape, depth)
        return self._integer(dtype, shape, depth) if dtype in BITS else self._float(dtype, shape, depth)

    def _cast(self, dtype: str, shape: Shape, depth: int) -> str:
        source = self.r.choice([d for d in self.sources(dtype) if d != dtype])
        return f"({self.expression(source, shape, depth - 1)}).astype({dtype})"

    def _moved(self, dtype: str, shape: Shape, depth: int) -> str:
        """A permutation, a reshape, or a broadcast axis."""
        roll = self.r.random()
        if roll < 0.4 and len(shape) > 1:
            axes = list(range(len(shape)))
            self.r.shuffle(axes)
            source = [0] * len(shape)
            for index, axis in enumerate(axes):
                source[axis] = shape[index]
            return f"({self.expression(dtype, tuple(source), depth - 1)}).permute({tuple_text(tuple(axes))})"
        if roll < 0.75:
            return f"({self.expression(dtype, self.refactored(shape), depth - 1)}).reshape({tuple_text(shape)})"
        source = tuple(1 if self.r.random() < 0.5 else extent for extent in shape)
        return f"broadcast_to({self.expression(dtype, source, depth - 1)}, {tuple_text(shape)})"

    def refactored(self, shape: Shape) -> Shape:
        """Another shape with the same number of elements."""
        rest, found = prod(shape), list[int]()
        while rest > 1 and len(found) < 2:
            factor = self.r.choice([f for f in range(1, rest + 1) if rest % f == 0])
            found.append(factor)
            rest //= factor
        return (*found, rest) if rest > 1 or not found else tuple(found)

    def _reduced(self, dtype: str, shape: Shape, depth: int) -> str | None:
        extents = [e for e in self.folds if e * prod(shape) <= self.max_elements]
        if not extents or len(shape) > 2:
            return None
        axis = self.r.randint(0, len(shape))
        wide = (*shape[:axis], self.r.choice(extents), *shape[axis:])
        kinds = ["max", "min"] if self.exact and dtype not in BITS else ["sum", "max", "min"]
        if dtype == "i32" and self.r.random() < 0.4:
            source = self.r.choice([d for d in self.sources(dtype) if d != "boolean"])
            return f"tilec.{self.r.choice(['argmax', 'argmin'])}({self.expression(source, wide, depth - 1)}, axis={axis})"
        return f"tilec.{self.r.choice(kinds)}({self.expression(dtype, wide, depth - 1)}, axis={axis})"

    def _truth(self, shape: Shape, depth: int) -> str:
        roll = self.r.random()
        if roll < 0.6:
            source = self.r.choice([d for d in self.sources("boolean") if d != "boolean"])
            sign = self.r.choice(["==", "!=", "<", "<=", ">", ">="])
            return f"(({self.expression(source, shape, depth - 1)}) {sign} ({self.expression(source, shape, depth - 1)}))"
        a = self.expression("boolean", shape, depth - 1)
        return f"(~({a}))" if roll < 0.7 else f"(({a}) {self.r.choice('&|^')} ({self.expression('boolean', shape, depth - 1)}))"

    def _integer(self, dtype: str, shape: Shape, depth: int) -> str:
        a = self.expression(dtype, shape, depth - 1)
        roll = self.r.random()
        if roll < 0.2:
            return self.r.choice([f"(-({a}))", f"(~({a}))", f"abs({a})"])
        if roll < 0.32:
            return f"(({a}) {self.r.choice(['<<', '>>'])} {self.r.randrange(BITS[dtype])})"
        if roll < 0.4 and dtype != "u8":
            return f"(({a}) {self.r.choice('+*&|^')} {self.r.choice([1, 3, 7, 100])})"
        b = self.expression(dtype, shape, depth - 1)
        if roll < 0.5:
            return f"{self.r.choice(['minimum', 'maximum'])}({a}, {b})"
        return f"(({a}) {self.r.choice(['+', '-', '*', '//', '%', '&', '|', '^', '<<', '>>', '//', '%'])} ({b}))"

    def _float(self, dtype: str, shape: Shape, depth: int) -> str:
        a = self.expression(dtype, shape, depth - 1)
        roll = self.r.random()
        if roll < 0.15:
            return self.r.choice([f"(-({a}))", f"abs({a})"])
        if roll < 0.25:
            functions = {"sums": EXACT_UNARY, "products": EXACT_UNARY[:2], "smooth": EXACT_UNARY[2:]}.get(
                self.mode, EXACT_UNARY
            )
            return f"{self.r.choice(functions)}({a})"
        if roll < 0.45 and not self.exact:
            return f"{self.r.choice(APPROXIMATE)}({a}{self.r.choice(['', ', fast=True'])})"
        b = self.expression(dtype, shape, depth - 1)
        if roll < 0.55:
            return f"{self.r.choice(['minimum', 'maximum'])}({a}, {b})"
        return f"(({a}) {self.r.choice({'sums': '+-/', 'products': '**/'}.get(self.mode, '+-*/'))} ({b}))"


def _spreads(source: Shape, target: Shape) -> bool:
    if not source or len(source) > len(target) or source == target:
        return False
    return all(a in (1, b) for a, b in zip(source, target[len(target) - len(source) :], strict=True))
