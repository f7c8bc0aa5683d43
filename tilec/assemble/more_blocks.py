"""Room for more blocks on a multiprocessor, where registers alone stand in its way and ptxas needs no more than it has.

In: PTX of a kernel whose schedule nobody chose, its registers, and how many blocks shared memory and warps have room for.
Out: the numbers of blocks to ask for (PTX ISA, `.minnctapersm`), if there is anything to be gained: a quarter more, or else
one. The assembler takes the first whose code spills nothing: ptxas takes the registers that make loads early as long as it has
them, also where one more than 128 halves the warps of a multiprocessor. Spills are never worth it here, because a build file
may forbid them.

Measured on an H200: a Sinkhorn step of 8 warps and 133 registers takes 505 us, with 128 registers for two blocks 361; a
focal loss of 128 registers 185 us, with 96 166; a depthwise convolution of 183 registers 177 us, with 123 113.
"""

from __future__ import annotations

import re
from typing import Final

from tilec.artifact.records import Resources
from tilec.target.schedule import REGISTERS

_THREADS: Final = re.compile(r"^\.(?:reqntid|maxntid) (\d+)(?:, 1, 1)?\n", re.MULTILINE)
_BLOCKS: Final = ".minnctapersm"
_WARP: Final = 32
_UNIT: Final = 8
"""A thread has a multiple of 8 registers (CUDA programming guide, "Compute Capabilities")."""
_SHARE: Final = 4
"""A block more for every four: with fewer, little is gained for the registers that are lost."""


def wanted(ptx: str, resources: Resources, most_blocks: int) -> list[int]:
    """Blocks on a multiprocessor to ask for in turn, more than a kernel of those resources has and at most `most_blocks`; none
    if it spills registers already, or if its PTX says how many."""
    threads = _THREADS.search(ptx)
    if threads is None or resources.spill_bytes or _BLOCKS in ptx:
        return []
    blocks = _blocks(int(threads[1]), resources.registers)
    more = (min(most_blocks, blocks + -(-blocks // _SHARE)), blocks + 1)
    return [number for number in dict.fromkeys(more) if blocks < number <= most_blocks]


def asking(ptx: str, blocks: int) -> str:
    """The PTX that asks for that number of blocks on a multiprocessor."""
    return _THREADS.sub(lambda found: f"{found[0]}{_BLOCKS} {blocks}\n", ptx, count=1)


def _blocks(threads: int, registers: int) -> int:
    """Blocks that the registers of a multiprocessor have room for."""
    units = -(-max(registers, 1) // _UNIT) * -(-threads // _WARP)
    return REGISTERS // (_UNIT * _WARP * units)
