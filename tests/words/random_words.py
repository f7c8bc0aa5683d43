"""Random programs whose expressions use these words, next to all others.

`tests/programs` numbers its programs and records what is known of each number, so that words added later are drawn here: a
program of a number there stays what it is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

from tests.programs.generate import Program
from tests.programs.typed_tiles import BITS, FLOATS, INTEGERS, Shape, Tiles, Variable, tuple_text

ALIKE = {"f32": ("i32", "u32"), "f16": ("i16", "u16"), "bf16": ("i16", "u16")}
SHAPES: tuple[Shape, ...] = ((64,), (8, 16), (3, 40), (2, 4, 8))
WORDS = ("bitcast(", "mulhi(", "erf(", "any(", "all(", "axis=(0", "keepdims=True")


@dataclass(slots=True)
class NewWords(Tiles):
    """Half of all integers, floats and booleans are made by one of the words."""

    def _integer(self, dtype: str, shape: Shape, depth: int) -> str:
        roll = self.r.random()
        if roll < 0.2:
            return f"tilec.mulhi({self.expression(dtype, shape, depth - 1)}, {self.expression(dtype, shape, depth - 1)})"
        alike = [source for source in INTEGERS if BITS[source] == BITS[dtype] and source != dtype]
        if roll < 0.35 and alike:
            return f"tilec.bitcast({self.expression(self.r.choice(alike), shape, depth - 1)}, {dtype})"
        floats = [source for source, integers in ALIKE.items() if dtype in integers]
        if roll < 0.5 and floats and self.exact:
            number = self.leaf(self.r.choice(floats), shape)  # the bits of a NaN that arithmetic made are the chip's
            return f"tilec.bitcast(where(({number}) == ({number}), {number}, 1.0), {dtype})"
        return Tiles._integer(self, dtype, shape, depth)

    def _float(self, dtype: str, shape: Shape, depth: int) -> str:
        roll = self.r.random()
        if roll < 0.25 and self.exact:
            return f"tilec.bitcast({self.expression(self.r.choice(ALIKE[dtype]), shape, depth - 1)}, {dtype})"
        if roll < 0.4 and not self.exact:
            left = self.expression(dtype, shape, depth - 1)
            if self.r.random() < 0.5:
                return f"tilec.erf({left})"
            fast = self.r.choice(["", ", fast=True"])
            return f"tilec.pow({left}, {self.expression(dtype, shape, depth - 1)}{fast})"
        return Tiles._float(self, dtype, shape, depth)

    def _truth(self, shape: Shape, depth: int) -> str:
        reduced = self._several_axes(self.r.choice(["any", "all"]), "boolean", shape, depth) if self.r.random() < 0.5 else None
        return reduced or Tiles._truth(self, shape, depth)

    def _reduced(self, dtype: str, shape: Shape, depth: int) -> str | None:
        kinds = ["max", "min"] if self.exact and dtype not in BITS else ["sum", "max", "min"]
        return self._several_axes(self.r.choice(kinds), dtype, shape, depth) or Tiles._reduced(self, dtype, shape, depth)

    def _several_axes(self, word: str, dtype: str, shape: Shape, depth: int) -> str | None:
        """A reduction to a shape: one axis more that is kept, or two that are removed."""
        extent = self.r.choice((2, 3, 4))
        if prod(shape) * extent * extent > self.max_elements or len(shape) > 2 or not shape:
            return None
        wide = (extent, *shape, extent)
        text = f"tilec.{word}({self.expression(dtype, wide, depth - 1)}, axis=(0, {len(wide) - 1})"
        if self.r.random() < 0.5:
            return f"{text})"
        return f"{text}, keepdims=True).reshape({tuple_text(shape)})"


def program(number: int) -> Program:
    """Tiles of several dtypes and one shape go in; results of random expressions come out."""
    r = random.Random(f"words {number}")
    mode = r.choice(("sums", "products", "smooth"))
    shape = r.choice(SHAPES)
    tiles = NewWords(r, [], mode=mode, max_elements=2048)
    text, loads = list[str](), list[str]()
    for count, dtype in enumerate(r.sample(INTEGERS + FLOATS, 4)):
        extents = ", ".join(map(str, shape))
        text.append(f"x{count}: In[{dtype}, {extents}]")
        loads.append(f"v{count} = load(x{count}, {(0,) * len(shape)}, shape={shape})")
        tiles.scope.append(Variable(f"v{count}", dtype, shape))
    for count in range(3):
        dtype = "boolean" if r.random() < 0.25 else r.choice(INTEGERS + FLOATS)
        found = tiles.expression(dtype, shape, 3)
        stored = f"where({found}, 1, 0)" if dtype == "boolean" else found
        text.append(f"y{count}: Out[{'i32' if dtype == 'boolean' else dtype}, {', '.join(map(str, shape))}]")
        loads.append(f"store(y{count}, {(0,) * len(shape)}, {stored})")
    names = (
        "In, Out, abs, arange, argmax, argmin, boolean, broadcast_to, ceil, cos, exp, exp2, floor, full, grid, load, log, log2"
    )
    names += ", maximum, minimum, rsqrt, sigmoid, sin, sqrt, store, tanh, where, " + ", ".join(INTEGERS + FLOATS)
    body = "\n    ".join(["grid(1)", *loads])
    source = (
        f'"""Random."""\nimport tilec\nfrom tilec import {names}\n\n\n@tilec.kernel\ndef k({", ".join(text)}):\n    {body}\n'
    )
    return Program(number, source, tiles.exact, {}, {}, r.choice((1, 2, 4)))
