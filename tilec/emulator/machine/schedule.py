"""The scheduler, the layout of shared and local variables, and deadlock reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.memory import Allocation, Memory
from tilec.emulator.ptx.syntax import Function, Module, Variable

if TYPE_CHECKING:
    from tilec.emulator.machine.machine import Machine

NO_STOPS: Final = np.zeros(0, np.int64)
FOREVER: Final = 1 << 60
FRAME_BUDGET: Final = 5000


class Scheduler:
    """Picks frames. Seed 0: all ready lanes at the lowest instruction, until they reach an instruction where others are."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.last = -1
        self.yields = 0

    def pick(self) -> tuple[Frame, NDArray[np.int64], int] | None:
        """The frame, the instructions where it must stop, and its instruction budget; None if no lane is ready."""
        machine = self.machine
        ready = np.flatnonzero(machine.status == 0)
        if not len(ready):
            return None
        pcs = machine.pc[ready]
        if machine.seed == 0:
            return self._in_order(ready, pcs)
        return self._at_random(ready, pcs)

    def yield_frame(self) -> None:
        """Makes the next pick of seed 0 prefer an instruction other than the lowest, where lanes are spinning."""
        self.yields += 1

    def _in_order(self, ready: NDArray[np.int64], pcs: NDArray[np.int64]) -> tuple[Frame, NDArray[np.int64], int]:
        low = int(pcs.min())
        if int(pcs.max()) == low:
            self.yields = 0
            return Frame(self.machine, ready, low), NO_STOPS, FOREVER
        waiting = np.unique(pcs)
        if self.yields:
            low = int(waiting[self.yields % len(waiting)])
            self.yields = (self.yields + 1) % (2 * len(waiting))
        chosen = pcs == low
        return Frame(self.machine, ready[chosen], low), waiting[waiting != low], FRAME_BUDGET

    def _at_random(self, ready: NDArray[np.int64], pcs: NDArray[np.int64]) -> tuple[Frame, NDArray[np.int64], int]:
        machine, random = self.machine, self.machine.random
        low = int(pcs[random.integers(len(pcs))])
        lanes = ready[pcs == low]
        warps = np.unique(machine.warp[lanes])
        if len(warps) > 1:
            count = int(random.choice([1, max(1, len(warps) // 2), len(warps)]))
            kept = random.choice(warps, count, replace=False)
            lanes = lanes[np.isin(machine.warp[lanes], kept)]
        budget = int(2 ** random.uniform(0, 12))
        others = pcs[np.isin(machine.warp[ready], machine.warp[lanes]) & (pcs != low)]
        return Frame(machine, lanes, low), np.unique(others), budget


def _assign_offsets(variables: list[Variable]) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return offsets, end


def shared_layout(module: Module, function: Function, dynamic_bytes: int) -> tuple[dict[str, int], int]:
    """Offsets of shared variables in the block's window (dynamic ones last), and its size in bytes."""
    variables = [v for v in (*module.variables.values(), *function.variables.values()) if v.space == "shared"]
    offsets, end = _assign_offsets([v for v in variables if not v.external])
    dynamic = [v for v in variables if v.external]
    if dynamic:
        align = max(v.align for v in dynamic)
        end = -(-end // align) * align
        offsets |= {v.name: end for v in dynamic}
    return offsets, end + dynamic_bytes


def local_layout(function: Function) -> tuple[dict[str, int], int]:
    """Offsets of a thread's local variables (from 16, so that no address is 0), and the size of its window in bytes."""
    offsets, end = _assign_offsets([v for v in function.variables.values() if v.space == "local"])
    if not offsets:
        return {}, 0
    return {name: offset + 16 for name, offset in offsets.items()}, -(-(end + 16) // 16) * 16


def module_variables(module: Module, memory: Memory) -> dict[str, Allocation]:
    """Allocates the global and constant variables of a module with their initial contents."""
    found: dict[str, Allocation] = {}
    for variable in module.variables.values():
        if variable.space not in ("global", "const"):
            continue
        if variable.external:
            raise UnsupportedPtx(f"external variable {variable.name}")
        writable = variable.space == "global"
        data = np.frombuffer((variable.initial or b"").ljust(variable.size, b"\0"), np.uint8)
        place = memory.allocate(variable.name, data, writable=writable, align=max(variable.align, 16))
        place.space, place.is_tensor = variable.space, False
        found[variable.name] = place
    return found


def report_deadlock(machine: Machine) -> None:
    """Records which threads wait at which instruction, as `divergent` if a warp-wide operation can never complete, otherwise
    as `deadlock`."""
    blocked = np.flatnonzero(machine.status == 1)
    lines: list[str] = []
    for pc in np.unique(machine.pc[blocked]):
        lanes = blocked[machine.pc[blocked] == pc]
        instruction = machine.program.instructions[int(pc)]
        blocks = np.unique(machine.block[lanes])
        names = ", ".join(str(tuple(int(x) for x in machine.block_ids[b])) for b in blocks[:4])
        threads = ranges(machine.thread[lanes[machine.block[lanes] == blocks[0]]])
        lines.append(f"line {instruction.line} `{instruction.text}`: threads {threads} of block(s) {names}")
    gone = int((machine.status == 2).sum())
    message = "threads wait for ever: " + "; ".join(lines) + (f"; {gone} threads have left" if gone else "")
    waiting = [machine.program.instructions[int(pc)] for pc in machine.pc[blocked]]
    short = np.isin(blocked, machine.short_of_registers())
    apart = [
        not (s or (w.opcode in ("bar", "barrier", "mbarrier") and w.modifiers[:1] != ("warp",)))
        for w, s in zip(waiting, short, strict=True)
    ]
    divergent = any(apart)
    chosen = apart.index(True) if divergent else 0
    first, instruction = int(blocked[chosen]), waiting[chosen]
    machine.faults.add("divergent" if divergent else "deadlock", message, instruction, first, count=len(blocked))


def ranges(numbers: NDArray[np.int64]) -> str:
    """`0-31, 64` for a sorted array."""
    parts: list[str] = []
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(parts[:8]) + (" ..." if len(parts) > 8 else "")
