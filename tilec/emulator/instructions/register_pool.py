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

from tilec.emulator.instructions.convergence import converge
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import BLOCKED, Machine
from tilec.emulator.machine.registry import RESCHEDULE, Decoder, Signal, Step, control
from tilec.emulator.ptx.syntax import Function

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

    step: Decoder
    count: int
    lanes: Index


class RegisterPool:
    """The free registers of each block of the wave, the registers per thread of each warpgroup, the warpgroups whose warps are
    still coming, and those that wait for registers."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.first = registers_at_launch(machine.function, machine.threads)
        self.free: dict[int, int] = {}
        self.owned: dict[Group, int] = {}
        self.coming: dict[Group, _Request] = {}
        self.waiting: dict[Group, _Request] = {}
        machine.on_wave.append(self.clear)
        machine.short_of_registers = self.short

    def clear(self) -> None:
        """Starts a new wave."""
        for table in (self.free, self.owned, self.coming, self.waiting):
            table.clear()

    def come(self, d: Decoder, group: Group, count: int, lanes: Index) -> None:
        """Whole warps of a group arrive, blocked; the last ones wake all of them, or make them wait for registers."""
        request = self.coming.setdefault(group, _Request(d, count, lanes[:0]))
        if request.step is not d:
            text = "warps of one warpgroup execute different setmaxnreg"
            self.machine.faults.add("divergent", text, d.instruction, int(lanes[0]))
        request.lanes = np.concatenate([request.lanes, lanes])
        if len(request.lanes) < min(GROUP, self.machine.threads - GROUP * group[1]):
            return
        del self.coming[group]
        self._check(group, request)
        self.waiting[group] = request
        self._serve(group[0])

    def _check(self, group: Group, request: _Request) -> None:
        before, count, direction = self.owned.get(group, self.first), request.count, request.step.instruction.modifiers[0]
        problem = ""
        if not LEAST <= count <= MOST or count % UNIT:
            problem = f"{count} registers, which is no multiple of {UNIT} from {LEAST} to {MOST}"
        elif (count < before) if direction == "inc" else (count > before):
            problem = f"{direction} to {count} registers from {before}"
        if problem:
            self.machine.faults.add("registers", problem, request.step.instruction, int(request.lanes[0]))
            request.count = before

    def _serve(self, block: int) -> None:
        """Grants what the pool of a block allows, a `dec` and small requests first."""
        for group in sorted((g for g in self.waiting if g[0] == block), key=self._need):
            request, need = self.waiting[group], self._need(group)
            if need <= self.free.get(block, 0):
                self.free[block] = self.free.get(block, 0) - need
                self.owned[group] = request.count
                del self.waiting[group]
                self.machine.wake(request.lanes)

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


def register_pool(machine: Machine) -> RegisterPool:
    """The launch's register pools."""
    found = machine.extensions.get("register pool")
    if found is None:
        found = machine.extensions["register pool"] = RegisterPool(machine)
    return found


@control("setmaxnreg")
def setmaxnreg(d: Decoder) -> Step:
    """`setmaxnreg.inc|dec.sync.aligned.u32 COUNT`."""
    d.need("inc", "dec")
    d.need("sync")
    d.need("aligned")
    d.need("u32")
    d.finish(1)
    constant = d.source(0, "u32").constant
    if constant is None:
        raise d.unsupported("a register count that is no constant")
    machine, pool, count = d.machine, register_pool(d.machine), int(constant)

    def step(frame: Frame) -> Signal:
        machine.park(frame, d.index, BLOCKED)
        blocks, groups = machine.block[frame.lanes], machine.thread[frame.lanes] // GROUP
        for block, group in sorted(set(zip(blocks.tolist(), groups.tolist(), strict=True))):
            pool.come(d, (block, group), count, frame.lanes[(blocks == block) & (groups == group)])
        return RESCHEDULE

    return converge(d, step)
