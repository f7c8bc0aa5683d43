"""A random kernel of several ranks under construction, as source text: parameters, contract, what it does before the meet, and
after."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from tests.soundness.sketch import LANGUAGE_NAMES, WideKernel

WORDS = (*LANGUAGE_NAMES, "Peer", "Signal", "astype", "ensures", "meet")
FLOATS = ("f32", "f32", "f32", "bf16", "f16")


def with_imports(text: str) -> str:
    """The text, importing the words that it uses; the first line is the docstring of the file."""
    first, *rest = [
        line for line in text.splitlines(keepends=True) if not line.startswith(("import tilec", "from tilec import"))
    ]
    body = "".join(rest)
    used = sorted(word for word in dict.fromkeys(WORDS) if re.search(rf"(?<![\w.]){word}\b", body))
    return f"{first}\nimport tilec\nfrom tilec import {', '.join(used)}\n{body}"


@dataclass(slots=True)
class Draft:
    """`ranks`: of all its parts; `blocks`: of its grid, of at most as many as there are signals for; `tile`: elements of a tile
    of most loops; `dtype`: of most tensors."""

    r: random.Random
    ranks: int = 2
    blocks: int = 2
    tile: int = 2
    dtype: str = "f32"
    signals: int = 2
    parameters: list[str] = field(default_factory=list[str])
    dims: list[str] = field(default_factory=list[str])
    head: list[str] = field(default_factory=list[str])
    before: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    helpers: list[str] = field(default_factory=list[str])
    names: list[str] = field(default_factory=list[str])
    count: int = 0
    meets: bool = True

    def __post_init__(self) -> None:
        r = self.r
        self.ranks, self.blocks = r.choice((2, 2, 2, 3, 4)), r.choice((1, 2, 2, 3, 4))
        self.tile, self.dtype = r.choice((1, 2, 2, 4)), r.choice(FLOATS)
        self.signals = self.blocks + r.choice((0, 0, 0, 1, 3))

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def dim(self, name: str, most: int = 1 << 20) -> str:
        """A dim, which is declared once and limited so that what the kernel computes with it does not wrap."""
        if name not in self.dims:
            self.dims.append(name)
            self.head.append(f"requires({name} <= {most})")
        return name

    def tensor(self, access: str, dtype: str, *dims: str | int) -> str:
        """A new tensor parameter."""
        name = self.name({"In": "w", "Out": "out", "InOut": "y", "Scratch": "s", "Atomic": "a"}[access])
        self.parameters.append(f"{name}: {access}[{', '.join([dtype, *map(str, dims)])}]")
        return name

    def parts(self, dtype: str, *dims: str | int) -> str:
        """A new tensor of each rank."""
        name = self.name("x")
        annotation = [dtype, str(self.ranks), *map(str, dims)]
        self.parameters.append(f"{name}: Peer[{', '.join(annotation)}]")
        return name

    def steps(self, tiles: str, body: list[str], variable: str = "i") -> list[str]:
        """Lines in which blocks share out the numbers below `tiles`."""
        r = self.r
        inner = [f"    {line}" for line in body]
        match r.choice(("cyclic", "cyclic", "counted", "chunk")):
            case "cyclic":
                return [f"for {variable} in range(b, {tiles}, num_blocks(0)):", *inner]
            case "counted":
                return [f"for {variable} in range(b, {tiles}, {self.blocks}):", *inner]
            case _:
                size = self.name("size")
                head = f"for {variable} in range(b * {size}, min((b + 1) * {size}, {tiles})):"
                return [f"{size} = cdiv({tiles}, {self.blocks})", head, *inner]

    def kernel(self) -> WideKernel:
        """The finished kernel."""
        r = self.r
        parameters = [*self.parameters]
        of_ranks = [f"signals: Signal[{self.ranks}, {self.signals}]", "rank: i32"] if self.meets else []
        if r.random() < 0.2:
            parameters = [*of_ranks, *parameters]
        else:
            parameters += of_ranks
        if r.random() < 0.2:
            r.shuffle(parameters)
        lines = [f"grid({self.blocks})", *dict.fromkeys(self.head), "b = bid(0)", *self.before]
        lines += ["meet(signals, rank)"] if self.meets else []
        lines += self.after
        text = "".join(f'\n\nclass {name}(Dim):\n    """extent {name}"""\n' for name in self.dims)
        text += "".join(f"\n\n{helper}\n" for helper in self.helpers)
        text += f"\n\n@tilec.kernel\ndef random_kernel({', '.join(parameters)}):\n"
        text += "\n".join(f"    {line}" for line in lines) + "\n"
        return WideKernel(" ".join(self.names), with_imports(f'"""Random kernel of ranks."""\n{text}'))
