"""The individual readers of a granule that several lanes of one block have read: each warp's lanes and their latest time.

In: granules with the lanes that read them. Out: whether a lane is ordered after all readers of a granule. Invariant: if the
stamp in the shadow means several lanes of one block, the entry of the granule covers every plain read since its last write;
`start` empties the entry before a new such stamp. Lanes of one warp share the latest time; if they read at different times
and release in between, this can report a false race. Only programs that synchronize parts of a block need this (`needed`):
with barriers of whole blocks and warps only, one stamp per block is as precise and cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
WARP: Final = 32
MIXER: Final = 0x9E3779B97F4A7C15
"""An odd constant whose powers weight the columns of a row in a hash."""
_ORDERS: Final = frozenset({"release", "acquire", "acq_rel", "sc"})


def needed(instructions: Iterable[Instruction]) -> bool:
    """Whether the program can synchronize a part of a block: mbarriers, barriers with a count, release and acquire."""
    for instruction in instructions:
        opcode, modifiers = instruction.opcode, instruction.modifiers
        if opcode in ("mbarrier", "fence", "membar") or _ORDERS & set(modifiers):
            return True
        if (
            opcode in ("bar", "barrier")
            and "warp" not in modifiers
            and ("arrive" in modifiers or len(instruction.operands) > 1)
        ):
            return True
    return False


class Readers:
    """`_times` and `_masks` [entries, warps of a block]; `_entry` is the entry of a granule, 0 if it has none yet."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._warps = -(-clocks.wave.threads // WARP)
        self._entry: NDArray[np.int32] = np.zeros(0, np.int32)
        self._times: Index = np.zeros((1, self._warps), np.int64)
        self._masks: NDArray[np.uint32] = np.zeros((1, self._warps), np.uint32)
        self._used = 1

    def grow(self, granules: int) -> None:
        """Extends the map to this number of granules."""
        more = granules - len(self._entry)
        if more > 0:
            self._entry = np.concatenate([self._entry, np.zeros(more, np.int32)])

    def start(self, granules: Index) -> None:
        """Gives these granules empty entries."""
        fresh = np.unique(granules[self._entry[granules] == 0])
        end = self._used + len(fresh)
        if end > len(self._times):
            more = max(end, 2 * len(self._times)) - len(self._times)
            self._times = np.concatenate([self._times, np.zeros((more, self._warps), np.int64)])
            self._masks = np.concatenate([self._masks, np.zeros((more, self._warps), np.uint32)])
        self._entry[fresh] = np.arange(self._used, end)
        self._used = end
        self._masks[self._entry[granules]] = 0

    def add(self, granules: Index, lanes: Index, times: Index) -> None:
        """Records that each of these lanes of the wave read its granule at its time; all lanes of a granule are of one
        block."""
        thread = self.clocks.wave.thread[lanes]
        slots, slot_of_read = np.unique(self._entry[granules] * np.int64(self._warps) + thread // WARP, return_inverse=True)
        masks, latest = np.zeros(len(slots), np.uint32), np.zeros(len(slots), np.int64)
        np.bitwise_or.at(masks, slot_of_read, np.uint32(1) << (thread % WARP).astype(np.uint32))
        np.maximum.at(latest, slot_of_read, times)
        stored, latest_times = self._masks.reshape(-1), self._times.reshape(-1)
        latest_times[slots] = np.where(stored[slots] != 0, np.maximum(latest_times[slots], latest), latest)
        stored[slots] |= masks

    def known(self, granules: Index, lanes: Index, blocks: Index) -> NDArray[np.bool_]:
        """Whether each lane of the wave is ordered after all readers of its granule, which belong to its entry of `blocks`
        (launch-wide)."""
        wave = self.clocks.wave
        first = int(wave.block_number[0])
        inside = (blocks >= first) & (blocks < first + wave.block_count)
        entries = self._entry[granules]
        masks = np.where(inside[:, None], self._masks[entries], np.uint32(0))
        queries = np.column_stack([lanes, np.where(inside, blocks - first, 0), self._times[entries], masks])
        queries, query_of = _unique_rows(queries)
        times, masks = queries[:, 2 : 2 + self._warps], queries[:, 2 + self._warps :]
        row, warp, bit = np.nonzero((masks[:, :, None] >> np.arange(WARP)) & 1)
        others = queries[row, 1] * wave.threads + warp * WARP + bit
        unordered = ~self.clocks.knows(queries[row, 0], others + self.clocks.first_lane, times[row, warp])
        return inside & (np.bincount(row[unordered], minlength=len(queries)) == 0)[query_of]


def _unique_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Index]:
    """The distinct rows, and the index of each row among them. Sorting one hash per row takes a tenth of the time of sorting
    rows; a collision is detected and handled."""
    weights = np.array([pow(MIXER, power, 1 << 62) for power in range(rows.shape[1])], np.int64)
    numbers = rows @ weights  # modulo 2**64
    _, first, row_of = np.unique(numbers, return_index=True, return_inverse=True)
    found = rows[first]
    if not np.array_equal(found[row_of], rows):
        found, row_of = np.unique(rows, axis=0, return_inverse=True)
    return found, row_of.reshape(-1)
