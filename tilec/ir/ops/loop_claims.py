"""What an author claims about a loop: `invariant` and, for a `while`, `decreases`. They compute nothing: the prover shows them,
the interpreter checks them, and `canonicalize` removes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Op
from tilec.ir.types import TileType, boolean, i32

PASS: Final = "pass"
"""Variable of a loop that was a `while`: a keyword, so no name of a kernel. It is one less than the number of the pass."""
FLAG: Final = "?"
"""In the names of conditions that exits of a loop clear, which are no names of a kernel."""
POINTS: Final = ("entry", "head", "end", "after")


@dataclass(eq=False, kw_only=True)
class Invariant(Op, opcode="invariant"):
    """A condition that is true whenever it is executed. Operand: a bool scalar. The invariant `number` of a loop is evaluated
    before the loop, with the initial values (`entry`); at the start of each iteration (`head`); at its end, with the values of
    the next one (`end`); and after the loop, with its results (`after`, which may be missing). `entry` and `end` have
    obligations, and the other two follow from them."""

    num_operands = 1
    num_results = 0

    point: str
    number: int

    def verify(self) -> None:
        self.require(self.operands[0].type == TileType(boolean), "the condition is a bool scalar")
        self.require(self.point in POINTS, f"no point {self.point}")


@dataclass(eq=False, kw_only=True)
class Decreases(Op, opcode="decreases"):
    """A number of which the end of a loop follows. Operand: an i32 scalar, positive where the body of `while` starts (`start`),
    and smaller where the pass ends (`end`), unless a `break` ended it. Both have obligations."""

    num_operands = 1
    num_results = 0

    point: str
    number: int

    def verify(self) -> None:
        self.require(self.operands[0].type == TileType(i32), "the number is an i32 scalar")
        self.require(self.point in ("start", "end"), f"no point {self.point}")
