"""Operations for programmatic dependent launch and for persistent blocks, made by passes of the schedule.

With programmatic dependent launch, a grid may start while the previous grid on the stream still runs. Its blocks may run a
prologue that does not depend on memory, and must wait before they access it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Effect, Function, Op
from tilec.ir.facts.range_facts import Range, between
from tilec.ir.ops.values import GridOp
from tilec.ir.types import TileType, i32


@dataclass(eq=False, kw_only=True)
class DependencyWait(Op, opcode="wait_prior", effect=Effect.CONTROL):
    """Grid dependency wait: waits until the previous grids are complete and their writes are visible (PTX ISA,
    `griddepcontrol.wait`). `launch_dependents` is issued after the wait, or before it with `before`. No operands. It occurs
    once, or once in each role, and precedes every access to memory that is not of a resident tensor."""

    num_operands = num_results = 0

    before: bool = False


@dataclass(eq=False, kw_only=True)
class LaunchedBlocks(Op, opcode="launched_blocks"):
    """Number of blocks launched on axis 0 (PTX ISA, `%nctaid`), 1 up to the grid's extent, in a kernel of persistent blocks;
    i32 scalar. No operands. In such a kernel `block_id` is the index of the block, not of the tile."""

    num_operands = 0

    def verify_in(self, function: Function) -> None:
        self.require(self.result.type == TileType(i32), "the result is an i32 scalar")
        self.require(len(function.grid) == 1, "persistent blocks need a grid of one axis")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return between(1, i32.integer_range()[1])


@dataclass(eq=False, kw_only=True)
class GridExtent(GridOp, opcode="grid_extent"):
    """Extent of a grid axis as the launcher computes it, whatever the number of launched blocks; i32 scalar."""

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return between(1, i32.integer_range()[1])
