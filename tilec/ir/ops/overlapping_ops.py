"""Loads of boxes that overlap, which a pass makes of others."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect
from tilec.ir.ops.memory import Load


@dataclass(eq=False, kw_only=True)
class OverlappingLoad(Load, opcode="overlapping_load", effect=Effect.READ):
    """A load of one of several boxes of a tensor that overlap, whose columns begin `lead` elements after a multiple of `vector`
    bytes. Rows of the tensor are `whole`, so a thread may read the vectors that its elements lie in, of which other boxes have
    the rest: nothing writes the tensor."""

    lead: int

    def verify(self) -> None:
        super().verify()
        size = self.tensor.tensor.dtype.bytes
        self.require(self.whole and 0 <= self.lead * size < self.vector, "rows end at vectors, and `lead` lies in the first")
