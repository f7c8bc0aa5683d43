"""Loops and branches: operations with regions, and the `yield` that ends each."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value
from tilec.ir.types import TileType, boolean, i32


@dataclass(eq=False, kw_only=True)
class For(Op, opcode="for", effect=Effect.CONTROL):
    """`for iv in range(lower, upper, step)`. Operands: lower, upper, step (i32 scalars), then initial values of the
    loop-carried values. The arguments of its only region are iv and the carried values; its `yield` gives their next values.
    Results are the carried values after the last iteration. The step is positive."""

    num_results = None
    has_regions = True

    variable: str = ""

    @property
    def lower(self) -> Value:
        return self.operands[0]

    @property
    def upper(self) -> Value:
        return self.operands[1]

    @property
    def step(self) -> Value:
        return self.operands[2]

    @property
    def initial(self) -> list[Value]:
        return self.operands[3:]

    def verify(self) -> None:
        (body,) = self.regions
        carried = [value.type for value in self.initial]
        self.require(all(value.type == TileType(i32) for value in self.operands[:3]), "bounds and step are i32")
        self.require([value.type for value in body.arguments] == [TileType(i32), *carried], "body arguments differ")
        self.require([value.type for value in self.results] == carried, "results differ from the carried values")
        self.require(bool(body.ops) and isinstance(body.ops[-1], Yield), "the body ends in yield")
        self.require([value.type for value in body.ops[-1].operands] == carried, "yield differs from carried values")


@dataclass(eq=False, kw_only=True)
class If(Op, opcode="if", effect=Effect.CONTROL):
    """Run one of two regions. Operand: bool scalar. Regions: then, else (may contain only `yield`). Results: yielded values."""

    num_operands = 1
    num_results = None
    has_regions = True

    def verify(self) -> None:
        self.require(self.operands[0].type == TileType(boolean), "the condition is a bool scalar")
        types = [value.type for value in self.results]
        self.require(len(self.regions) == 2, "there are two regions")
        self.require(not any(region.arguments for region in self.regions), "a branch takes no arguments")
        for region in self.regions:
            self.require(bool(region.ops) and isinstance(region.ops[-1], Yield), "each region ends in yield")
            self.require([value.type for value in region.ops[-1].operands] == types, "yield differs from the results")


@dataclass(eq=False, kw_only=True)
class Yield(Op, opcode="yield", effect=Effect.CONTROL):
    """End of a region's block; its operands are the region's results."""

    num_results = 0
