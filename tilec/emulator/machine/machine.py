"""The state of a launch in progress: what it is, and one typed subsystem for each thing that instructions change.

Subsystems get the others that they need when they are made, and know nothing of `Machine`. A new one is a `Subsystem` in a file
of its own, an attribute here and an entry in `subsystems`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.emulator.instructions.async_copy_state import Copies
from tilec.emulator.instructions.barrier_state import Barriers
from tilec.emulator.instructions.bulk_loads import Loads
from tilec.emulator.instructions.bulk_stores import Stores
from tilec.emulator.instructions.cluster_barrier_state import ClusterBarriers
from tilec.emulator.instructions.cluster_exits import ClusterExits
from tilec.emulator.instructions.launch_control_state import LaunchControl
from tilec.emulator.instructions.mbarrier_state import Mbarriers
from tilec.emulator.instructions.register_pool import RegisterPool
from tilec.emulator.instructions.tensor_memory_state import TensorMemory
from tilec.emulator.instructions.tensor_queue import TensorQueue
from tilec.emulator.instructions.tensor_transfers_state import TensorTransfers
from tilec.emulator.instructions.warpgroup_state import Warpgroups
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.launch_state import LaunchState, Shape
from tilec.emulator.machine.locator import Locator
from tilec.emulator.machine.memory import Memory
from tilec.emulator.machine.pending import Pending
from tilec.emulator.machine.registers import Registers
from tilec.emulator.machine.schedule import Scheduler
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Index, Wave
from tilec.emulator.machine.windows import Windows
from tilec.emulator.ordering.ordering import Ordering


class Machine:
    """A launch and its state. `start` makes a wave of blocks resident; `execution` runs it."""

    def __init__(self, launch: LaunchState, memory: Memory) -> None:
        self.launch, self.memory = launch, memory
        self.random = np.random.default_rng(launch.seed)
        self.printed: list[str] = []
        """What calls of vprintf wrote, in the order of execution."""
        self.wave = Wave(launch.threads, launch.cluster_size, launch.devices)
        self.pending = Pending(launch, self.random)
        self.registers = Registers(launch.function)
        self.scheduler = Scheduler(self.wave, self.registers, launch.seed, self.random)
        self.faults = Recorder(launch, self.wave, memory)
        self.windows = Windows(launch, memory, self.wave)
        self.ordering = Ordering(launch, self.wave, memory, self.faults)
        self.locator = Locator(memory, self.windows, self.ordering.prior_launches, self.ordering.clocks, self.faults)
        self.accesses = Accesses(self.wave, memory, self.ordering, self.faults)
        self.copies = Copies(self.wave, self.accesses)
        self.bulk_stores = Stores(self.wave, self.accesses)
        self.bulk_loads = Loads(self.wave, self.faults)
        self.warpgroups = Warpgroups(launch.function, self.wave, self.ordering, self.faults)
        self.mbarriers = Mbarriers(launch, self.wave, self.random, self.locator, self.accesses)
        self.barriers = Barriers(launch, self.wave, self.registers, self.random, self.ordering.clocks, self.faults)
        self.register_pool = RegisterPool(launch, self.wave, self.faults)
        self.cluster_barriers = ClusterBarriers(self.wave, self.windows, self.ordering, self.faults)
        self.launch_control = LaunchControl(self.pending, self.wave, self.accesses)
        self.cluster_exits = ClusterExits(self.wave, self.windows, self.mbarriers, self.ordering, self.faults)
        self.tensor_memory = TensorMemory(launch, self.wave, self.ordering.clocks, self.random, self.faults)
        self.tensor_queue = TensorQueue(launch, self.wave, self.random, self.accesses, self.mbarriers)
        self.tensor_transfers = TensorTransfers(launch.function, self.wave, self.ordering.clocks, self.faults)
        self.subsystems: tuple[Subsystem, ...] = (
            self.copies, self.bulk_stores, self.bulk_loads, self.warpgroups, self.mbarriers, self.barriers, self.register_pool,
            self.cluster_barriers, self.cluster_exits, self.launch_control,
            self.tensor_queue, self.tensor_memory, self.tensor_transfers,
        )  # fmt: skip

    def start(self, blocks: Sequence[Shape], first_number: int) -> None:
        """Makes these blocks resident, with all threads at the first instruction. `first_number` counts the blocks of earlier
        waves."""
        self.wave.start(blocks, first_number)
        self.registers.clear()
        self.scheduler.clear()
        self.windows.start(self.wave, blocks)
        shadow = self.ordering.shadow
        shadow.grow(len(self.memory.data))
        for window in self.windows.shared:
            shadow.forget(window.start, window.end)
        self.ordering.start(first_number * self.launch.threads)
        for subsystem in self.subsystems:
            subsystem.clear()

    def frame(self, lanes: Index, pc: int) -> Frame:
        """Lanes that execute the instruction at `pc` together."""
        return Frame(self.wave, self.registers, lanes, pc)
