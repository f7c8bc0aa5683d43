"""Loads and stores of checked accesses: they move values and poison and check for races.

Bulk and asynchronous families use `watch_read` and `watch_write`, with `Memory.read_rows` and `write_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED, Lanes, Poison
from tilec.emulator.machine.access import Access, Index
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.memory import Memory
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.ordering import Ordering
from tilec.emulator.ordering.replicas import same_values
from tilec.emulator.ordering.scopes import reach_of
from tilec.emulator.ptx.syntax import Instruction

UNUSED: Final = np.uint8(0xA5)
"""The value of register bytes that their load declares unused."""


@dataclass(frozen=True, slots=True)
class PoisonStore:
    """A store of poison: `width` bytes at each `index`, by the thread `threads` of the block `blocks` [m, 3]."""

    index: Index
    width: int
    instruction: Instruction
    blocks: Index
    threads: Index


class Accesses:
    """`poison_stores`: the stores of poison of the launch, in order; `on_read` is called with every checked read."""

    def __init__(self, wave: Wave, memory: Memory, ordering: Ordering, faults: Recorder) -> None:
        self.wave, self.memory, self.ordering, self.faults = wave, memory, ordering, faults
        self.poison_stores: list[PoisonStore] = []
        self.on_read: list[Callable[[Access], None]] = []

    def load(
        self,
        frame: Frame,
        access: Access,
        width: int,
        count: int,
        instruction: Instruction,
        *,
        atomic: bool = False,
        nc: bool = False,
        scope: str | None = None,
        used: int = -1,
    ) -> tuple[list[Lanes], list[Poison | None]]:
        """Loads `count` values of `width` bytes from each lane's address, as raw unsigned arrays with one entry per lane of the
        frame. A lane without an access gets 0 and poison if its guard is true. Bytes whose bit in `used` is 0 read as `UNUSED`,
        without poison, so a program that uses them anyway computes a different result."""
        memory = self.memory
        self.watch_read(access, instruction, atomic=atomic, nc=nc, scope=scope)
        index, allocation = access.index, access.allocation
        values = memory.read(index, width * count)
        rows = values.view(f"u{width}").reshape(len(index), count)
        poison = (
            memory.read_poison(index, width)
            if count == 1 and used == -1 and (allocation is None or allocation.poisonous)
            else None
        )
        all_poison: NDArray[Any] | None = None
        if (count > 1 or used != -1) and (allocation is None or allocation.poisonous):
            raw = memory.poison_views[width * count].take(index >> (width * count).bit_length() - 1).view(np.uint8)
            if used != -1:
                raw = raw.reshape(len(index), -1) * _used_bytes(used, width * count)
            if raw.any():
                all_poison = np.bitwise_or.reduce(raw.reshape(len(index), count, width), axis=2)
        elif poison is not None:
            all_poison = poison[:, None]
        if all_poison is not None:
            all_poison = all_poison & np.uint8(STORED - 1)
        if used != -1:
            marked = np.where(_used_bytes(used, width * count), values.view(np.uint8).reshape(len(index), -1), UNUSED)
            rows = np.ascontiguousarray(marked).view(f"u{width}").reshape(len(index), count)
        if access.positions is None:
            return (
                [np.ascontiguousarray(rows[:, k]) for k in range(count)],
                [None if all_poison is None or not all_poison[:, k].any() else all_poison[:, k] for k in range(count)],
            )
        return _spread(frame, access, rows, all_poison)

    def store(
        self,
        frame: Frame,
        access: Access,
        width: int,
        values: Sequence[Lanes],
        poisons: Sequence[Poison | None],
        instruction: Instruction,
        *,
        atomic: bool = False,
        scope: str | None = None,
    ) -> None:
        """Writes raw unsigned `values` of `width` bytes to consecutive locations from each lane's address."""
        memory, index = self.memory, access.index
        if not len(index):
            return
        full = [np.broadcast_to(value, frame.n) for value in values]
        chosen = full if access.positions is None else [value[access.positions] for value in full]
        rows = np.ascontiguousarray(np.stack(chosen, axis=1) if len(chosen) > 1 else chosen[0])
        total = width * len(values)
        packed = rows.reshape(-1).view(memory.views[total].dtype)
        self.watch_write(access, instruction, lambda: packed, atomic=atomic, scope=scope)
        slots = index >> total.bit_length() - 1
        memory.views[total][slots] = packed
        if any(poison is not None for poison in poisons):
            flags = np.zeros((len(index), len(values)), np.uint8)
            for k, poison in enumerate(poisons):
                if poison is not None:
                    flags[:, k] = poison if access.positions is None else poison[access.positions]
            flags |= np.where(flags != 0, STORED, 0).astype(np.uint8)
            memory.poison_views[total][slots] = (
                np.repeat(flags, width, axis=1).reshape(-1).view(memory.poison_views[total].dtype)
            )
            self.note_poison(access, flags, instruction)
        elif access.allocation is None or access.allocation.poisonous:
            memory.poison_views[total][slots] = np.zeros(len(index), memory.poison_views[total].dtype)

    def note_poison(self, access: Access, flags: NDArray[np.uint8], instruction: Instruction) -> None:
        """Records which lanes stored poison and by which instruction, so that a fault on an output byte can name the store."""
        if not flags.any():
            return
        poisoned = flags.any(axis=1)
        lanes = access.lanes[poisoned]
        blocks, threads = self.wave.block_ids[self.wave.block[lanes]], self.wave.thread[lanes]
        self.poison_stores.append(PoisonStore(access.index[poisoned], access.width, instruction, blocks, threads))

    def watch_read(
        self,
        access: Access,
        instruction: Instruction,
        *,
        atomic: bool = False,
        nc: bool = False,
        scope: str | None = None,
    ) -> None:
        """Checks these reads against unordered writes and records them in the shadow. `scope` is that of a strong access
        (`atomic`)."""
        allocation = access.allocation
        if nc and len(access.index):
            self.ordering.noncoherent.watch(access, instruction)
        self.ordering.peer_reads.check(access, instruction)
        if not len(access.index) or (allocation is not None and not allocation.tracked):
            return
        if self.ordering.in_flight.busy:
            self.ordering.in_flight.check(access.index, access.width, access.lanes, False, instruction)
        for action in self.on_read:
            action(access)
        racing = self.ordering.shadow.read(access.index, access.width, access.lanes, atomic, self._reach(scope))
        if racing is not None:
            self.report_race(access, racing, instruction, "reads what another thread writes")

    def check_read(self, access: Access, instruction: Instruction) -> None:
        """Checks these reads against unordered writes, and does not record them: their order is that of a later event."""
        self.ordering.in_flight.check(access.index, access.width, access.lanes, False, instruction)
        self.ordering.peer_reads.check(access, instruction)
        shadow = self.ordering.shadow
        racing = shadow.unordered_writes(shadow.granules(access.index, access.width), access.lanes)
        if racing is not None:
            self.report_race(access, racing, instruction, "reads what another thread writes")

    def watch_write(
        self,
        access: Access,
        instruction: Instruction,
        data: Callable[[], NDArray[Any]] | None = None,
        *,
        atomic: bool = False,
        scope: str | None = None,
        through_async: bool = False,
    ) -> None:
        """Checks these writes against unordered accesses and records them in the shadow. `data()` returns the bytes to write,
        one item of `access.width` bytes per lane; with it, equal values written by a store that replicates are no race.
        `through_async`: the async proxy writes."""
        found = access.allocation
        if not len(access.index) or (found is not None and not found.tracked):
            return
        if self.ordering.in_flight.busy:
            self.ordering.in_flight.check(access.index, access.width, access.lanes, True, instruction)
        earlier, shared, racing_reads = self.ordering.shadow.write(
            access.index, access.width, access.lanes, atomic, self._reach(scope), through_async
        )
        if racing_reads is not None and racing_reads.any():
            self.report_race(access, racing_reads, instruction, "writes what another thread reads")
        racing = earlier if shared is None else shared if earlier is None else earlier | shared
        is_racing = racing is not None and bool(racing.any())
        equal_values = is_racing and data is not None and same_values(self.memory, access, data(), earlier)
        replicated = self.ordering.replicas.record_write(access, instruction, earlier)
        if racing is not None and is_racing and not (equal_values and replicated):
            kind = "race-same-value" if equal_values else "race"
            self.report_race(access, racing, instruction, "writes what another thread writes", kind)

    def _reach(self, scope: str | None) -> int:
        return 0 if scope is None else reach_of(scope, self.wave.cluster_size, self.wave.device_blocks)

    def report_race(
        self, access: Access, racing: NDArray[np.bool_], instruction: Instruction, message: str, kind: str = "race"
    ) -> None:
        """Records a race of the lanes at the true entries of `racing` [m, granules]."""
        row, column = (int(x[0]) for x in np.nonzero(racing))
        at = int(access.index[row]) + (column << self.ordering.shadow.shift)
        self.faults.add(kind, message, instruction, int(access.lanes[row]), index=at, count=int(racing.any(axis=1).sum()))


def _used_bytes(mask: int, size: int) -> NDArray[np.bool_]:
    return (mask >> np.arange(size)) & 1 != 0


def _spread(
    frame: Frame, access: Access, rows: NDArray[Any], poison: NDArray[Any] | None
) -> tuple[list[Lanes], list[Poison | None]]:
    """The loaded rows with zeros in the lanes without an access; those of them under the frame's mask are poison."""
    values: list[Lanes] = []
    poisons: list[Poison | None] = []
    missing = np.ones(frame.n, np.uint8) if frame.mask is None else frame.mask.astype(np.uint8)
    missing[access.positions] = 0
    for k in range(rows.shape[1]):
        value = np.zeros(frame.n, rows.dtype)
        value[access.positions] = rows[:, k]
        flags = missing
        if poison is not None:
            flags = missing.copy()
            flags[access.positions] = poison[:, k]
        values.append(value)
        poisons.append(flags if flags.any() else None)
    return values, poisons
