"""Operands that an asynchronous tcgen05 operation reads: checked when it is issued, read when it is performed.

In: descriptors of matrices in shared memory, addresses in tensor memory. Out: `SharedMatrix` and `TensorMatrix`, whose `values`
are the elements [rows, K] and the poison of each row. Operands in shared memory are read through the async proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions.tensor_memory_state import TensorMemory
from tilec.emulator.instructions.tensor_queue import Reads
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import SHARED_START, Memory
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.matrices.descriptors import CHUNK
from tilec.emulator.matrices.formats import decode
from tilec.emulator.matrices.narrow_formats import BITS, decode_rows
from tilec.emulator.matrices.shared_descriptors import SharedDescriptor
from tilec.emulator.ordering.in_flight import NOTHING, SHIFT
from tilec.emulator.ordering.races import ATOMIC, LANE_BITS, LANE_MASK, SEVERAL, SEVERAL_IN_BLOCK
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
Values = NDArray[Any]
WIDTH: Final = 32
"""Bytes along K."""


@dataclass(slots=True)
class SharedMatrix:
    """A matrix of format `kind`: the index in memory of its chunks [rows, 2], or of its elements [rows, K] if `turned`."""

    memory: Memory
    index: Index
    kind: str
    turned: bool
    dense: bool

    def chunks(self) -> Index:
        """The index of every chunk of 16 bytes."""
        return np.unique(self.index >> 4) << 4 if self.turned else self.index.reshape(-1)

    def values(self) -> tuple[Values, Poison | None]:
        """Elements and the poison of each row."""
        memory = self.memory
        if self.turned:
            width = BITS[self.kind] // 8
            flags = memory.poison_views[width][self.index // width]
            poison: Any = None
            if flags.any():
                raw = np.ascontiguousarray(flags).view(np.uint8).reshape(len(flags), -1)
                poison = np.bitwise_or.reduce(raw, axis=1)
            return decode(memory.views[width][self.index // width], self.kind), poison
        return decode_rows(bytes_of(memory, self.index), self.kind, self.dense), self._row_poison()

    def _row_poison(self) -> Poison | None:
        flags = self.memory.poison_views[16].take(self.index >> 4).view(np.uint8).reshape(*self.index.shape, CHUNK)
        if BITS[self.kind] < 8 and not self.dense:
            flags = flags[..., : 2 * BITS[self.kind]]
        return np.bitwise_or.reduce(flags.reshape(len(flags), -1), axis=1) if flags.any() else None


@dataclass(slots=True)
class TensorMatrix:
    """A matrix A in tensor memory: eight columns from `column` of the row of each lane [rows]."""

    memory: TensorMemory
    lanes: Index
    column: int
    kind: str
    dense: bool

    def values(self) -> tuple[Values, Poison | None]:
        """Elements and the poison of each row."""
        words, poison = self.memory.read(self.lanes[:, None], self.column + np.arange(WIDTH // 4)[None, :])
        rows = np.ascontiguousarray(words).view(np.uint8)
        return decode_rows(rows, self.kind, self.dense), None if poison is None else np.bitwise_or.reduce(poison, axis=1)


def bytes_of(memory: Memory, index: Index) -> NDArray[np.uint8]:
    """The bytes of chunks at [rows, count], as [rows, 16 * count]."""
    return memory.views[16].take(index >> 4).view(np.uint8).reshape(len(index), -1)


def shared_matrix(
    d: Decoder, lane: int, blocks: tuple[int, ...], bits: int, rows: int, kind: str, turned: bool, dense: bool
) -> SharedMatrix | None:
    """The matrix that a descriptor describes, `rows` in each of the blocks; None, and a fault, if it cannot be used."""
    described = SharedDescriptor.read(bits)
    problem = described.problem(kind, turned)
    if problem is not None:
        text = f"a shared memory descriptor {problem}"
        d.machine.faults.add("descriptor", text, d.instruction, lane, distinct=text)
        return None
    addresses = described.elements(rows, BITS[kind] // 8) if turned else described.chunks(rows)
    index = located(d.machine, d.instruction, lane, blocks, addresses, BITS[kind] // 8 if turned else CHUNK)
    return None if index is None else SharedMatrix(d.machine.memory, index, kind, turned, dense)


def located(
    machine: Machine, instruction: Instruction, lane: int, blocks: tuple[int, ...], addresses: Index, width: int
) -> Index | None:
    """Indices in memory of shared addresses [rows, count] of `width` bytes in each of the blocks, one below the other; None,
    and a fault, if they lie outside."""
    low, high = int(addresses.min()), int(addresses.max()) + width
    if low < SHARED_START or high > SHARED_START + machine.windows.shared_size:
        text = f"a matrix at shared addresses {low} to {high}, outside the block's shared memory"
        machine.faults.add("bounds", text, instruction, lane, address=low)
        return None
    starts = [machine.windows.shared[block].start - SHARED_START for block in blocks]
    return np.concatenate([addresses + start for start in starts])


def begin_reads(machine: Machine, instruction: Instruction, lane: int, chunks: Index) -> Reads | None:
    """Checks reads of chunks of shared memory through the async proxy by a lane, and starts them; None if there are none."""
    if not len(chunks):
        return None
    ordering, shift = machine.ordering, machine.ordering.shadow.shift
    granules = ((chunks >> shift)[:, None] + np.arange(CHUNK >> shift)).reshape(-1)
    reads = ((chunks >> SHIFT)[:, None] + np.arange(CHUNK >> SHIFT)).reshape(-1)
    ordering.proxies.check(granules, lane, instruction, int(chunks[0]))
    ordering.in_flight.check_granules(reads[:, None], np.full(len(reads), lane), False, instruction)
    lanes = np.full(len(granules), lane)
    racing = ordering.shadow.unordered_writes(granules[:, None], lanes)
    if racing is not None:
        touched = Access(None, granules << shift, None, 1 << shift, lanes)
        machine.accesses.report_race(touched, racing, instruction, "reads what another thread writes")
    return Reads(ordering.in_flight.begin(reads, NOTHING), granules, *_last_writes(machine, granules))


def _last_writes(machine: Machine, granules: Index) -> tuple[Index, Index]:
    """Lanes of the wave and times of the last writes of these granules."""
    stamps = np.unique(machine.ordering.shadow.writes[granules])
    stamps = stamps[stamps != 0] & ~ATOMIC
    times, codes = stamps >> LANE_BITS, stamps & LANE_MASK
    several = (codes >= SEVERAL_IN_BLOCK) & (codes != SEVERAL)
    wave = machine.wave
    lanes, found = [codes[~several] - 1 - machine.ordering.clocks.first_lane], [times[~several]]
    for number, time in zip(codes[several] - SEVERAL_IN_BLOCK, times[several], strict=True):
        members = np.flatnonzero(wave.block_number[wave.block] == number)
        lanes.append(members)
        found.append(np.full(len(members), time))
    lane, time = np.concatenate(lanes), np.concatenate(found)
    inside = (lane >= 0) & (lane < wave.lane_count)
    return lane[inside], time[inside]
