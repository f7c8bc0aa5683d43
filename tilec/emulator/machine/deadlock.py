"""Reports of threads that wait for ever."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.wave import BLOCKED, EXITED
from tilec.emulator.ptx.syntax import Instruction


def report(machine: Machine) -> None:
    """Records which threads wait at which instruction, as `divergent` if a warp-wide operation can never complete, otherwise
    as `deadlock`."""
    wave, instructions = machine.wave, machine.launch.function.instructions
    blocked = np.flatnonzero(wave.status == BLOCKED)
    lines: list[str] = []
    for pc in np.unique(wave.pc[blocked]):
        lanes = blocked[wave.pc[blocked] == pc]
        instruction = instructions[int(pc)]
        blocks = np.unique(wave.block[lanes])
        names = ", ".join(str(tuple(int(x) for x in wave.block_ids[b])) for b in blocks[:4])
        threads = ranges(wave.thread[lanes[wave.block[lanes] == blocks[0]]])
        lines.append(f"line {instruction.line} `{instruction.text}`: threads {threads} of block(s) {names}")
    gone = int((wave.status == EXITED).sum())
    message = "threads wait for ever: " + "; ".join(lines) + (f"; {gone} threads have left" if gone else "")
    waiting = [instructions[int(pc)] for pc in wave.pc[blocked]]
    short = np.isin(blocked, machine.register_pool.short())
    apart = [not (s or _waits_for_others(w)) for w, s in zip(waiting, short, strict=True)]
    divergent = any(apart)
    chosen = apart.index(True) if divergent else 0
    first, instruction = int(blocked[chosen]), waiting[chosen]
    machine.faults.add("divergent" if divergent else "deadlock", message, instruction, first, count=len(blocked))


def _waits_for_others(instruction: Instruction) -> bool:
    """Whether the instruction waits for other warps, so that threads that wait at it may all have come."""
    first = instruction.modifiers[:1]
    if instruction.opcode == "tcgen05":
        return first in (("alloc",), ("dealloc",))
    return instruction.opcode in ("bar", "barrier", "mbarrier") and first != ("warp",)


def ranges(numbers: NDArray[np.int64]) -> str:
    """`0-31, 64` for a sorted array."""
    parts: list[str] = []
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(parts[:8]) + (" ..." if len(parts) > 8 else "")
