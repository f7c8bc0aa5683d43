"""`print`, which writes lines to standard output and changes nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Function, Op, Value
from tilec.ir.ops.values import Broadcast, Constant, Iota
from tilec.ir.printed_text import MOST_ELEMENTS, MOST_VALUES, is_one_line, pieces
from tilec.ir.types import TileType, boolean, i32


@dataclass(eq=False, kw_only=True)
class Print(Op, opcode="print", effect=Effect.PRINT):
    """Write a line for each element, once, in any order (`tilec.ir.printed_text`). Operands: the block's index on each of
    `axes` axes of the grid (i32 scalars), the values of the fields of `text` in order, of one shape, and with `masked` a bool
    tile of that shape: elements where it is false are not written. All lines of one `print` precede those of the block's
    next one."""

    num_results = 0
    text: str
    axes: int = 0
    masked: bool = False

    @property
    def block_indices(self) -> list[Value]:
        return self.operands[: self.axes]

    @property
    def values(self) -> list[Value]:
        """The values of the fields."""
        return self.operands[self.axes : len(self.operands) - self.masked]

    @property
    def condition(self) -> Value | None:
        """Which elements are written; None for all."""
        return self.operands[-1] if self.masked else None

    @property
    def tiles(self) -> list[Value]:
        """Everything that has elements: the values, and the condition."""
        return self.operands[self.axes :]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values; that of a scalar if there is none."""
        return self.tiles[0].tile.shape if self.tiles else ()

    @property
    def anchor(self) -> Value | None:
        """The tile in whose layout all are written: the first that a thread does not compute by itself, or else the first;
        None for scalars."""
        if not self.shape:
            return None
        computed = (Constant, Broadcast, Iota)
        return next((one for one in self.tiles if not isinstance(one.owner, computed)), self.tiles[0])

    def verify(self) -> None:
        try:
            fields = len(pieces(self.text)) - 1
        except ValueError as error:
            self.require(False, f"a brace without a partner: {error}")
            return
        self.require(is_one_line(self.text), "its text is one short line")
        self.require(0 <= self.axes <= 3 and len(self.operands) == self.axes + fields + self.masked, "one value for each field")
        self.require(fields <= MOST_VALUES, f"at most {MOST_VALUES} values")
        self.require(all(one.type == TileType(i32) for one in self.block_indices), "block indices are i32 scalars")
        self.require(all(one.tile.shape == self.shape for one in self.tiles), "the values have one shape")
        self.require(self.condition is None or self.condition.tile.dtype == boolean, "the condition is bool")
        limited = self.masked or TileType(i32, self.shape).size <= MOST_ELEMENTS
        self.require(limited, f"at most {MOST_ELEMENTS} elements without a condition")

    def verify_in(self, function: Function) -> None:
        self.require(self.axes == len(function.grid), "it names the block on every axis of the grid")


def prints(function: Function) -> list[Print]:
    """Every `print`, in program order."""
    return [op for op in function.body.walk() if isinstance(op, Print)]
