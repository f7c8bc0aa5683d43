"""The operation in which the blocks of several ranks wait for each other.

A rank is a GPU of a machine, which runs the same launches as the others. Each has its own part of a `peer` tensor, and all may
read every part once they have met. A `signal` tensor [blocks, 2, ranks] of u32 belongs to each rank:

| element     | content                                                              | written by                    |
|-------------|----------------------------------------------------------------------|-------------------------------|
| `[b, 0, p]` | how many meets block `b` of rank `p` has entered                      | rank `p`, with release        |
| `[b, 1, p]` | how many meets block `b` of this rank has made with rank `p`          | this rank, for itself         |

Both count up for ever, modulo 2^32, so a launch may be repeated with no work by the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Access, Effect, Function, Op, Value
from tilec.ir.types import TensorType, TileType, i32, u32

MOST_RANKS: Final = 8
"""As many GPUs of a machine reach each other's memory; fewer than the threads of a warp."""


@dataclass(eq=False, kw_only=True)
class Meet(Op, opcode="meet", effect=Effect.ATOMIC):
    """Block `b` of this rank waits until block `b` of every rank is in this launch, and its threads wait for each other. What
    each rank's launches before this one wrote is visible after it. Operands: the `signal` tensor of each rank in order, the
    number of this rank (i32 scalar). It occurs once, outside of loops and branches, so blocks and ranks pass it equally often.
    """

    num_results = 0
    leading = (TensorType, TensorType)
    others = (TensorType, TileType)
    is_barrier = True

    @property
    def signals(self) -> list[Value]:
        return self.operands[:-1]

    @property
    def rank(self) -> Value:
        return self.operands[-1]

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return tuple((signal, Effect.ATOMIC) for signal in self.signals)

    def verify(self) -> None:
        count = len(self.signals)
        self.require(2 <= count <= MOST_RANKS, f"{count} ranks; there are 2 to {MOST_RANKS}")
        self.require(self.rank.type == TileType(i32), "the number of the rank is an i32 scalar")
        for signal in self.signals:
            self.require(isinstance(signal.type, TensorType), "all but the last operand are tensors")
            dims = [dim.constant for dim in signal.tensor.dims]
            self.require(signal.tensor.dtype == u32 and dims[1:] == [2, count], "signals are u32 [blocks, 2, ranks]")
            self.require(dims[0] is not None and signal.tensor.strides is None, "signals have a constant number of blocks")

    def verify_in(self, function: Function) -> None:
        accesses = [function.parameter_of(signal).access for signal in self.signals]
        self.require(set(accesses) == {Access.SIGNAL}, "its tensors are signals")
        names = [function.parameter_of(signal).name for signal in self.signals]
        stem = names[0].removesuffix("_0")
        self.require(
            names == [f"{stem}_{rank}" for rank in range(len(names))], "the signals are those of all ranks, in their order"
        )
        scalars = [parameter.value for parameter in function.parameters if parameter.access is None]
        self.require(any(self.rank is value for value in scalars), "the number of the rank is a parameter")
        meets = [op for op in function.body.walk() if isinstance(op, Meet)]
        self.require(len(meets) == 1 and self in function.body.ops, "a kernel meets once, outside of loops and branches")
        problem = blocks_problem(function, self)
        self.require(not problem, problem)
        self.require(function.cluster == 1, "blocks of a pair do not meet other ranks")


def blocks_problem(function: Function, meet: Meet) -> str:
    """Why not every block of a grid has signals; an empty string if all have. The number of blocks must be constant: all must
    be resident together, which whoever launches the kernel compares with the GPU's multiprocessors."""
    blocks = meet.signals[0].tensor.dims[0].constant
    if len(function.grid) != 1 or function.grid[0].constant is None:
        return "the grid of a kernel that meets has one axis, of a constant number of blocks"
    if blocks is None or function.grid[0].constant > blocks:
        return f"the grid has {function.grid[0].constant} blocks, and the signals are for {blocks}"
    return ""
