"""Checked accesses to memory: from the addresses in a frame's lanes to valid indices into memory.

`locate` resolves the state space, drops lanes whose address is poison, out of bounds, misaligned or in a wrong state space
(recording a fault for each cause), and returns the others. `load` and `store` move values and poison and check for races.
Bulk and asynchronous families use `locate` with the shadow and `Memory.read_rows`/`write_rows` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED, Lanes, Poison
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.memory import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    PARAM_START,
    SHARED_BASE,
    SHARED_START,
    Allocation,
)
from tilec.emulator.ordering import noncoherent, prior_launches, replicas
from tilec.emulator.ptx.syntax import Instruction

if TYPE_CHECKING:
    from tilec.emulator.machine.machine import Machine

Index = NDArray[np.int64]
WINDOW: Final = 1 << 32
UNUSED: Final = np.uint8(0xA5)
"""The value of register bytes that their load declares unused."""
SPACES: Final = {
    "global": ("global",),
    "const": ("const",),
    "shared": ("shared",),
    "local": ("local",),
    "param": ("param",),
    "generic": ("global", "shared", "local", "const", "param"),
}


@dataclass(slots=True)
class Access:
    """Checked lanes of a frame: `positions` in the frame (None: all of them), `index` into memory of each, and the one
    allocation that all of them access (None if several). Each access has `width` bytes."""

    positions: Index | None
    index: Index
    allocation: Allocation | None
    width: int
    lanes: Index

    def allocations(self, machine: Machine) -> list[Allocation]:
        """Every allocation that is accessed."""
        if self.allocation is not None:
            return [self.allocation]
        memory = machine.memory
        return [memory.allocations[int(owner)] for owner in np.unique(memory.owner[self.index >> 8])]


def locate(
    frame: Frame,
    address: Lanes,
    poison: Poison | None,
    space: str,
    width: int,
    instruction: Instruction,
    *,
    write: bool,
    align: int | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> Access:
    """The checked accesses of `width` bytes at `address` (int64, as `Decoder.address_source` returns it) for the lanes under
    the frame's mask (and `mask`). `align` is the required alignment, a power of two (default: `width`)."""
    machine = frame.machine
    address = np.broadcast_to(address, frame.n)
    selected = frame.mask if mask is None else mask if frame.mask is None else mask & frame.mask
    if write and frame.mask_poison is not None:
        machine.faults.poison("the guard of a store", instruction, frame, frame.mask_poison, masked=False)
    if poison is not None:
        bad = (poison != 0) if selected is None else (poison != 0) & selected
        if bad.any():
            machine.faults.poison("an address", instruction, frame, np.where(bad, poison, 0).astype(np.uint8))
            selected = ~bad if selected is None else selected & ~bad
    positions = None if selected is None else np.flatnonzero(selected)
    if positions is not None:
        address = address[positions]
    lanes = frame.lanes if positions is None else frame.lanes[positions]
    index = _resolve(machine, lanes, address, space)
    access = Access(positions, index, None, width, lanes)
    if not len(index):
        return access
    checked = _check(frame, access, address, space, instruction, write, width if align is None else align)
    if machine.before_dependency_wait is not None and space in ("global", "generic") and len(checked.index):
        prior_launches.check(machine, checked.lanes, checked.index, checked.allocations(machine), instruction, write=write)
    return checked


def memory_space(machine: Machine, found: Access) -> str:
    """The state space of an access: that of its first allocation, "" without lanes."""
    allocations = found.allocations(machine) if len(found.index) else []
    return allocations[0].space if allocations else ""


def _resolve(machine: Machine, lanes: Index, address: Index, space: str) -> Index:
    """Indices into memory; -1 for an address outside every window."""
    if space == "shared":
        inside = (address >= SHARED_START) & (address < SHARED_START + machine.shared_size)
        index = machine.shared_base[lanes] + address
        return index if inside.all() else np.where(inside, index, -1)
    if space == "local":
        inside = (address >= 16) & (address < machine.local_size)
        start = machine.local.start if machine.local else 0
        return np.where(inside, start + lanes * machine.local_size + address, -1)
    if space == "param":
        place = machine.parameters
        inside = (address >= PARAM_START) & (address < PARAM_START + (place.end - place.start if place else 0))
        return np.where(inside, address - PARAM_START + (place.start if place else 0), -1)
    index = address - GLOBAL_BASE
    if space == "generic" and (index < 0).any():
        shared = (address >= SHARED_BASE) & (address < SHARED_BASE + WINDOW)
        local = (address >= LOCAL_BASE) & (address < LOCAL_BASE + WINDOW)
        index = np.where(shared, _resolve(machine, lanes, address - SHARED_BASE, "shared"), index)
        param = (address >= PARAM_BASE) & (address < PARAM_BASE + WINDOW)
        index = np.where(local, _resolve(machine, lanes, address - LOCAL_BASE, "local"), index)
        index = np.where(param, _resolve(machine, lanes, address - PARAM_BASE, "param"), index)
    return index


def _check(
    frame: Frame, access: Access, address: Index, space: str, instruction: Instruction, write: bool, align: int
) -> Access:
    memory, index, width = frame.machine.memory, access.index, access.width
    low, high = int(index.min()), int(index.max())
    allocation = memory.allocation_at(low) if low >= 0 else None
    inside = allocation is not None and low >= allocation.start and high + width <= allocation.end
    if allocation is not None and inside and not int(np.bitwise_or.reduce(index)) & (align - 1):
        if allocation.space not in SPACES[space]:
            _refuse(frame, access, address, "space", f"{space} access in {allocation.space} memory", instruction)
            return _drop(access, np.zeros(len(index), np.bool_))
        if write and not allocation.writable:
            _refuse(frame, access, address, "read-only", f"a write to `{allocation.name}`", instruction)
            return _drop(access, np.zeros(len(index), np.bool_))
        access.allocation = allocation
        return access
    if space == "shared" and allocation is not None and not int(np.bitwise_or.reduce(index)) & (align - 1):
        # windows of several blocks: all have the same layout, so checking the offsets suffices
        first, last = int(address.min()) - SHARED_START, int(address.max()) + width - SHARED_START
        if first >= 0 and last <= frame.machine.shared_size:
            return access
    return _check_each(frame, access, address, space, instruction, write, align)


def _check_each(
    frame: Frame, access: Access, address: Index, space: str, instruction: Instruction, write: bool, align: int
) -> Access:
    memory, index = frame.machine.memory, access.index
    page = index >> 8
    mapped = (index >= 0) & (page < len(memory.owner))
    owner = np.where(mapped, memory.owner[np.where(mapped, page, 0)], -1)
    valid = np.zeros(len(index), np.bool_)
    for number in np.unique(owner[owner >= 0]):
        allocation = memory.allocations[int(number)]
        owned = owner == number
        inside = owned & (index >= allocation.start) & (index + access.width <= allocation.end)
        if allocation.space not in SPACES[space]:
            _refuse(frame, access, address, "space", f"{space} access in {allocation.space} memory", instruction, inside)
        elif write and not allocation.writable:
            _refuse(frame, access, address, "read-only", f"a write to `{allocation.name}`", instruction, inside)
        else:
            valid |= inside
        outside = owned & ~inside
        if outside.any():
            text = f"{access.width} bytes outside `{allocation.name}` ({allocation.end - allocation.start} bytes)"
            _refuse(frame, access, address, "bounds", text, instruction, outside)
    unmapped = owner < 0
    if unmapped.any():
        _refuse(frame, access, address, "bounds", "an address in no allocation", instruction, unmapped)
    misaligned = valid & ((index & (align - 1)) != 0)
    if misaligned.any():
        _refuse(frame, access, address, "alignment", f"an address that is no multiple of {align}", instruction, misaligned)
        valid &= ~misaligned
    kept = _drop(access, valid)
    owners = np.unique(owner[valid])
    kept.allocation = memory.allocations[int(owners[0])] if len(owners) == 1 else None
    return kept


def _drop(access: Access, good: NDArray[np.bool_]) -> Access:
    positions = np.flatnonzero(good) if access.positions is None else access.positions[good]
    return Access(positions, access.index[good], None, access.width, access.lanes[good])


def _refuse(
    frame: Frame,
    access: Access,
    address: Index,
    kind: str,
    message: str,
    instruction: Instruction,
    bad: NDArray[np.bool_] | None = None,
) -> None:
    positions = np.arange(len(access.index)) if bad is None else np.flatnonzero(bad)
    if not len(positions):
        return
    at, index = int(positions[0]), int(access.index[positions[0]])
    frame.machine.faults.add(
        kind,
        message,
        instruction,
        int(access.lanes[at]),
        index=index if index >= 0 else None,
        address=int(address[at]) & ((1 << 64) - 1),
        count=len(positions),
    )


def load(
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
    machine, memory = frame.machine, frame.machine.memory
    watch_read(machine, access, instruction, atomic=atomic, nc=nc, scope=scope)
    index, allocation = access.index, access.allocation
    values = memory.read(index, width * count)
    rows = values.view(f"u{width}").reshape(len(index), count)
    poison = (
        memory.read_poison(index, width) if count == 1 and used == -1 and (allocation is None or allocation.poisonous) else None
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
    if used != -1:
        marked = np.where(_used_bytes(used, width * count), values.view(np.uint8).reshape(len(index), -1), UNUSED)
        rows = np.ascontiguousarray(marked).view(f"u{width}").reshape(len(index), count)
    if access.positions is None:
        return (
            [np.ascontiguousarray(rows[:, k]) for k in range(count)],
            [None if all_poison is None or not all_poison[:, k].any() else all_poison[:, k] for k in range(count)],
        )
    return _spread(frame, access, rows, all_poison)


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


def store(
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
    memory, index = frame.machine.memory, access.index
    if not len(index):
        return
    full = [np.broadcast_to(value, frame.n) for value in values]
    chosen = full if access.positions is None else [value[access.positions] for value in full]
    rows = np.ascontiguousarray(np.stack(chosen, axis=1) if len(chosen) > 1 else chosen[0])
    total = width * len(values)
    packed = rows.reshape(-1).view(memory.views[total].dtype)
    watch_write(frame.machine, access, instruction, lambda: packed, atomic=atomic, scope=scope)
    slots = index >> total.bit_length() - 1
    memory.views[total][slots] = packed
    if any(poison is not None for poison in poisons):
        flags = np.zeros((len(index), len(values)), np.uint8)
        for k, poison in enumerate(poisons):
            if poison is not None:
                flags[:, k] = poison if access.positions is None else poison[access.positions]
        flags |= np.where(flags != 0, STORED, 0).astype(np.uint8)
        memory.poison_views[total][slots] = np.repeat(flags, width, axis=1).reshape(-1).view(memory.poison_views[total].dtype)
        note_poison(frame.machine, access, flags, instruction)
    elif access.allocation is None or access.allocation.poisonous:
        memory.poison_views[total][slots] = np.zeros(len(index), memory.poison_views[total].dtype)


def note_poison(machine: Machine, access: Access, flags: NDArray[np.uint8], instruction: Instruction) -> None:
    """Records which lanes stored poison and by which instruction, so that a fault on an output byte can name the store."""
    if not flags.any():
        return
    poisoned = flags.any(axis=1)
    lanes = access.lanes[poisoned]
    threads = machine.block_ids[machine.block[lanes]], machine.thread[lanes]
    machine.extensions.setdefault("poison stores", []).append((access.index[poisoned], access.width, instruction, threads))


def watch_read(
    machine: Machine,
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
        noncoherent.watch(machine, access, instruction)
    if not len(access.index) or (allocation is not None and not allocation.tracked):
        return
    if machine.pending.busy:
        machine.pending.check(access.index, access.width, access.lanes, False, instruction)
    racing = machine.shadow.read(access.index, access.width, access.lanes, atomic, scope == "cta")
    if racing is not None:
        report_race(machine, access, racing, instruction, "reads what another thread writes")


def watch_write(
    machine: Machine,
    access: Access,
    instruction: Instruction,
    data: Callable[[], NDArray[Any]] | None = None,
    *,
    atomic: bool = False,
    scope: str | None = None,
) -> None:
    """Checks these writes against unordered accesses and records them in the shadow. `data()` returns the bytes to write, one
    item of `access.width` bytes per lane; with it, equal values written by a store that replicates are no race."""
    found = access.allocation
    if not len(access.index) or (found is not None and not found.tracked):
        return
    if machine.pending.busy:
        machine.pending.check(access.index, access.width, access.lanes, True, instruction)
    earlier, shared, racing_reads = machine.shadow.write(access.index, access.width, access.lanes, atomic, scope == "cta")
    if racing_reads is not None and racing_reads.any():
        report_race(machine, access, racing_reads, instruction, "writes what another thread reads")
    racing = earlier if shared is None else shared if earlier is None else earlier | shared
    is_racing = racing is not None and bool(racing.any())
    equal_values = is_racing and data is not None and replicas.same_values(machine, access, data(), earlier)
    replicated = machine.replicas.record_write(access, instruction, earlier)
    if racing is not None and is_racing and not (equal_values and replicated):
        kind = "race-same-value" if equal_values else "race"
        report_race(machine, access, racing, instruction, "writes what another thread writes", kind)


def report_race(
    machine: Machine, access: Access, racing: NDArray[np.bool_], instruction: Instruction, message: str, kind: str = "race"
) -> None:
    """Records a race of the lanes at the true entries of `racing` [m, granules]."""
    row, column = (int(x[0]) for x in np.nonzero(racing))
    at = int(access.index[row]) + (column << machine.shadow.shift)
    machine.faults.add(kind, message, instruction, int(access.lanes[row]), index=at, count=int(racing.any(axis=1).sum()))
