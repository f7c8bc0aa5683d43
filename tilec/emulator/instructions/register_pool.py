"""`setmaxnreg`: register reallocation between the warpgroups of a block (PTX ISA, "Miscellaneous instructions: setmaxnreg").

A block has a pool of free registers, empty at its start. `dec` gives registers of the warpgroup to the pool, `inc` waits
until the pool has enough; if that never happens, the launch deadlocks. The ISA forbids a count that is no multiple of 8 from
24 to 256, `dec` to more registers than the warpgroup has, `inc` to fewer, and execution by a part of the warpgroup. The four
warps execute the instruction together here. Kernels without a bound on their registers, for which a chip may ignore the
instruction, are checked too. Values do not change: the registers of PTX are virtual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Function, Instruction

Index = NDArray[np.int64]
Group = tuple[int, int]
"""A block of the wave and a warpgroup in it."""
GROUP: Final = 128
FILE: Final = 65536
"""32-bit registers of a multiprocessor, on every architecture (CUDA programming guide, "Compute Capabilities")."""
UNIT: Final = 8
"""Registers per thread that a warp is given at a time."""
MOST: Final = 256
LEAST: Final = 24


@dataclass(slots=True)
class _Request:
    """A warpgroup at `setmaxnreg`: the instruction, the count it names, and the lanes that have come."""

    instruction: Instruction
    count: int
    lanes: Index


class RegisterPool(Subsystem):
    """The free registers of each block of the wave, the registers per thread of each warpgroup, the warpgroups whose warps are
    still coming, and those that wait for registers."""

    def __init__(self, launch: LaunchState, wave: Wave, faults: Recorder) -> None:
        self.wave, self.faults = wave, faults
        self.first = registers_at_launch(launch.function, launch.threads)
        self.free: dict[int, int] = {}
        self.owned: dict[Group, int] = {}
        self.coming: dict[Group, _Request] = {}
        self.waiting: dict[Group, _Request] = {}

    def clear(self) -> None:
        for table in (self.free, self.owned, self.coming, self.waiting):
            table.clear()

    def come(self, instruction: Instruction, group: Group, count: int, lanes: Index) -> None:
        """Whole warps of a group arrive, blocked; the last ones wake all of them, or make them wait for registers."""
        request = self.coming.setdefault(group, _Request(instruction, count, lanes[:0]))
        if request.instruction is not instruction:
            text = "warps of one warpgroup execute different setmaxnreg"
            self.faults.add("divergent", text, instruction, int(lanes[0]))
        request.lanes = np.concatenate([request.lanes, lanes])
        if len(request.lanes) < min(GROUP, self.wave.threads - GROUP * group[1]):
            return
        del self.coming[group]
        self._check(group, request)
        self.waiting[group] = request
        self._serve(group[0])

    def _check(self, group: Group, request: _Request) -> None:
        before, count, direction = self.owned.get(group, self.first), request.count, request.instruction.modifiers[0]
        problem = ""
        if not LEAST <= count <= MOST or count % UNIT:
            problem = f"{count} registers, which is no multiple of {UNIT} from {LEAST} to {MOST}"
        elif (count < before) if direction == "inc" else (count > before):
            problem = f"{direction} to {count} registers from {before}"
        if problem:
            self.faults.add("registers", problem, request.instruction, int(request.lanes[0]))
            request.count = before

    def _serve(self, block: int) -> None:
        """Grants what the pool of a block allows, a `dec` and small requests first."""
        for group in sorted((g for g in self.waiting if g[0] == block), key=self._need):
            request, need = self.waiting[group], self._need(group)
            if need <= self.free.get(block, 0):
                self.free[block] = self.free.get(block, 0) - need
                self.owned[group] = request.count
                del self.waiting[group]
                self.wave.wake(request.lanes)

    def _need(self, group: Group) -> int:
        """The registers that a waiting group takes from the pool; negative for a `dec`."""
        request = self.waiting[group]
        return (request.count - self.owned.get(group, self.first)) * len(request.lanes)

    def short(self) -> Index:
        """The lanes that wait for registers."""
        return np.concatenate([np.zeros(0, np.int64), *(request.lanes for request in self.waiting.values())])


def registers_at_launch(function: Function, threads: int) -> int:
    """Registers per thread of a new block, as ptxas chooses them for a kernel with `setmaxnreg`: the most that `.maxnreg` and
    the blocks per multiprocessor of `.minnctapersm` allow, in units of eight (PTX ISA, "Performance-tuning directives")."""
    directives = function.directives
    blocks = max(1, *directives.get("minnctapersm", (1,)))
    most = min(MOST, FILE // (threads * blocks) // UNIT * UNIT)
    limit = directives.get("maxnreg", (most,))[0]
    return min(most, -(-limit // UNIT) * UNIT)
