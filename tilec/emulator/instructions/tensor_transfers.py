"""`tcgen05.ld` and `tcgen05.st`: tensor memory to and from the registers of a warp.

PTX ISA, "tcgen05.ld", "tcgen05.st". A warp accesses the quarter of the lanes that its number in the warpgroup selects. Both are
asynchronous until the warp's `tcgen05.wait`: the cells stay in use, and a use of a loaded register before it is a note. A store
takes the values of its registers when it is issued; changing them before its wait is not detected.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import POISON
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.tensor_operands import of_warp, split_address, warps_of
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.matrices.tensor_layouts import LANES, SHAPES, Rect, register_cells
from tilec.emulator.ordering.tensor_order import Operation
from tilec.emulator.ptx.syntax import Register

Index = NDArray[np.int64]
Cells = tuple[Index, Index, NDArray[np.bool_]]
"""Rows and columns [lanes of the frame, registers], and which lanes may access them."""


def _form(d: Decoder, pack: str) -> tuple[str, int, bool]:
    """Shape, repetitions, and whether the modifier `pack` is there."""
    d.need("sync")
    d.need("aligned")
    shape = d.need(*SHAPES)
    repeated = re.fullmatch(r"x(\d+)", d.left.pop(0) if d.left else "")
    times = int(repeated[1]) if repeated else 0
    if not 1 <= times <= SHAPES[shape][2] or times & (times - 1):
        raise d.unsupported(f"a repetition that .{shape} does not have")
    packed = d.flag(pack)
    d.need("b32")
    d.finish(3 if shape == "16x32bx2" else 2)
    return shape, times, packed


def _offset(d: Decoder, shape: str, operand: int) -> int:
    return int(d.source(operand, "u32").constant) if shape == "16x32bx2" else 0


def load(d: Decoder) -> Step:
    """`tcgen05.ld.sync.aligned.SHAPE.xN{.pack::16b}.b32 {r...}, [address]{, offset}`."""
    shape, times, packed = _form(d, "pack::16b")
    lane, column = register_cells(shape, times, packed, _offset(d, shape, 2))
    items = d.vector(0, lane.shape[1])
    targets = [d.target(item, "b32") for item in items]
    registers = frozenset(item.index for item in items if isinstance(item, Register))
    address = d.address_source(d.address(1))
    memory, state = d.machine.tensor_memory, d.machine.tensor_transfers

    def body(frame: Frame) -> None:
        rows, columns, valid = _cells(d, frame, address, (lane, column), packed, False)
        words, poison = memory.read(rows, columns)
        if packed:
            upper, upper_poison = memory.read(rows, columns + 1)
            words = words & np.uint32(0xFFFF) | upper << np.uint32(16)
            poison = union(poison, upper_poison)
        if not valid.all():
            poison = np.zeros(words.shape, np.uint8) if poison is None else poison
            poison[~valid] |= POISON
        for k, target in enumerate(targets):
            flags = None if poison is None or not poison[:, k].any() else np.ascontiguousarray(poison[:, k])
            target(frame, np.ascontiguousarray(words[:, k]), flags)
        for warp in np.unique(frame.warp).tolist():
            state.written.setdefault(warp, []).append((registers, d.instruction))

    return converge(d, body)


def store(d: Decoder) -> Step:
    """`tcgen05.st.sync.aligned.SHAPE.xN{.unpack::16b}.b32 [address]{, offset}, {r...}`."""
    shape, times, packed = _form(d, "unpack::16b")
    lane, column = register_cells(shape, times, packed, _offset(d, shape, 1))
    sources = [d.source(item, "b32") for item in d.vector(2 if shape == "16x32bx2" else 1, lane.shape[1])]
    address = d.address_source(d.address(0))
    memory = d.machine.tensor_memory

    def body(frame: Frame) -> None:
        rows, columns, valid = _cells(d, frame, address, (lane, column), packed, True)
        values = [np.broadcast_to(source.value(frame), (frame.n,)) for source in sources]
        words = np.stack(values, axis=1).astype(np.uint32)
        poison: Any = None
        flags = [source.poison(frame) for source in sources]
        if any(flag is not None for flag in flags):
            poison = np.stack([np.zeros(frame.n, np.uint8) if flag is None else flag for flag in flags], axis=1)
        rows, columns, words = rows[valid], columns[valid], words[valid]
        poison = None if poison is None else poison[valid]
        if packed:
            memory.write(rows, columns + 1, words >> np.uint32(16), poison)
            words = words & np.uint32(0xFFFF)
        memory.write(rows, columns, words, poison)

    return converge(d, body)


def _cells(
    d: Decoder, frame: Frame, address: Source, relative: tuple[Index, Index], packed: bool, is_write: bool
) -> Cells:  # fmt: skip
    """The cells of every lane of the frame, after the checks of each warp's address."""
    machine = d.machine
    memory = machine.tensor_memory
    rows = np.zeros((frame.n, relative[0].shape[1]), np.int64)
    columns, valid = np.zeros_like(rows), np.zeros(frame.n, np.bool_)
    for positions in warps_of(frame):
        taddr = of_warp(address, frame, positions, "an address in tensor memory", d)
        if taddr is None:
            continue
        first = int(frame.lanes[positions[0]])
        threads = frame.lane_in_warp[positions]
        lane, column = split_address(taddr)
        quarter = int(machine.wave.thread[first]) // 32 % 4
        reach = lane + int(relative[0].max())
        if lane < 32 * quarter or reach >= 32 * (quarter + 1):
            text = f"lanes {lane} to {reach} of tensor memory; the warp accesses {32 * quarter} to {32 * quarter + 31}"
            machine.faults.add("tensor-memory", text, d.instruction, first, distinct="lanes")
            continue
        top = LANES * int(machine.wave.block[first])
        rects = _rects(top + lane, column, relative, packed)
        if not memory.owns(rects, d.instruction, first):
            continue
        operation = Operation("st" if is_write else "ld", frame.lanes[positions], machine.ordering.clocks.now, d.instruction)
        memory.order.use(operation, () if is_write else rects, rects if is_write else ())
        machine.tensor_transfers.open.setdefault(int(machine.wave.warp[first]), []).append(operation)
        rows[positions] = top + lane + relative[0][threads]
        columns[positions] = column + relative[1][threads]
        valid[positions] = True
    return rows, columns, valid


def _rects(row: int, column: int, relative: tuple[Index, Index], packed: bool) -> tuple[Rect, ...]:
    """The rectangles that a warp's registers cover: one, or two for 16x32bx2."""
    lanes, columns = relative
    rows = row, row + int(lanes.max()) + 1
    used = np.unique(columns)
    if packed:
        used = np.unique(np.concatenate([used, used + 1]))
    runs = np.split(used, np.flatnonzero(np.diff(used) != 1) + 1)
    return tuple((*rows, column + int(run[0]), column + int(run[-1]) + 1) for run in runs)
