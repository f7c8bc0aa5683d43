"""Random programs whose expressions have words along an axis: sums, extrema and sorts of neighbors, reordered elements.

As in `random_words`, whose programs of a number stay what they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.programs.generate import Program
from tests.programs.typed_tiles import BITS, FLOATS, INTEGERS, Shape, Tiles, Variable

SHAPES: tuple[Shape, ...] = ((64,), (8, 16), (3, 32), (2, 4, 8), (128, 2), (256,))
WORDS = (
    "butterfly(", "flip(", "sort(", "argsort(", "topk(", "cumsum(", "cumprod(", "cummax(", "cummin(", "scan(", "reverse=True",
    "take(", "exclusive=True", "descending=True",
)  # fmt: skip
FUNCTIONS = """@tilec.function
def later(before, after):
    return where(after != 0, after, before)


@tilec.function
def following(before, after):
    (a, b), (c, d) = before, after
    return c & a, (c & b) ^ d
"""
"""Both are associative."""


@dataclass(slots=True)
class Moves(Tiles):
    """A third of all integers and floats are made by one of the words."""

    def expression(self, dtype: str, shape: Shape, depth: int) -> str:
        axes = [axis for axis, extent in enumerate(shape) if extent & (extent - 1) == 0]
        if depth <= 0 or not axes or dtype not in INTEGERS + FLOATS or self.r.random() > 1 / 3:
            return Tiles.expression(self, dtype, shape, depth)
        axis = self.r.choice(axes)
        return self._taken(self._reordered(dtype, shape, axis, depth) or self._accumulated(dtype, shape, axis, depth), shape)

    def _taken(self, text: str, shape: Shape) -> str:
        """Elements of it at other positions now and then, by numbers of its own: the programs without stay what they were."""
        own = random.Random(f"take {text}")
        if own.random() > 0.15:
            return text
        axis = own.randrange(len(shape))
        extent, along = shape[axis], tuple(n if k == axis else 1 for k, n in enumerate(shape))
        indices = f"((arange({extent}) * {own.randrange(extent)} + {own.randrange(extent)}) % {extent}).reshape({along})"
        return f"tilec.take({text}, {indices}, {axis})"

    def _reordered(self, dtype: str, shape: Shape, axis: int, depth: int) -> str | None:
        """The same elements in another order, or positions."""
        x, roll = self.expression(dtype, shape, depth - 1), self.r.random()
        if roll < 0.15:
            return f"tilec.butterfly({x}, {axis}, {self.r.randrange(shape[axis])})"
        if roll < 0.25:
            return f"tilec.flip({x}, {axis})"
        order = ", descending=True" * (self.r.random() < 0.5)
        if roll < 0.35 and (self.exact or dtype in BITS):
            return f"tilec.sort({x}, {axis}{order})"
        keys = self.expression(self.r.choice(INTEGERS), shape, depth - 1)
        if roll < 0.5:
            return f"tilec.sort(({keys}, {x}), {axis}{order})[1]"
        if roll < 0.6 and dtype in BITS:
            return f"tilec.argsort({keys}, {axis}{order}).astype({dtype})"
        if roll < 0.7 and dtype in BITS:
            return f"tilec.topk({keys}, {shape[axis]}, {axis})[{self.r.randrange(2)}].astype({dtype})"
        return None

    def _accumulated(self, dtype: str, shape: Shape, axis: int, depth: int) -> str:
        x, reverse = self.expression(dtype, shape, depth - 1), ", reverse=True" * (self.r.random() < 0.4)
        if dtype in BITS and self.r.random() < 0.3:
            return f"tilec.scan(following, ({x}, {self.expression(dtype, shape, depth - 1)}), {axis}{reverse})[1]"
        if self.r.random() < 0.2 and (self.exact or dtype in BITS):
            return f"tilec.scan(later, {x}, {axis}{reverse})"
        if dtype in BITS and self.r.random() < 0.7:
            exclusive = ", exclusive=True" * (self.r.random() < 0.4)
            return f"tilec.{self.r.choice(['cumsum', 'cumprod'])}({x}, {axis}{reverse}{exclusive})"
        return f"tilec.{self.r.choice(['cummax', 'cummin'])}({x}, {axis}{reverse})"


def program(number: int) -> Program:
    """Tiles of several dtypes and one shape go in; results of random expressions come out."""
    r = random.Random(f"moves {number}")
    mode = r.choice(("sums", "products", "smooth"))
    shape = r.choice(SHAPES)
    tiles = Moves(r, [], mode=mode, max_elements=1024)
    extents, zero = ", ".join(map(str, shape)), (0,) * len(shape)
    text, lines = list[str](), list[str]()
    for count, dtype in enumerate(r.sample(INTEGERS + FLOATS, 4)):
        text.append(f"x{count}: In[{dtype}, {extents}]")
        lines.append(f"v{count} = load(x{count}, {zero}, shape={shape})")
        tiles.scope.append(Variable(f"v{count}", dtype, shape))
    for count in range(2):
        dtype = r.choice(INTEGERS + FLOATS)
        text.append(f"y{count}: Out[{dtype}, {extents}]")
        lines.append(f"store(y{count}, {zero}, {tiles.expression(dtype, shape, 3)})")
    names = (
        "In, Out, abs, arange, argmax, argmin, boolean, broadcast_to, ceil, cos, exp, exp2, floor, full, grid, load, log, log2"
    )
    names += ", maximum, minimum, rsqrt, sigmoid, sin, sqrt, store, tanh, where, " + ", ".join(INTEGERS + FLOATS)
    body = "\n    ".join(["grid(1)", *lines])
    source = (
        f'"""Random."""\nimport tilec\nfrom tilec import {names}\n\n\n{FUNCTIONS}\n\n@tilec.kernel\n'
        f"def k({', '.join(text)}):\n    {body}\n"
    )
    return Program(number, source, tiles.exact, {}, {}, r.choice((1, 2, 4)))
