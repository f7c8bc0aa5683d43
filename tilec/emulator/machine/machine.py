"""One launch in progress: lanes, registers, the scheduler, and the services that instructions use.

All threads of the resident blocks are lanes. The scheduler picks lanes at one instruction and runs them as one `Frame` until
they diverge, block or exit. Seed 0 always picks the lowest instruction, so all lanes run in lock step and diverged lanes
reconverge. Any other seed picks instructions, warps and run lengths at random, so blocks, warps and the parts of a diverged
warp interleave differently for each seed, reproducibly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Lanes, Limits, Poison, StopLaunch
from tilec.emulator.machine import faults, schedule
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.memory import PARAM_START, SHARED_START, Allocation, Memory
from tilec.emulator.machine.program import Program
from tilec.emulator.machine.registry import RAW, RESCHEDULE, TYPES, Decoder, Signal
from tilec.emulator.machine.specials import special
from tilec.emulator.ordering.in_flight import InFlight
from tilec.emulator.ordering.races import Clocks, Shadow
from tilec.emulator.ordering.replicas import Replicas
from tilec.emulator.ptx.syntax import Function, Module, Symbol

READY: Final = 0
BLOCKED: Final = 1
EXITED: Final = 2
WARP: Final = 32
Index = NDArray[np.int64]


class Machine:
    """A launch of `function`. `start` makes a wave of blocks resident, `run` executes it to its end. Per-lane arrays: `block`
    and `warp` (indices in the wave), `thread` (linear in the block), `lane_in_warp`, `pc`, `status`, `shared_base` (index in
    memory of the block's shared window, less the window's first offset)."""

    def __init__(
        self,
        module: Module,
        function: Function,
        memory: Memory,
        shape: tuple[tuple[int, int, int], tuple[int, int, int]],
        *,
        dynamic_shared_bytes: int = 0,
        seed: int = 0,
        limits: Limits | None = None,
        clusters: tuple[int, int, int] = (1, 1, 1),
        replicating: Collection[int] = (),
    ) -> None:
        self.module, self.function, self.memory = module, function, memory
        self.grid, self.block_shape, self.cluster_shape = shape[0], shape[1], clusters
        self.dynamic_shared_bytes, self.seed, self.limits = dynamic_shared_bytes, seed, limits or Limits()
        self.random = np.random.default_rng(seed)
        self.faults = faults.Recorder(self)
        self.threads = self.block_shape[0] * self.block_shape[1] * self.block_shape[2]
        self.dtypes: list[Any] = [RAW[TYPES[r.type][0]] for r in function.registers]
        self.register_count = len(self.dtypes)
        self.extensions: dict[str, Any] = {}
        self.on_wave: list[Callable[[], None]] = []
        self.on_exit: list[Callable[[Frame], None]] = []
        self.wakers: list[Callable[[], bool]] = []
        self.steps_left = self.limits.instructions
        self.short_of_registers: Callable[[], Index] = lambda: np.zeros(0, np.int64)
        self.pending = InFlight(self)
        self.overlaps = False
        self.before_dependency_wait: NDArray[np.bool_] | None = None
        self.on_wave.append(self.pending.clear)
        self.shared: list[Allocation] = []
        self.parameters: Allocation | None = None
        self.shared_offsets, self.shared_size = schedule.shared_layout(module, function, dynamic_shared_bytes)
        self.local_offsets, self.local_size = schedule.local_layout(function)
        self.local: Allocation | None = None
        self.block_count = self.warp_count = self.lane_count = 0
        self.globals = schedule.module_variables(module, memory)
        self.program = Program(self)
        self.clocks = Clocks(self)
        self.shadow = Shadow(self.clocks, len(memory.data), self.program.granule_shift)
        memory.on_growth.append(self.shadow.grow)
        self.replicas = Replicas(self, replicating)

    # --- waves
    def start(self, blocks: Sequence[tuple[int, int, int]], first_number: int) -> None:
        """Makes these blocks resident, with all threads at the first instruction. `first_number` counts the blocks of earlier
        waves."""
        threads, per_block = self.threads, -(-self.threads // WARP)
        self.block_count, self.lane_count = len(blocks), len(blocks) * threads
        self.warp_count = len(blocks) * per_block
        self.block_ids = np.array(blocks, np.int64).reshape(-1, 3)
        self.block_number = first_number + np.arange(len(blocks))
        lanes = np.arange(self.lane_count)
        self.block, self.thread = lanes // threads, lanes % threads
        self.warp = self.block * per_block + self.thread // WARP
        self.lane_in_warp = self.thread % WARP
        self.warp_sizes = np.bincount(self.warp, minlength=self.warp_count)
        self.pc, self.status = np.zeros(self.lane_count, np.int64), np.zeros(self.lane_count, np.int8)
        self.values: list[Lanes | None] = [None] * self.register_count
        self.poison: list[Poison | None] = [None] * self.register_count
        self.owned: set[int] = set()
        self.shared = [
            self.memory.reserve(f"shared memory of block {tuple(b)}", "shared", self.shared_size, align=1024) for b in blocks
        ]
        bases = np.array([allocation.start for allocation in self.shared], np.int64) - SHARED_START
        self.shared_base = bases[self.block]
        if self.local_size:
            self.local = self.memory.reserve(
                "local memory", "local", self.local_size * self.lane_count, align=1024, tracked=False
            )
        self.shadow.grow(len(self.memory.data))
        for allocation in self.shared:
            self.shadow.forget(allocation.start, allocation.end)
        self.clocks.start(first_number * threads)
        self.scheduler = schedule.Scheduler(self)
        self.before_dependency_wait = np.ones(self.lane_count, np.bool_) if self.overlaps else None
        for action in self.on_wave:
            action()

    def run(self) -> None:
        """Runs the resident blocks to their end. Raises StopLaunch after a deadlock, a trap or too many instructions."""
        while True:
            picked = self.scheduler.pick()
            if picked is None:
                if (self.status == EXITED).all():
                    return
                woken = [waker() for waker in self.wakers]  # call every waker, even if an earlier one succeeded
                if any(woken):
                    continue
                schedule.report_deadlock(self)
                raise StopLaunch
            self.execute(*picked)

    def execute(self, frame: Frame, stops: Index, budget: int) -> None:
        """Runs a frame until it diverges, blocks, exits, reaches one of `stops`, or exhausts its budget."""
        program = self.program
        steps, ends, hits = program.steps, program.ends, program.hits
        pc, remaining = frame.pc, budget
        signal: Any = None
        while True:
            end = ends[pc]
            if len(stops):
                at = int(np.searchsorted(stops, pc, side="right"))
                if at < len(stops) and stops[at] <= end:
                    end = int(stops[at]) - 1
            if end - pc >= remaining:
                end = pc + remaining - 1
            for step in steps[pc : end + 1]:
                signal = step(frame)
            hits[pc] += frame.n
            hits[end + 1] -= frame.n
            remaining -= end + 1 - pc
            self.steps_left -= end + 1 - pc
            if program.straight[end] or signal is None:
                pc = end + 1
            elif isinstance(signal, Signal):
                return
            else:
                pc = signal
            if remaining <= 0 or (len(stops) and (pc in stops or (self.seed == 0 and pc > stops[0]))) or self.steps_left < 0:
                break
        if remaining <= 0:
            self.scheduler.yield_frame()
        self.park(frame, pc)
        if self.steps_left < 0:
            self.faults.add("limit", f"more than {self.limits.instructions} instructions", None)
            raise StopLaunch

    # --- used by control instructions; each flushes the frame
    def park(self, frame: Frame, pc: int | NDArray[Any], status: int = READY) -> Signal:
        """Suspends the frame's lanes at `pc` (one, or one per lane) with that status."""
        frame.flush()
        self.pc[frame.lanes] = pc
        self.status[frame.lanes] = status
        return RESCHEDULE

    def branch(self, frame: Frame, taken: NDArray[np.bool_], target: int, fall: int) -> Signal:
        """Sends the lanes where `taken` is true to `target`, the others to `fall`."""
        return self.park(frame, np.where(taken, target, fall))

    def wake(self, lanes: Index, advance: bool = True) -> None:
        """Makes blocked lanes ready, at the next instruction unless `advance` is False."""
        self.status[lanes] = READY
        if advance:
            self.pc[lanes] += 1

    def whole_warps(self, lanes: Index) -> bool:
        """Whether these lanes include every thread of each of their warps."""
        counts = np.bincount(self.warp[lanes], minlength=self.warp_count)
        return bool(((counts == 0) | (counts == self.warp_sizes)).all())

    def lanes_of_block(self, block: int) -> Index:
        """All lanes of a block of the wave."""
        return np.arange(block * self.threads, (block + 1) * self.threads)

    # --- names
    def symbol_address(self, symbol: Symbol, d: Decoder) -> int:
        """The address of a variable as `mov` returns it: an offset in the window for shared and local variables and
        parameters, otherwise generic."""
        name = symbol.name
        if name in self.shared_offsets:
            return SHARED_START + self.shared_offsets[name] + symbol.offset
        if name in self.local_offsets:
            return self.local_offsets[name] + symbol.offset
        if name in self.globals:
            return self.globals[name].address + symbol.offset
        for parameter in self.function.parameters:
            if parameter.name == name and self.parameters is not None:
                return PARAM_START + parameter.offset + symbol.offset
        raise d.unsupported(f"unknown symbol {name}")

    def special(self, name: str, d: Decoder) -> Callable[[Frame], Lanes]:
        """A reader of a special register (integer lanes)."""
        found = special(self, name)
        if found is None:
            raise d.unsupported(f"unknown special register {name}")
        return found
