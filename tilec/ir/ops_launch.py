"""Operations at the start of a block that overlap it with the kernels before, made by the overlap pass.

A grid may be launched while the one before it on the stream still runs. Its blocks then may do anything that does not depend
on memory, must wait before they touch it, and use the time to bring what they will read nearer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value, VerifyError
from tilec.ir.types import TensorType


@dataclass(eq=False, kw_only=True)
class WaitPrior(Op, opcode="wait_prior", effect=Effect.CONTROL):
    """Let the blocks of the next grid come, then wait until the grids before this one are complete and what they wrote is
    visible (PTX ISA, `griddepcontrol`). No operands. Stands once, before every access to memory."""


@dataclass(eq=False, kw_only=True)
class Prefetch(Op, opcode="prefetch", effect=Effect.CONTROL):
    """Ask for the box `[offset_k, offset_k + shape_k)` of a tensor to be brought into the L2 cache; elements outside the tensor
    are left out. Operands: tensor, offsets. Reads nothing that a program could see, so it may stand before `wait_prior`."""

    shape: tuple[int, ...]

    @property
    def source(self) -> Value:
        return self.operands[0]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[1:]

    def verify(self) -> None:
        fits = isinstance(self.source.type, TensorType) and len(self.shape) == self.source.tensor.rank == len(self.offsets)
        if not fits or any(extent < 1 for extent in self.shape):
            raise VerifyError("prefetch: one offset and one positive extent per tensor axis")
        if any(offset.tile.rank or not offset.tile.dtype.is_integer for offset in self.offsets):
            raise VerifyError("prefetch: offsets are integer scalars")
