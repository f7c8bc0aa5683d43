"""Election of one thread of a warp (PTX ISA, `elect.sync`). Available on every target of compute capability 9.0 or more.

Instructions that one thread issues, such as those of `tcgen05`, take uniform registers. Where ptxas does not know that a branch
has exactly one thread, it makes a loop over the threads of each of them; of an elected thread it knows.
"""

from __future__ import annotations

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i1


def elected(out: Builder) -> SsaValue:
    """Whether this thread is the elected one of its warp (i1); all threads of the warp execute it together."""
    return out.inline_ptx("elect.sync _|$0, 0xffffffff;", "=b,~{memory}", [], [i1], side_effects=True)[0]
