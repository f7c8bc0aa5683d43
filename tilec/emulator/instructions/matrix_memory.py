"""`ldmatrix`, `stmatrix` and `movmatrix`: 8 x 8 matrices of 16-bit elements between shared memory and the registers of a
warp.

PTX ISA, "Warp-level matrix load instruction: ldmatrix", "... store instruction: stmatrix", "... transpose: movmatrix". Lanes
0-7 supply the row addresses of the first matrix, 8-15 of the second and so on; addresses of other lanes are ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED, Poison
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.warp_matrices import registers
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.matrices.fragments import load_matrix, store_matrix

ROW_BYTES = 16
Rows = NDArray[np.uint8]


def _modifiers(d: Decoder) -> tuple[int, bool]:
    d.need("sync")
    d.need("aligned")
    d.need("m8n8")
    count = int(d.need("x1", "x2", "x4")[1])
    transposed = d.flag("trans")
    d.take("shared", "shared::cta")
    d.need("b16")
    d.finish(2)
    return count, transposed


@control("ldmatrix")
def ldmatrix(d: Decoder) -> Step:
    """`ldmatrix.sync.aligned.m8n8.x1|x2|x4[.trans].shared.b16 {r...}, [address]`."""
    count, transposed = _modifiers(d)
    targets = [d.target(item, "b32") for item in d.vector(0, count)]
    address = d.address_source(d.address(1))

    def step(frame: Frame) -> None:
        found = _rows(frame, address, count, d, write=False)
        memory = d.machine.memory
        d.machine.accesses.watch_read(found, d.instruction)
        data = np.zeros((frame.n // 32, 32, ROW_BYTES), np.uint8)
        poison_rows = np.ones((frame.n // 32, 32, ROW_BYTES), np.uint8)  # a row that could not be read is poison
        positions = np.arange(frame.n) if found.positions is None else found.positions
        bytes_ = found.index[:, None] + np.arange(ROW_BYTES)
        data[positions // 32, positions % 32] = memory.data[bytes_]
        poison_rows[positions // 32, positions % 32] = memory.poison[bytes_]
        words = load_matrix(_matrices(data.view(np.uint16), count), transposed)
        poison: Any = None
        if poison_rows[:, : 8 * count].any():
            halves = (poison_rows[..., 0::2] | poison_rows[..., 1::2]).astype(np.uint16)
            poison = load_matrix(_matrices(halves, count), transposed)
            poison = (poison | poison >> np.uint32(16)).astype(np.uint8) & np.uint8(STORED - 1)
        for position, target in enumerate(targets):
            flags = None if poison is None else np.ascontiguousarray(poison[..., position]).reshape(-1)
            target(frame, np.ascontiguousarray(words[..., position]).reshape(-1), flags)

    return converge(d, step)


@control("stmatrix")
def stmatrix(d: Decoder) -> Step:
    """`stmatrix.sync.aligned.m8n8.x1|x2|x4[.trans].shared.b16 [address], {r...}`."""
    count, transposed = _modifiers(d)
    sources = [d.source(item, "b32") for item in d.vector(1, count)]
    address = d.address_source(d.address(0))

    def step(frame: Frame) -> None:
        words, poison = registers(frame, sources)
        found = _rows(frame, address, count, d, write=True)
        positions = np.arange(frame.n) if found.positions is None else found.positions
        data = _rows_of_lanes(store_matrix(words, transposed))[positions // 32, positions % 32]
        flags: Poison | None = None
        if poison is not None:
            pairs = poison.astype(np.uint32)
            halves = _rows_of_lanes(store_matrix(pairs | pairs << np.uint32(16), transposed))[positions // 32, positions % 32]
            flags = np.repeat(halves.astype(np.uint8), 2, axis=1)
        data = np.ascontiguousarray(data).view(np.uint8)
        d.machine.accesses.watch_write(found, d.instruction, lambda: data.view("V16").reshape(-1))
        d.machine.memory.write_rows(found.index, data, flags)
        if flags is not None:
            d.machine.accesses.note_poison(found, flags, d.instruction)

    return converge(d, step)


@control("movmatrix")
def movmatrix(d: Decoder) -> Step:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`: transposes a register-resident matrix of the warp."""
    for modifier in ("sync", "aligned", "m8n8", "trans", "b16"):
        d.need(modifier)
    d.finish(2)
    target, source = d.target(0, "b32"), d.source(1, "b32")

    def transpose(words: NDArray[Any]) -> NDArray[Any]:
        return load_matrix(store_matrix(words, False), True)[..., 0].reshape(-1)

    def step(frame: Frame) -> None:
        words, register_poison = registers(frame, [source])
        poison: Poison | None = None
        if register_poison is not None:
            both = transpose(register_poison.astype(np.uint32) | register_poison.astype(np.uint32) << np.uint32(16))
            poison = (both | both >> np.uint32(16)).astype(np.uint8)
        target(frame, transpose(words), poison)

    return converge(d, step)


def _rows(frame: Frame, address: Source, count: int, d: Decoder, *, write: bool) -> Access:
    supplies_row = None if count == 4 else frame.lane_in_warp < 8 * count
    value = address.value(frame)
    return d.machine.locator.locate(
        frame, value, address.poison(frame), "shared", ROW_BYTES, d.instruction, write=write, align=ROW_BYTES, mask=supplies_row
    )


def _matrices(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Rows of every lane (warps, 32, 8) -> (warps, count, 8, 8)."""
    return rows[:, : 8 * count].reshape(len(rows), count, 8, 8)


def _rows_of_lanes(matrices: NDArray[Any]) -> NDArray[Any]:
    """The inverse; lanes without a row get zeros."""
    lines = np.zeros((len(matrices), 32, 8), matrices.dtype)
    lines[:, : matrices.shape[1] * 8] = matrices.reshape(len(matrices), -1, 8)
    return lines
