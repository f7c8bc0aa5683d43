"""Kernels whose atomics go to few places, at random shapes: source, arrays, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.ops import atomic_word
from tilec.ir.types import DTYPES
from tilec.target.dtypes import numpy_dtype

Array = np.ndarray[Any, Any]
COMBINED: dict[str, np.ufunc] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
KINDS = {dtype: tuple(COMBINED) for dtype in ("i32", "u32", "i64", "u64")} | {"f32": ("add",)}
IMPORTS = "Atomic, Dim, In, Strides, bid, f32, grid, i32, i64, load, requires, u32, u64, values, zeros"


@dataclass(frozen=True)
class Program:
    """`blocks` blocks combine `rounds` tiles each, of `shape`, with a tensor of `extents`. `masked`: some positions lie
    outside. `symbolic`: the first extent is a dim, of which `requires` has an upper bound. `strided`: the tensor, of two axes,
    has rows apart.
    `copies`: every element is in as many threads. `repeated`: all positions are one."""

    kind: str = "add"
    dtype: str = "i32"
    shape: tuple[int, ...] = (64,)
    extents: tuple[int, ...] = (7,)
    index: str = "i32"
    blocks: int = 3
    rounds: int = 2
    warps: int = 2
    masked: bool = True
    symbolic: bool = False
    strided: bool = False
    copies: int = 1
    repeated: bool = False

    @property
    def text(self) -> str:
        rank, axes = len(self.shape), range(len(self.extents))
        box, offset = f"(1, {', '.join(map(str, self.shape))})", f"(b * {self.rounds} + i{', 0' * rank})"
        tile = ", ".join(map(str, self.shape))

        def loaded(name: str) -> str:
            return f"load({name}, {offset}, shape={box}).reshape(({tile},))"

        positions = ", ".join(loaded(f"p{axis}") for axis in axes)
        value = loaded("x")
        if self.copies > 1:
            value = f"{value}[..., None] + zeros(({', '.join(['1'] * rank)}, {self.copies}), {self.dtype})"
            positions = ", ".join(f"{loaded(f'p{axis}')}[..., None]" for axis in axes)
        extents = ["V" if self.symbolic else str(self.extents[0]), *map(str, self.extents[1:])]
        strides = ", Strides[S, 1]" if self.strided else ""
        count = self.blocks * self.rounds
        parameters = [f"x: In[{self.dtype}, {count}, {tile}]"]
        parameters += [f"p{axis}: In[{self.index}, {count}, {tile}]" for axis in axes]
        parameters += [f"t: Atomic[{self.dtype}, {', '.join(extents)}{strides}]"]
        body = [f"grid({self.blocks})", "b = bid(0)"]
        body += [f"requires(V <= {self.extents[0] + 5})"] if self.symbolic else []
        body += [] if self.masked else [f"values(p{axis}, 0, {extent})" for axis, extent in zip(axes, extents, strict=True)]
        mask = ", mask=True" if self.masked else ""
        body += [f"for i in range({self.rounds}):", f"    {atomic_word(self.kind)}(t, {value}, at=({positions},){mask})"]
        head = f'"""Few places."""\nimport tilec\nfrom tilec import {IMPORTS}, {atomic_word(self.kind)}\n\n\n'
        head += 'class V(Dim):\n    """bins"""\n\n\n' if self.symbolic else ""
        head += 'class S(Dim):\n    """elements from row to row"""\n\n\n' if self.strided else ""
        lines = "\n".join(f"    {line}" for line in body)
        return f"{head}@tilec.kernel\ndef k({', '.join(parameters)}):\n{lines}\n"

    @property
    def dims(self) -> dict[str, int]:
        return {"V": self.extents[0]} if self.symbolic else {}

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        return load_kernel(path, {}, root=folder)

    def arrays(self, seed: int) -> dict[str, Array]:
        """Small numbers, whose sums are exact in f32; positions meet often."""
        random, dtype = np.random.default_rng(seed), numpy_dtype(DTYPES[self.dtype])
        shape = (self.blocks * self.rounds, *self.shape)
        low = 0 if self.dtype[0] == "u" else -5
        found: dict[str, Array] = {"x": random.integers(low, 6, shape).astype(dtype)}
        margin = 2 if self.masked else 0
        for axis, extent in enumerate(self.extents):
            positions = random.integers(0 if self.index[0] == "u" else -margin, extent + margin, shape)
            found[f"p{axis}"] = (positions * 0 if self.repeated else positions).astype(numpy_dtype(DTYPES[self.index]))
        found["t"] = random.integers(low, 6, self.extents).astype(dtype)
        return found

    def expected(self, arrays: dict[str, Array]) -> Array:
        """Updates one after the other (`ufunc.at`)."""
        positions = [arrays[f"p{axis}"].astype(np.int64) for axis in range(len(self.extents))]
        inside = np.logical_and.reduce(
            [(position >= 0) & (position < extent) for position, extent in zip(positions, self.extents, strict=True)]
        )
        out = arrays["t"].copy()
        for _ in range(self.copies):
            COMBINED[self.kind].at(out, tuple(position[inside] for position in positions), arrays["x"][inside])
        return out


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    """Programs that get parts: twice as many updates as places, or four times."""
    dtype = draw(st.sampled_from(sorted(KINDS)))
    kind = draw(st.sampled_from(KINDS[dtype]))
    shape = draw(st.sampled_from(((64,), (40,), (8, 16), (3, 40), (100,), (256,), (5, 7, 4))))
    rounds, copies = draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 1, 4)))
    factor = 4 if dtype in ("f32", "i64", "u64") else 2
    most = prod(shape) * copies * rounds // factor
    axes = draw(st.integers(1, 2))
    symbolic = draw(st.booleans())
    extents: list[int] = []
    for axis in range(axes):
        room = most // prod(extents) - (5 if symbolic and axis == 0 else 0)
        extents.append(draw(st.integers(1, max(1, min(room, 40 if axes == 1 else 6)))))
    if symbolic and (extents[0] + 5) * prod(extents[1:]) > most:
        symbolic = False
    masked = draw(st.booleans())
    return Program(
        kind, dtype, shape, tuple(extents), draw(st.sampled_from(("i32", "i64", "u32", "u64") if masked else ("i32",))),
        draw(st.integers(1, 3)), rounds, draw(st.sampled_from((1, 2, 4))), masked, symbolic, False, copies, draw(st.booleans()),
    )  # fmt: skip
