"""A random program under construction whose products a producer feeds: its source text, its dims, scalars and tensors."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.programs.generate import Program
from tests.soundness.sketch import imports
from tilec.target.schedule import Overrides


@dataclass(slots=True)
class Draft:
    """`tensor`: for products into tensor memory, else by warps. `element`: dtype of the operands. `rows`, `columns` and
    `depth`: of a tile of the result, and of a step of the loop. `exact`: results so far are the same in any order of sums.
    `stores_once`: its one store is of a kind that a tensor map can have. `infinite`: results may be infinite or huge."""

    r: random.Random
    tensor: bool
    element: str
    rows: int = 64
    columns: int = 32
    depth: int = 64
    body: list[str] = field(default_factory=list[str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    head: list[str] = field(default_factory=list[str])
    dims: dict[str, int] = field(default_factory=dict[str, int])
    scalars: dict[str, int] = field(default_factory=dict[str, int])
    small: set[str] = field(default_factory=set[str])
    parts: set[str] = field(default_factory=set[str])
    exact: bool = True
    stores_once: bool = False
    infinite: bool = False

    def name(self, stem: str) -> str:
        """A new name of a parameter."""
        return f"{stem}{len(self.parameters) + 1}"

    def line(self, text: str) -> None:
        """A line of the body."""
        self.body.append(f"    {text}")

    def add_tensor(self, access: str, dtype: str, dims: str, *, small: bool = True) -> str:
        """A new tensor; `small`: it holds small integers."""
        name = self.name({"In": "x", "Out": "out", "InOut": "y"}[access])
        self.parameters[name] = f"{access}[{dtype}, {dims}]"
        self.small |= {name} if small else set()
        return name

    def add_scalar(self, dtype: str, value: int) -> str:
        """A new scalar argument."""
        name = self.name("s")
        self.parameters[name], self.scalars[name] = dtype, value
        return name

    def add_dim(self, name: str, extent: int, clause: str = "") -> str:
        """A dim, the first time that it is asked for, and what the contract says of it."""
        if name not in self.dims:
            self.dims[name] = extent
            self.head += [f"requires({clause})"] if clause else []
        return name

    def finished(self, number: int, schedules: tuple[Overrides, ...]) -> Program:
        """The program."""
        dims = "".join(f'class {name}(Dim):\n    """extent {name}"""\n\n\n' for name in sorted(self.dims))
        tensors = [name for name in self.parameters if name not in self.scalars]
        parameters = ", ".join(f"{name}: {self.parameters[name]}" for name in [*tensors, *self.scalars])
        lines = [*(f"    {line}" for line in self.head), *self.body]
        text = f"{dims}@tilec.kernel\ndef program({parameters}):\n" + "\n".join(lines) + "\n"
        source = f'"""Random program {number}, whose products a producer feeds."""\n\n{imports(text)}\n\n{text}'
        parts = tuple(sorted(self.parts))
        return Program(
            number, source, self.exact, self.dims, self.scalars, None, parts, tuple(sorted(self.small)), schedules=schedules
        )
