"""Which accesses happen before which, and the shadow that finds those that are not ordered.

Time is one counter that advances at every synchronisation. An access is stamped with the time and its lane; it happens before
what lane u does now if u is the same lane, or u has learnt of that lane up to that time: through a barrier of the whole block
(`block_time`), of the whole warp (`warp_time`), or through `acquire` of what another lane released (`known`, a matrix made when
the first such operation comes). The shadow holds for each granule of memory the last write and the last read (or that several
unordered lanes did, of one block or of several); strong accesses are in `strong`, one by one. Nothing is forgotten before an
access that is ordered after it (or was reported to race with it) takes its place: who is ordered after the last is ordered
after all. Readers, and writers, of one block are told apart where something orders parts of a block (`readers`); else, and
for lanes of several blocks, "several" counts as ordered once the whole block is: that may report a race too many, never one too
few.
Memory consistency: PTX ISA, section 8. Lanes of one warp are ordered by nothing but that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.readers import Readers, needed
from tilec.emulator.strong import StrongAccesses

if TYPE_CHECKING:
    from tilec.emulator.machine import Machine

LANE_BITS: Final = 24
LANE_MASK: Final = (1 << LANE_BITS) - 1
SEVERAL: Final = LANE_MASK
SEVERAL_IN_BLOCK: Final = 0xC00000
ATOMIC: Final = 1 << 62
MOST_LANES: Final = SEVERAL_IN_BLOCK - 2
"""Threads of a launch that stamps can tell apart."""
Index = NDArray[np.int64]
Stamps = NDArray[np.int64]
Token = NDArray[np.int64]
"""What a release made known: for each lane of the wave, the time up to which its accesses are visible."""


class Clocks:
    """What every lane of the wave knows of every other."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 1
        self.first_lane = 0
        self.start(0)

    def start(self, first_lane: int) -> None:
        """A new wave of blocks, unordered with those before; `first_lane` is the launch-wide number of its lane 0."""
        if first_lane + self.machine.lane_count > MOST_LANES:
            raise UnsupportedPtx(f"a launch of more than {MOST_LANES} threads")
        self.first_lane = first_lane
        self.now += 1
        self.block_time = np.zeros(self.machine.block_count, np.int64)
        self.warp_time = np.zeros(self.machine.warp_count, np.int64)
        self.known: NDArray[np.int64] | None = None

    def block_barrier(self, blocks: Index) -> None:
        """All threads of each of these blocks wait for one another."""
        if self.known is not None:
            for block in blocks:
                lanes = np.flatnonzero(self.machine.block == block)
                self.known[lanes] = self.known[lanes].max(axis=0)
        self.block_time[blocks] = self.now
        self.now += 1

    def warp_barrier(self, warps: Index) -> None:
        """All threads of each of these warps wait for one another, with memory ordering (bar.warp.sync)."""
        if self.known is not None:
            for warp in warps:
                lanes = np.flatnonzero(self.machine.warp == warp)
                self.known[lanes] = self.known[lanes].max(axis=0)
        self.warp_time[warps] = self.now
        self.now += 1

    def rows(self, lanes: Index) -> NDArray[np.int64]:
        """What each of these lanes knows of every lane, [len(lanes), lanes of the wave]."""
        machine = self.machine
        if self.known is None:
            self.known = np.zeros((machine.lane_count, machine.lane_count), np.int64)
        same_block = machine.block[lanes][:, None] == machine.block[None, :]
        same_warp = machine.warp[lanes][:, None] == machine.warp[None, :]
        found = np.maximum(self.known[lanes], np.where(same_block, self.block_time[machine.block][None, :], 0))
        return np.maximum(found, np.where(same_warp, self.warp_time[machine.warp][None, :], 0))

    def release(self, lanes: Index) -> Token:
        """What these lanes did and knew until now, for others to acquire; what they do from now on is not in it."""
        token = self.rows(lanes).max(axis=0)
        token[lanes] = self.now
        self.now += 1
        return token

    def acquire(self, lanes: Index, token: Token) -> None:
        """These lanes learn what a token holds."""
        rows = self.rows(lanes)
        assert self.known is not None
        self.known[lanes] = np.maximum(rows, token[None, :])

    def knows(self, lanes: Index, others: Index, times: Index) -> NDArray[np.bool_]:
        """Whether each lane knows what the other did at that time. `others` are launch-wide lane numbers."""
        machine = self.machine
        local = others - self.first_lane
        inside = (local >= 0) & (local < machine.lane_count)
        local = np.where(inside, local, 0)
        ordered = local == lanes
        ordered |= (machine.block[local] == machine.block[lanes]) & (times <= self.block_time[machine.block[lanes]])
        ordered |= (machine.warp[local] == machine.warp[lanes]) & (times <= self.warp_time[machine.warp[lanes]])
        if self.known is not None:
            ordered |= self.known[lanes, local] >= times
        return ordered & inside

    def knows_block(self, lanes: Index, blocks: Index, times: Index) -> NDArray[np.bool_]:
        """Whether each lane knows what all lanes of that block (launch-wide number) did until that time."""
        machine = self.machine
        ordered = (machine.block_number[machine.block[lanes]] == blocks) & (times <= self.block_time[machine.block[lanes]])
        if self.known is None:
            return ordered
        for at in np.flatnonzero(~ordered):
            members = np.flatnonzero(machine.block_number[machine.block] == blocks[at])
            times_known = self.rows(lanes[at : at + 1])[0, members]
            times_known[members == lanes[at]] = self.now
            ordered[at] = len(members) > 0 and bool((times_known >= times[at]).all())
        return ordered


class Shadow:
    """The last write and reads of every granule (2**shift bytes: no access that is watched is narrower)."""

    def __init__(self, clocks: Clocks, size: int, shift: int) -> None:
        self.clocks, self.shift = clocks, shift
        self.strong = StrongAccesses(clocks)
        self.writes: Stamps = np.zeros(0, np.int64)
        self.reads: Stamps = np.zeros(0, np.int64)
        self.readers = self.writers = None
        if needed(clocks.machine.function.instructions):
            self.readers, self.writers = Readers(clocks), Readers(clocks)
        self.grow(size)

    def grow(self, size: int) -> None:
        """Room for `size` bytes of memory."""
        more = (size >> self.shift) + 1 - len(self.writes)
        if more > 0:
            self.writes = np.concatenate([self.writes, np.zeros(more, np.int64)])
            self.reads = np.concatenate([self.reads, np.zeros(more, np.int64)])
        for one in (self.readers, self.writers):
            if one is not None:
                one.grow(len(self.writes))

    def forget(self, start: int, end: int) -> None:
        """Memory that gets a new owner."""
        self.writes[start >> self.shift : (end >> self.shift) + 1] = 0
        self.reads[start >> self.shift : (end >> self.shift) + 1] = 0
        self.strong.forget(start >> self.shift, end >> self.shift)

    def granules(self, index: Index, width: int) -> Index:
        """[m, granules of an access]; accesses are aligned to a granule or narrower than one."""
        first = index >> self.shift
        count = max(1, -(-width >> self.shift))
        return first[:, None] + np.arange(count) if count > 1 else first[:, None]

    def unordered(
        self, stamps: Stamps, lanes: Index, where: Index, known: Readers | None, atomic: bool = False
    ) -> NDArray[np.bool_]:
        """Which stamps [m, k] do not happen before lane [m] now; atomics are not in conflict with atomics. `where`: their
        granules; `known`: who has read, or written, them where several lanes of a block have."""
        clocks = self.clocks
        blocks = clocks.machine.block[lanes]
        plain = stamps & ~ATOMIC
        late = (plain >> LANE_BITS) > clocks.block_time[blocks][:, None]
        foreign = stamps != 0
        if atomic:
            foreign &= stamps < ATOMIC
        number = (plain & LANE_MASK) - 1
        local = number - clocks.first_lane
        mine = local == lanes[:, None]
        count = clocks.machine.lane_count
        inside = (local >= 0) & (local < count)
        late |= ~inside | (clocks.machine.block[np.where(inside, local, 0)] != blocks[:, None])
        suspects = foreign & late & ~mine
        if not suspects.any():
            return suspects
        rows, columns = np.nonzero(suspects)
        times, who, code = plain[rows, columns] >> LANE_BITS, number[rows, columns], number[rows, columns] + 1
        ordered = clocks.knows(lanes[rows], who, times)
        group = (code >= SEVERAL_IN_BLOCK) & (code != SEVERAL)
        if group.any():
            blocks = code[group] - SEVERAL_IN_BLOCK
            if known is not None:
                ordered[group] = known.known(where[rows[group], columns[group]], lanes[rows[group]], blocks)
            else:
                ordered[group] = clocks.knows_block(lanes[rows[group]], blocks, times[group])
        suspects[rows, columns] = ~ordered
        return suspects

    def read(
        self, index: Index, width: int, lanes: Index, atomic: bool = False, narrow: bool = False
    ) -> NDArray[np.bool_] | None:
        """Records reads; which of them [m, granules] meet an unordered write, or None. `atomic`: strong ones, of the block's
        scope where `narrow`."""
        where = self.granules(index, width)
        written = self.writes[where]
        racing = self.unordered(written, lanes, where, self.writers, atomic) if written.any() else None
        if self.strong.table:
            strong = self.strong.conflicts(where, lanes, with_writes=True, strong=atomic, narrow=narrow)
            racing = _either(racing, strong)
        if atomic:
            self.strong.note(where, lanes, False, narrow)
        else:
            before = self.reads[where]
            if self.readers is None:
                kept = self.unordered(before, lanes, where, None) if before.any() else None
                self._record(self.reads, where, lanes, kept, before)
            else:
                self._record_each(self.readers, where, lanes, before)
        return racing if racing is not None and racing.any() else None

    def _record_each(self, readers: Readers, where: Index, lanes: Index, before: Stamps) -> None:
        """Stamps reads, and notes who they are where several lanes of a block have read a granule. `before`: its stamps."""
        machine = self.clocks.machine
        group = SEVERAL_IN_BLOCK + machine.block_number[machine.block[lanes]][:, None]
        kept = (before & LANE_MASK) == group
        others = np.where(kept, 0, before)
        alone = self.unordered(others, lanes, where, readers) if others.any() else np.zeros(where.shape, np.bool_)
        self._record(self.reads, where, lanes, kept | alone, before)
        self._note(readers, self.reads, where, lanes, before, kept, alone)

    def _note(
        self, known: Readers, stamps: Stamps, where: Index, lanes: Index, before: Stamps, kept: NDArray[np.bool_],
        alone: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Notes who they are where the stamp just made says several lanes of one block: with those noted of the stamp `before`
        where `kept`, with its one lane where `alone`."""
        clocks, machine = self.clocks, self.clocks.machine
        noted = (stamps[where] & LANE_MASK) == SEVERAL_IN_BLOCK + machine.block_number[machine.block[lanes]][:, None]
        if not noted.any():
            return
        fresh = noted & ~kept
        if fresh.any():
            known.start(where[fresh])
            single = fresh & alone
            if single.any():
                plain = before[single] & ~ATOMIC
                known.add(where[single], (plain & LANE_MASK) - 1 - clocks.first_lane, plain >> LANE_BITS)
        who: Index = np.broadcast_to(lanes[:, None], where.shape)
        known.add(where[noted], who[noted], np.full(int(noted.sum()), clocks.now))

    def _record(
        self, stamps: Stamps, where: Index, lanes: Index, kept: NDArray[np.bool_] | None, before: Stamps
    ) -> NDArray[np.bool_]:
        """Stamps granules [m, k] with lanes [m] now. Where `kept`, the unordered access `before` counts on beside the new one,
        as do all lanes of this instruction that share a granule. Which rows share theirs with a later one."""
        clocks = self.clocks
        stamp: Stamps = ((clocks.now << LANE_BITS) + lanes + (clocks.first_lane + 1))[:, None]
        new: Stamps = np.broadcast_to(stamp, where.shape)
        if kept is not None and kept.any():
            new = np.where(kept, self._several(before, lanes), new)
        stamps[where] = new
        winner = stamps[where]
        lost: NDArray[np.bool_] = winner != new
        if lost.any():
            self._mark_several(stamps, where, winner, lost, lanes)
        return lost

    def _mark_several(self, stamps: Stamps, where: Index, winner: Stamps, lost: NDArray[np.bool_], lanes: Index) -> None:
        """Granules that several lanes use in one instruction: of one block, or of several."""
        clocks, machine = self.clocks, self.clocks.machine
        mine = machine.block_number[machine.block[lanes]][:, None]
        code = winner & LANE_MASK
        local = np.clip(code - 1 - clocks.first_lane, 0, machine.lane_count - 1)
        block = np.where(code >= SEVERAL_IN_BLOCK, code - SEVERAL_IN_BLOCK, machine.block_number[machine.block[local]])
        same = lost & (block == mine)
        time = clocks.now << LANE_BITS
        stamps[where[same]] = np.broadcast_to(time + SEVERAL_IN_BLOCK + mine, where.shape)[same]
        stamps[where[lost & ~same]] = time + SEVERAL

    def _several(self, before: Stamps, lanes: Index) -> Stamps:
        """The stamp where lanes come beside earlier unordered ones."""
        clocks, machine = self.clocks, self.clocks.machine
        code = before & LANE_MASK
        mine = machine.block_number[machine.block[lanes]][:, None]
        local = code - 1 - clocks.first_lane
        inside = (local >= 0) & (local < machine.lane_count)
        block = np.where(inside, machine.block_number[machine.block[np.where(inside, local, 0)]], -1)
        block = np.where((code >= SEVERAL_IN_BLOCK) & (code != SEVERAL), code - SEVERAL_IN_BLOCK, block)
        return (clocks.now << LANE_BITS) + np.where(block == mine, SEVERAL_IN_BLOCK + mine, SEVERAL)

    def write(
        self, index: Index, width: int, lanes: Index, atomic: bool = False, narrow: bool = False
    ) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
        """Records writes: which of them [m, granules] meet an unordered write of before, one of the same instruction, and an
        unordered read."""
        where = self.granules(index, width)
        written, read = self.writes[where], self.reads[where]
        racing = self.unordered(written, lanes, where, self.writers, atomic) if written.any() else None
        beside = self.unordered(read, lanes, where, self.readers) if read.any() else None
        plain = np.zeros(where.shape, np.bool_) if racing is None else racing
        if self.strong.table:
            strong = [
                self.strong.conflicts(where, lanes, with_writes=wrote, strong=atomic, narrow=narrow) for wrote in (True, False)
            ]
            racing, beside = _either(racing, strong[0]), _either(beside, strong[1])
        if atomic:
            self.strong.note(where, lanes, True, narrow)
            self.writes[where] = (((self.clocks.now << LANE_BITS) + lanes + (self.clocks.first_lane + 1)) | ATOMIC)[:, None]
            self.reads[where] = 0
            return racing, None, beside
        self.strong.take(where)
        lost = self._record(self.writes, where, lanes, racing, written)
        if self.writers is not None:
            block = SEVERAL_IN_BLOCK + self.clocks.machine.block_number[self.clocks.machine.block[lanes]][:, None]
            several = (written & LANE_MASK) == block
            self._note(self.writers, self.writes, where, lanes, written, several & plain, plain & ~several)
        self.reads[where] = 0
        return racing, lost, beside


def _either(first: NDArray[np.bool_] | None, second: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    return second if first is None else first if second is None else first | second
