"""Operations that order a block with the kernels around it on the stream, and those of blocks that take tile after tile; made
by passes of the schedule.

A grid may be launched while the one before it on the stream still runs. Its blocks then may do anything that does not depend
on memory, and must wait before they touch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Effect, Function, Op
from tilec.ir.ops.values import GridOp
from tilec.ir.range_facts import Range, between
from tilec.ir.types import TileType, i32


@dataclass(eq=False, kw_only=True)
class WaitPrior(Op, opcode="wait_prior", effect=Effect.CONTROL):
    """Wait until the grids before this one are complete and what they wrote is visible; behind it, or `before` it, let the
    blocks of the next grid come (PTX ISA, `griddepcontrol`). No operands. Stands once, or once in each role, before every
    access to memory that is not of a resident tensor."""

    num_operands = num_results = 0

    before: bool = False


@dataclass(eq=False, kw_only=True)
class LaunchedBlocks(Op, opcode="launched_blocks"):
    """How many blocks run on axis 0, where each may take several of the grid's tiles (PTX ISA, `%nctaid`): 1 up to the grid's
    extent; i32 scalar. No operands. In such a kernel `block_id` tells the blocks that run apart, not the tiles."""

    num_operands = 0

    def verify_in(self, function: Function) -> None:
        self.require(self.result.type == TileType(i32), "the result is an i32 scalar")
        self.require(len(function.grid) == 1, "blocks take tile after tile of a grid of one axis")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return between(1, i32.integer_range()[1])


@dataclass(eq=False, kw_only=True)
class GridExtent(GridOp, opcode="grid_extent"):
    """Extent of a grid axis, as the launcher computes it, however many blocks run; i32 scalar."""

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return between(1, i32.integer_range()[1])
