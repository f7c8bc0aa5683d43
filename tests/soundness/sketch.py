"""A random kernel under construction: source text that grows line by line, with the tiles in scope and their known ranges."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from tests.programs.typed_tiles import INTEGERS, Tiles
from tests.soundness.bounded import Bounded, Ranged

LANGUAGE_NAMES = (
    "Atomic", "Const", "Dim", "In", "InOut", "Out", "Scratch", "Strides", "abs", "arange", "atomic_add", "atomic_and",
    "atomic_exchange", "atomic_max", "atomic_min", "atomic_or", "atomic_xor", "bid", "boolean", "broadcast_to", "cdiv",
    "exp2", "f16", "f32", "bf16", "full", "gather", "grid", "i8", "i16", "i32", "i64", "load", "maximum", "minimum",
    "num_blocks", "requires", "scatter", "sqrt", "store", "u8", "u16", "u32", "u64", "unsafe", "values", "where", "zeros",
    "f8e4m3", "f8e5m2", "floor", "ceil", "exp", "log2", "log", "rsqrt", "tanh", "sigmoid", "sin", "cos", "mma",
    "take", "invariant", "decreases", "ensures", "cumsum", "argsort", "atomic_cas", "bitcast", "butterfly", "clamp",
    "cummax", "cummin", "cumprod", "erf", "flip", "isfinite", "isinf", "isnan", "join", "mulhi", "print", "resident",
    "round", "scan", "sort", "split", "static_range", "topk",
)  # fmt: skip


@dataclass(slots=True)
class WideKernel:
    """A kernel as source text; `schedule` names its parts."""

    schedule: str
    text: str
    constants: dict[str, int] = field(default_factory=dict[str, int])


def imports(text: str) -> str:
    """The import lines for the words that a text uses."""
    used = sorted(word for word in LANGUAGE_NAMES if re.search(rf"(?<![\w.]){word}\b", text))
    return f"import tilec\nfrom tilec import {', '.join(used)}\n"


def with_imports(text: str) -> str:
    """The text, importing the words that it uses now."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(("import tilec", "from tilec import"))]
    return f"{lines[0]}\n{imports(''.join(lines))}{''.join(lines[1:])}"


@dataclass(slots=True)
class Sketch:
    """A kernel under construction. `row` is the block's row in `0 .. extent` of the main dim."""

    r: random.Random
    row: str = "b"
    rows: str = "N"
    head: list[str] = field(default_factory=list[str])
    parameters: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    helpers: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    dims: list[str] = field(default_factory=lambda: ["N"])
    indent: str = "    "
    bounded: Bounded = field(init=False)
    tiles: Tiles = field(init=False)
    count: int = 0
    integers: tuple[str, ...] = INTEGERS

    def __post_init__(self) -> None:
        self.bounded = Bounded(self.r, [], [], [], self.integers)
        self.tiles = Tiles(self.r, [], max_elements=16)

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def line(self, text: str) -> None:
        self.body.append(self.indent + text)

    def tensor(self, access: str, dtype: str, *dims: str | int) -> str:
        """A new tensor parameter, sometimes strided."""
        name = self.name({"In": "x", "Out": "out", "InOut": "y", "Scratch": "s", "Atomic": "a"}[access])
        annotation = [dtype, *map(str, dims)]
        if self.r.random() < 0.12 and "strides" not in self.parts:
            strides = [self.name("S") for _ in dims[:-1]] + ["1"] if len(dims) > 1 else [self.name("S")]
            annotation.append(f"Strides[{', '.join(strides)}]")
            self.dims += [s for s in strides if s != "1"]
            self.parts.append("strides")
        self.parameters.append(f"{name}: {access}[{', '.join(annotation)}]")
        return name

    def assign(self, value: Ranged, stem: str = "k") -> Ranged:
        """Gives a ranged tile a name."""
        name = self.name(stem)
        self.line(f"{name} = {value.text}")
        named = Ranged(name, value.dtype, value.shape, value.low, value.high)
        self.bounded.scope.append(named)
        return named

    def kernel(self) -> WideKernel:
        """The finished kernel."""
        dims = [f'class {name}(Dim):\n    """extent {name}"""\n\n\n' for name in dict.fromkeys(self.dims)]
        text = "".join(dims) + "".join(f"{helper}\n\n\n" for helper in self.helpers)
        text += f"@tilec.kernel\ndef random_kernel({', '.join(self.parameters)}):\n"
        text += "\n".join([*(f"    {line}" for line in self.head), *self.body]) + "\n"
        return WideKernel(" ".join(["wide", *sorted(set(self.parts))]), f'"""Random kernel."""\n\n{imports(text)}\n\n{text}')
