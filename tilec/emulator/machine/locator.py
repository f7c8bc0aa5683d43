"""From the addresses in a frame's lanes to valid indices into memory.

`locate` resolves the state space, drops lanes whose address is poison, out of bounds, misaligned or in a wrong state space
(recording a fault for each cause), and returns the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.access import Access, Index
from tilec.emulator.machine.cluster_windows import OFFSETS, ClusterWindows
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.memory import SHARED_BASE, SHARED_START, Memory
from tilec.emulator.machine.windows import WINDOW, Windows
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.prior_launches import PriorLaunches
from tilec.emulator.ptx.syntax import Instruction

SPACES: Final = {
    "global": ("global",),
    "const": ("const",),
    "shared": ("shared",),
    "shared::cluster": ("shared",),
    "local": ("local",),
    "param": ("param",),
    "generic": ("global", "shared", "local", "const", "param"),
}


class Locator:
    """Checks addresses against the windows and allocations of a launch."""

    def __init__(
        self, memory: Memory, windows: Windows, prior_launches: PriorLaunches, clocks: Clocks, faults: Recorder
    ) -> None:
        self.memory, self.windows, self.prior_launches, self.faults = memory, windows, prior_launches, faults
        self.clocks = clocks

    def locate(
        self,
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
        """The checked accesses of `width` bytes at `address` (int64, as `Decoder.address_source` returns it) for the lanes
        under the frame's mask (and `mask`). `align` is the required alignment, a power of two (default: `width`)."""
        address = np.broadcast_to(address, frame.n)
        selected = frame.mask if mask is None else mask if frame.mask is None else mask & frame.mask
        if write and frame.mask_poison is not None:
            self.faults.poison("the guard of a store", instruction, frame, frame.mask_poison, masked=False)
        if poison is not None:
            bad = (poison != 0) if selected is None else (poison != 0) & selected
            if bad.any():
                self.faults.poison("an address", instruction, frame, np.where(bad, poison, 0).astype(np.uint8))
                selected = ~bad if selected is None else selected & ~bad
        positions = None if selected is None else np.flatnonzero(selected)
        if positions is not None:
            address = address[positions]
        lanes = frame.lanes if positions is None else frame.lanes[positions]
        index = self.windows.resolve(lanes, address, space)
        access = Access(positions, index, None, width, lanes)
        if not len(index):
            return access
        cluster = self.windows.cluster
        if cluster is not None and space in ("shared", "shared::cluster", "generic"):
            if int(index.min()) < 0:
                access, address = self._check_ranks(cluster, access, address, space, instruction)
            if space != "shared" and not cluster.met.all():
                self._check_started(cluster, access, address, space, instruction)
            if not len(access.index):
                return access
        checked = self._check(access, address, space, instruction, write, width if align is None else align)
        if self.prior_launches.before_wait is not None and space in ("global", "generic") and len(checked.index):
            allocations = checked.allocations(self.memory)
            self.prior_launches.check(checked.lanes, checked.index, allocations, instruction, write=write)
        return checked

    def _check(self, access: Access, address: Index, space: str, instruction: Instruction, write: bool, align: int) -> Access:
        memory, index, width = self.memory, access.index, access.width
        low, high = int(index.min()), int(index.max())
        allocation = memory.allocation_at(low) if low >= 0 else None
        inside = allocation is not None and low >= allocation.start and high + width <= allocation.end
        if allocation is not None and inside and not int(np.bitwise_or.reduce(index)) & (align - 1):
            if allocation.space not in SPACES[space]:
                self._refuse(access, address, "space", f"{space} access in {allocation.space} memory", instruction)
                return _drop(access, np.zeros(len(index), np.bool_))
            if write and not allocation.writable:
                self._refuse(access, address, "read-only", f"a write to `{allocation.name}`", instruction)
                return _drop(access, np.zeros(len(index), np.bool_))
            access.allocation = allocation
            return access
        if space.startswith("shared") and allocation is not None and not int(np.bitwise_or.reduce(index)) & (align - 1):
            # windows of several blocks: all have the same layout, so checking the offsets suffices
            offset = address if self.windows.cluster is None else address & OFFSETS
            first, last = int(offset.min()) - SHARED_START, int(offset.max()) + width - SHARED_START
            if first >= 0 and last <= self.windows.shared_size:
                return access
        return self._check_each(access, address, space, instruction, write, align)

    def _check_started(
        self, cluster: ClusterWindows, access: Access, address: Index, space: str, instruction: Instruction
    ) -> None:
        """Reports accesses to shared memory of a peer that may not have started."""
        shared, base = np.ones(len(address), np.bool_), 0
        if space == "generic":
            shared, base = (address >= SHARED_BASE) & (address < SHARED_BASE + WINDOW), SHARED_BASE
        early = shared & cluster.early(access.lanes, np.where(shared, address - base, 0), self.clocks.known)
        text = "shared memory of a peer that may not have started: the thread has not passed a barrier of the cluster"
        self._refuse(access, address, "cluster", text, instruction, early)

    def _check_ranks(
        self, cluster: ClusterWindows, access: Access, address: Index, space: str, instruction: Instruction
    ) -> tuple[Access, Index]:
        """Refuses shared addresses of a block that the lane may not access; returns the other accesses and addresses."""
        shared = np.ones(len(address), np.bool_)
        if space == "generic":
            shared = (address >= SHARED_BASE) & (address < SHARED_BASE + WINDOW)
        refused = np.zeros(len(address), np.bool_)
        inner = np.where(shared, address - (SHARED_BASE if space == "generic" else 0), 0)
        for kind, message, bad in cluster.refusals(access.lanes, inner, space != "shared"):
            self._refuse(access, address, kind, message, instruction, bad & shared)
            refused |= bad & shared
        return (_drop(access, ~refused), address[~refused]) if refused.any() else (access, address)

    def _check_each(
        self, access: Access, address: Index, space: str, instruction: Instruction, write: bool, align: int
    ) -> Access:
        memory, index = self.memory, access.index
        page = index >> 8
        mapped = (index >= 0) & (page < len(memory.owner))
        owner = np.where(mapped, memory.owner[np.where(mapped, page, 0)], -1)
        valid = np.zeros(len(index), np.bool_)
        for number in np.unique(owner[owner >= 0]):
            allocation = memory.allocations[int(number)]
            owned = owner == number
            inside = owned & (index >= allocation.start) & (index + access.width <= allocation.end)
            if allocation.space not in SPACES[space]:
                self._refuse(access, address, "space", f"{space} access in {allocation.space} memory", instruction, inside)
            elif write and not allocation.writable:
                self._refuse(access, address, "read-only", f"a write to `{allocation.name}`", instruction, inside)
            else:
                valid |= inside
            outside = owned & ~inside
            if outside.any():
                text = f"{access.width} bytes outside `{allocation.name}` ({allocation.end - allocation.start} bytes)"
                self._refuse(access, address, "bounds", text, instruction, outside)
        unmapped = owner < 0
        if unmapped.any():
            self._refuse(access, address, "bounds", "an address in no allocation", instruction, unmapped)
        misaligned = valid & ((index & (align - 1)) != 0)
        if misaligned.any():
            self._refuse(access, address, "alignment", f"an address that is no multiple of {align}", instruction, misaligned)
            valid &= ~misaligned
        kept = _drop(access, valid)
        owners = np.unique(owner[valid])
        kept.allocation = memory.allocations[int(owners[0])] if len(owners) == 1 else None
        return kept

    def _refuse(
        self,
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
        self.faults.add(
            kind,
            message,
            instruction,
            int(access.lanes[at]),
            index=index if index >= 0 else None,
            address=int(address[at]) & ((1 << 64) - 1),
            count=len(positions),
        )


def _drop(access: Access, good: NDArray[np.bool_]) -> Access:
    positions = np.flatnonzero(good) if access.positions is None else access.positions[good]
    return Access(positions, access.index[good], None, access.width, access.lanes[good])
