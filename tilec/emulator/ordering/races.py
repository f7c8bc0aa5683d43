"""Shadow memory: finds conflicting accesses without a happens-before order.

An access is stamped with the time and its lane. It happens before an access by another lane if that lane knows it (`clocks`).
The shadow stores for each granule of memory the last write and the last read, or a code for several unordered lanes, of one
block or of several blocks; `strong` keeps strong accesses individually. A stamp is replaced only by an access that is ordered
after it (or was reported to race with it), so ordering after the last stamp implies ordering after all. If the program
synchronizes parts of a block, the readers, and the writers, of one block are recorded individually (`readers`). Otherwise,
and for lanes of several blocks, "several" counts as ordered once the whole block is; this can report false races but miss
none.
Memory consistency model: PTX ISA, section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.ordering.clocks import MAX_LANES, Clocks, Index
from tilec.emulator.ordering.readers import Readers, needed
from tilec.emulator.ordering.strong import StrongAccesses
from tilec.emulator.ptx.syntax import Instruction

LANE_BITS: Final = 24
LANE_MASK: Final = (1 << LANE_BITS) - 1
SEVERAL: Final = LANE_MASK
SEVERAL_IN_BLOCK: Final = MAX_LANES + 2
ATOMIC: Final = 1 << 62
Stamps = NDArray[np.int64]
_WIDTHS: Final = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16, "f16x2": 4, "bf16x2": 4, "16x2": 4}


class Shadow:
    """The last write and reads of every granule of 2**shift bytes; no checked access is narrower. `async_writes` and
    `async_reads`: the stamps of those through the async proxy; between two of them the order of `Clocks.heard` suffices."""

    def __init__(self, clocks: Clocks, size: int, instructions: Sequence[Instruction]) -> None:
        self.clocks, self.shift = clocks, granule_shift(instructions)
        self.strong = StrongAccesses(clocks)
        self.writes: Stamps = np.zeros(0, np.int64)
        self.reads: Stamps = np.zeros(0, np.int64)
        self.async_writes: Stamps = np.zeros(0, np.int64)
        self.async_reads: Stamps = np.zeros(0, np.int64)
        self.readers = self.writers = None
        if needed(instructions):
            self.readers, self.writers = Readers(clocks), Readers(clocks)
        self.grow(size)

    def grow(self, size: int) -> None:
        """Extends the shadow to `size` bytes of memory."""
        more = (size >> self.shift) + 1 - len(self.writes)
        if more > 0:
            self.writes = np.concatenate([self.writes, np.zeros(more, np.int64)])
            self.reads = np.concatenate([self.reads, np.zeros(more, np.int64)])
        for one in (self.readers, self.writers):
            if one is not None:
                one.grow(len(self.writes))

    def forget(self, start: int, end: int) -> None:
        """Clears the stamps of memory that gets a new owner."""
        self.writes[start >> self.shift : (end >> self.shift) + 1] = 0
        self.reads[start >> self.shift : (end >> self.shift) + 1] = 0
        self.strong.forget(start >> self.shift, end >> self.shift)

    def granules(self, index: Index, width: int) -> Index:
        """Granules [m, k] of accesses; an access is aligned to a granule or narrower than one."""
        first = index >> self.shift
        count = max(1, -(-width >> self.shift))
        return first[:, None] + np.arange(count) if count > 1 else first[:, None]

    def unordered(
        self,
        stamps: Stamps,
        lanes: Index,
        where: Index,
        known: Readers | None,
        atomic: bool = False,
        through_async: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Which stamps [m, k] are not ordered before lane [m] now; atomics do not conflict with atomics. `where`: the
        granules of the stamps; `known`: the individual readers, or writers, of a granule for stamps of several lanes of a
        block; `through_async`: the stamps and the accesses are of the async proxy."""
        clocks = self.clocks
        blocks = clocks.wave.block[lanes]
        plain = stamps & ~ATOMIC
        late = (plain >> LANE_BITS) > clocks.block_time[blocks][:, None]
        foreign = stamps != 0
        if atomic:
            foreign &= stamps < ATOMIC
        number = (plain & LANE_MASK) - 1
        local = number - clocks.first_lane
        mine = local == lanes[:, None]
        count = clocks.wave.lane_count
        inside = (local >= 0) & (local < count)
        late |= ~inside | (clocks.wave.block[np.where(inside, local, 0)] != blocks[:, None])
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
        if through_async is not None:
            ordered |= self._heard(through_async[rows, columns], lanes[rows], who, times, code)
        suspects[rows, columns] = ~ordered
        return suspects

    def _heard(
        self, through_async: NDArray[np.bool_], lanes: Index, who: Index, times: Index, code: Index
    ) -> NDArray[np.bool_]:
        """Which accesses of the async proxy are ordered by signals that order no other memory."""
        group = (code >= SEVERAL_IN_BLOCK) & (code != SEVERAL)
        found = self.clocks.has_heard(lanes, who, times)
        if group.any():
            found[group] = self.clocks.has_heard_block(lanes[group], code[group] - SEVERAL_IN_BLOCK, times[group])
        return found & through_async

    def _through_async(self, table: Stamps, where: Index, stamps: Stamps) -> NDArray[np.bool_]:
        inside = where < len(table)
        return inside & (table[np.where(inside, where, 0)] == stamps) if len(table) else np.zeros(where.shape, np.bool_)

    def note_async_write(self, granules: Index) -> None:
        """The last writes of these granules, as stamped, were through the async proxy."""
        self.async_writes = _grown(self.async_writes, len(self.writes))
        self.async_writes[granules] = self.writes[granules]

    def read_async(self, granules: Index, lanes: Sequence[int]) -> None:
        """Records reads of these granules through the async proxy by each of these lanes."""
        pure: NDArray[np.bool_] | None = None
        if self.clocks.separate and len(granules):
            old, first = self.reads[granules], np.full(len(granules), lanes[0])
            pure = self._through_async(self.async_reads, granules, old)
            pure |= ~self.unordered(old[:, None], first, granules[:, None], self.readers)[:, 0]
        for lane in lanes:
            self.read(granules << self.shift, 1 << self.shift, np.full(len(granules), lane))
        if pure is not None:
            self.async_reads = _grown(self.async_reads, len(self.reads))
            self.async_reads[granules[pure]] = self.reads[granules[pure]]

    def read(self, index: Index, width: int, lanes: Index, atomic: bool = False, reach: int = 0) -> NDArray[np.bool_] | None:
        """Records reads; returns which of them [m, granules] conflict with an unordered write, or None. `atomic`: strong
        accesses, of scope `reach` (`scopes`)."""
        where = self.granules(index, width)
        racing = self.unordered_writes(where, lanes, atomic, reach)
        if atomic:
            self.strong.record_access(where, lanes, False, reach)
        else:
            old_stamps = self.reads[where]
            if self.readers is None:
                merged = self.unordered(old_stamps, lanes, where, None) if old_stamps.any() else None
                self._record(self.reads, where, lanes, merged, old_stamps)
            else:
                self._record_each(self.readers, where, lanes, old_stamps)
        return racing

    def unordered_writes(self, where: Index, lanes: Index, atomic: bool = False, reach: int = 0) -> NDArray[np.bool_] | None:
        """Which reads of granules [m, k] by lanes [m] now conflict with an unordered write, or None; records nothing."""
        written = self.writes[where]
        racing = self.unordered(written, lanes, where, self.writers, atomic) if written.any() else None
        if self.strong.table:
            strong = self.strong.conflicts(where, lanes, with_writes=True, strong=atomic, reach=reach)
            racing = _either(racing, strong)
        return racing if racing is not None and racing.any() else None

    def _record_each(self, readers: Readers, where: Index, lanes: Index, old_stamps: Stamps) -> None:
        """Stamps reads, and records the readers of granules that several lanes of a block have read. `before`: the old
        stamps."""
        wave = self.clocks.wave
        group = SEVERAL_IN_BLOCK + wave.block_number[wave.block[lanes]][:, None]
        merged = (old_stamps & LANE_MASK) == group
        others = np.where(merged, 0, old_stamps)
        single_lane = self.unordered(others, lanes, where, readers) if others.any() else np.zeros(where.shape, np.bool_)
        self._record(self.reads, where, lanes, merged | single_lane, old_stamps)
        self._record_lanes(readers, self.reads, where, lanes, old_stamps, merged, single_lane)

    def _record_lanes(
        self, known: Readers, stamps: Stamps, where: Index, lanes: Index, old_stamps: Stamps, merged: NDArray[np.bool_],
        single_lane: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Records the individual lanes of granules whose new stamp means several lanes of one block: the recorded set is
        extended where `kept`, started with the one lane of the stamp `before` where `alone`, and started empty elsewhere."""
        clocks, wave = self.clocks, self.clocks.wave
        noted = (stamps[where] & LANE_MASK) == SEVERAL_IN_BLOCK + wave.block_number[wave.block[lanes]][:, None]
        if not noted.any():
            return
        fresh = noted & ~merged
        if fresh.any():
            known.start(where[fresh])
            single = fresh & single_lane
            if single.any():
                plain = old_stamps[single] & ~ATOMIC
                known.add(where[single], (plain & LANE_MASK) - 1 - clocks.first_lane, plain >> LANE_BITS)
        who: Index = np.broadcast_to(lanes[:, None], where.shape)
        known.add(where[noted], who[noted], np.full(int(noted.sum()), clocks.now))

    def _record(
        self, stamps: Stamps, where: Index, lanes: Index, merged: NDArray[np.bool_] | None, old_stamps: Stamps
    ) -> NDArray[np.bool_]:
        """Stamps granules [m, k] with lanes [m] now. Where `kept`, the new stamp also covers the unordered access `before`;
        lanes of this instruction that share a granule get a common stamp. Returns which entries lost their granule to a later
        lane."""
        clocks = self.clocks
        stamp: Stamps = ((clocks.now << LANE_BITS) + lanes + (clocks.first_lane + 1))[:, None]
        new: Stamps = np.broadcast_to(stamp, where.shape)
        if merged is not None and merged.any():
            new = np.where(merged, self._several(old_stamps, lanes), new)
        stamps[where] = new
        winner = stamps[where]
        overwritten: NDArray[np.bool_] = winner != new
        if overwritten.any():
            self._mark_several(stamps, where, winner, overwritten, lanes)
        return overwritten

    def _mark_several(self, stamps: Stamps, where: Index, winner: Stamps, overwritten: NDArray[np.bool_], lanes: Index) -> None:
        """Stamps granules that several lanes access in one instruction as several lanes of one block, or of several."""
        clocks, wave = self.clocks, self.clocks.wave
        mine = wave.block_number[wave.block[lanes]][:, None]
        code = winner & LANE_MASK
        local = np.clip(code - 1 - clocks.first_lane, 0, wave.lane_count - 1)
        block = np.where(code >= SEVERAL_IN_BLOCK, code - SEVERAL_IN_BLOCK, wave.block_number[wave.block[local]])
        same = overwritten & (block == mine)
        time = clocks.now << LANE_BITS
        stamps[where[same]] = np.broadcast_to(time + SEVERAL_IN_BLOCK + mine, where.shape)[same]
        stamps[where[overwritten & ~same]] = time + SEVERAL

    def _several(self, old_stamps: Stamps, lanes: Index) -> Stamps:
        """The stamp of lanes together with earlier unordered ones."""
        clocks, wave = self.clocks, self.clocks.wave
        code = old_stamps & LANE_MASK
        mine = wave.block_number[wave.block[lanes]][:, None]
        local = code - 1 - clocks.first_lane
        inside = (local >= 0) & (local < wave.lane_count)
        block = np.where(inside, wave.block_number[wave.block[np.where(inside, local, 0)]], -1)
        block = np.where((code >= SEVERAL_IN_BLOCK) & (code != SEVERAL), code - SEVERAL_IN_BLOCK, block)
        return (clocks.now << LANE_BITS) + np.where(block == mine, SEVERAL_IN_BLOCK + mine, SEVERAL)

    def write(
        self, index: Index, width: int, lanes: Index, atomic: bool = False, reach: int = 0, through_async: bool = False
    ) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
        """Records writes; returns which of them [m, granules] conflict with an unordered earlier write, with one of the same
        instruction, and with an unordered read. `through_async`: they are of the async proxy."""
        where = self.granules(index, width)
        written, read = self.writes[where], self.reads[where]
        before: list[NDArray[np.bool_] | None] = [None, None]
        if through_async and self.clocks.separate:
            before = [
                self._through_async(self.async_writes, where, written), self._through_async(self.async_reads, where, read),
            ]  # fmt: skip
        racing = self.unordered(written, lanes, where, self.writers, atomic, before[0]) if written.any() else None
        concurrent_read = self.unordered(read, lanes, where, self.readers, False, before[1]) if read.any() else None
        plain = np.zeros(where.shape, np.bool_) if racing is None else racing
        if self.strong.table:
            strong = [
                self.strong.conflicts(where, lanes, with_writes=wrote, strong=atomic, reach=reach) for wrote in (True, False)
            ]
            racing, concurrent_read = _either(racing, strong[0]), _either(concurrent_read, strong[1])
        if atomic:
            self.strong.record_access(where, lanes, True, reach)
            self.writes[where] = (((self.clocks.now << LANE_BITS) + lanes + (self.clocks.first_lane + 1)) | ATOMIC)[:, None]
            self.reads[where] = 0
            return racing, None, concurrent_read
        self.strong.drop(where)
        overwritten = self._record(self.writes, where, lanes, racing, written)
        if self.writers is not None:
            block = SEVERAL_IN_BLOCK + self.clocks.wave.block_number[self.clocks.wave.block[lanes]][:, None]
            several = (written & LANE_MASK) == block
            self._record_lanes(self.writers, self.writes, where, lanes, written, several & plain, plain & ~several)
        self.reads[where] = 0
        return racing, overwritten, concurrent_read


def _grown(stamps: Stamps, size: int) -> Stamps:
    return np.concatenate([stamps, np.zeros(size - len(stamps), np.int64)]) if size > len(stamps) else stamps


def _either(first: NDArray[np.bool_] | None, second: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    return second if first is None else first if second is None else first | second


def granule_shift(instructions: Sequence[Instruction]) -> int:
    """log2 of the bytes of a race granule: those of the narrowest memory access, at most 4."""
    narrowest = 4
    for instruction in instructions:
        if instruction.opcode in ("ld", "ldu", "st", "atom", "red") and "param" not in instruction.modifiers:
            kind = instruction.modifiers[-1]
            digits = kind.lstrip("bfus") if kind not in _WIDTHS else kind
            narrowest = min(narrowest, _WIDTHS.get(digits, 1))
    return {1: 0, 2: 1, 4: 2}[narrowest]
