"""Operations that order a block with the kernels around it on the stream, made by a pass of the schedule.

A grid may be launched while the one before it on the stream still runs. Its blocks then may do anything that does not depend
on memory, and must wait before they touch it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op


@dataclass(eq=False, kw_only=True)
class WaitPrior(Op, opcode="wait_prior", effect=Effect.CONTROL):
    """Wait until the grids before this one are complete and what they wrote is visible, then let the blocks of the next grid
    come (PTX ISA, `griddepcontrol`). No operands. Stands once, before every access to memory."""

    num_operands = num_results = 0
