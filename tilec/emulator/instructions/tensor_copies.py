"""`tcgen05.cp` from shared to tensor memory, and `tcgen05.shift`: issued by one thread, asynchronous like an mma.

PTX ISA, "tcgen05.cp", "tcgen05.shift". A copy of two blocks of a pair reads in each block its own shared memory. The lanes that
4x256b writes and the formats that a copy can unpack are only in figures, and are not supported. A shift moves rows of eight
columns to the next lane, from the address to the last lane of its block; the first row keeps its contents, which no text says.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.tensor_operands import blocks_of, group, of_thread, split_address
from tilec.emulator.instructions.tensor_queue import Issued
from tilec.emulator.instructions.tensor_reads import begin_reads, bytes_of, located
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.matrices.descriptors import CHUNK
from tilec.emulator.matrices.shared_descriptors import SharedDescriptor
from tilec.emulator.matrices.tensor_layouts import LANES
from tilec.emulator.ordering.tensor_order import Operation

Index = NDArray[np.int64]
_ROWS: Final = np.arange(LANES)
SOURCES: Final[dict[tuple[str, str], tuple[int, Index]]] = {
    ("128x256b", ""): (2, _ROWS),
    ("128x128b", ""): (1, _ROWS),
    ("64x128b", "warpx2::02_13"): (1, _ROWS % 64),
    ("64x128b", "warpx2::01_23"): (1, _ROWS % 32 + 32 * (_ROWS // 64)),
    ("32x128b", "warpx4"): (1, _ROWS % 32),
}
"""Chunks of 16 bytes of a row, and the source row of each lane, by shape and multicast."""


def cp(d: Decoder) -> Step:
    """`tcgen05.cp.cta_group::G.SHAPE{.MULTICAST} [address], descriptor`."""
    pair = group(d)
    shape = d.need("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
    spread = d.take("warpx2::02_13", "warpx2::01_23", "warpx4") or ""
    if (shape, spread) not in SOURCES or d.left:
        raise d.unsupported("a copy of this shape")
    d.finish(2)
    address, descriptor = d.address_source(d.address(0)), d.source(1, "b64")
    chunks, rows = SOURCES[shape, spread]

    def step(frame: Frame) -> None:
        for at in frame.active().tolist():
            _copy(d, pair, (address, descriptor), chunks, rows, frame, at)

    return step


def _copy(
    d: Decoder, pair: bool, operands: tuple[Source, Source], count: int, source_rows: Index, frame: Frame, at: int
) -> None:
    machine, lane = d.machine, int(frame.lanes[at])
    blocks = blocks_of(machine, lane, pair, d)
    to = of_thread(operands[0], frame, at, "an address in tensor memory", d)
    bits = of_thread(operands[1], frame, at, "a shared memory descriptor", d)
    if blocks is None or to is None or bits is None:
        return
    described = SharedDescriptor.read(bits)
    problem = described.problem()
    if problem is not None:
        text = f"a shared memory descriptor {problem}"
        machine.faults.add("descriptor", text, d.instruction, lane, distinct=text)
        return
    first_lane, column = split_address(to)
    if first_lane:
        text = f"tcgen05.cp to lane {first_lane} of tensor memory, not 0"
        machine.faults.add("tensor-memory", text, d.instruction, lane, distinct=text)
        return
    size = int(source_rows.max()) + 1
    index = located(machine, d.instruction, lane, blocks, described.chunks(size, count), CHUNK)
    writes = tuple((LANES * block, LANES * (block + 1), column, column + 4 * count) for block in blocks)
    if index is None or not machine.tensor_memory.owns(writes, d.instruction, lane):
        return
    shared_reads = begin_reads(machine, d.instruction, lane, index.reshape(-1))
    operation = Operation("cp", np.array([lane]), machine.ordering.clocks.now, d.instruction)
    machine.tensor_memory.order.use(operation, (), writes)

    def perform() -> None:
        words = np.ascontiguousarray(bytes_of(machine.memory, index)).view(np.uint32)
        flags = machine.memory.poison_views[16].take(index >> 4).view(np.uint8).reshape(len(index), -1, 4)
        poison = np.bitwise_or.reduce(flags, axis=2)
        for k, block in enumerate(blocks):
            rows, from_rows = LANES * block + _ROWS[:, None], k * size + source_rows
            columns = column + np.arange(4 * count)[None, :]
            machine.tensor_memory.write(rows, columns, words[from_rows], poison[from_rows])

    machine.tensor_queue.issue(Issued(operation, perform, shared_reads, blocks))


def shift(d: Decoder) -> Step:
    """`tcgen05.shift.cta_group::G.down [address]`."""
    pair = group(d)
    d.need("down")
    d.finish(1)
    address, machine = d.address_source(d.address(0)), d.machine

    def step(frame: Frame) -> None:
        for at in frame.active().tolist():
            lane = int(frame.lanes[at])
            blocks = blocks_of(machine, lane, pair, d)
            to = of_thread(address, frame, at, "an address in tensor memory", d)
            if blocks is None or to is None:
                continue
            first, column = split_address(to)
            if first % 32 or first >= LANES:
                text = f"tcgen05.shift from lane {first} of tensor memory, which is no multiple of 32"
                machine.faults.add("tensor-memory", text, d.instruction, lane, distinct=text)
                continue
            rects = tuple((LANES * block + first, LANES * (block + 1), column, column + 8) for block in blocks)
            if not machine.tensor_memory.owns(rects, d.instruction, lane):
                continue
            operation = Operation("shift", np.array([lane]), machine.ordering.clocks.now, d.instruction)
            machine.tensor_memory.order.use(operation, (), rects)

            def perform(rects: tuple[tuple[int, int, int, int], ...] = rects) -> None:
                memory = machine.tensor_memory
                for top, bottom, left, right in rects:
                    memory.words[top + 1 : bottom, left:right] = memory.words[top : bottom - 1, left:right].copy()
                    memory.poison[top + 1 : bottom, left:right] = memory.poison[top : bottom - 1, left:right].copy()

            machine.tensor_queue.issue(Issued(operation, perform, None, blocks))

    return step
