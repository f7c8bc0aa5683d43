"""The memory of a block on NumPy arrays, with the threads that accessed each byte since the last barrier.

Every access must be aligned and inside its tensor; between a write of a byte by one thread and an access by another there must
be a barrier; asynchronous copies arrive only when they are waited for; no tensor may be accessed before the grid dependency
wait.
"""

from __future__ import annotations

import re

import numpy as np
from mlir_steps import ATOMIC, TYPES, Array, Step, numpy_type
from numpy.typing import NDArray

SHARED = 0  # index of the shared memory among the buffers; tensors follow
SPACE = 40  # bits of an address inside its buffer
MANY = -2  # more than one thread


class BlockMemory:
    """Shared memory and tensors, as accessed by `threads` threads in lockstep."""

    def __init__(self, threads: int, shared_bytes: int) -> None:
        self.threads, self.shared_bytes = threads, shared_bytes
        self.memory = [np.zeros(0, np.uint8)]
        self.read_only: set[int] = set()
        self.resident: set[int] = set()  # tensors that earlier kernels do not write

    def begin_block(self) -> None:
        """Resets shared memory to unknown, and the access records."""
        self.memory[SHARED] = np.full(self.shared_bytes, 0xFF, np.uint8)
        # The threads that accessed each byte since the last barrier, for all writable memory.
        sizes = [0 if number in self.read_only else buffer.size for number, buffer in enumerate(self.memory)]
        self.writer = [np.full(size, -1) for size in sizes]
        self.reader = [np.full(size, -1) for size in sizes]
        self.waited = False
        self.flying = np.zeros(self.shared_bytes, bool)
        self.group: list[tuple[Array, Array, Array]] = []
        self.groups: list[list[tuple[Array, Array, Array]]] = []
        self.unfenced = np.zeros(self.shared_bytes, bool)

    def place(self, pointer: Array, size: int, alignment: int, active: NDArray[np.bool_]) -> tuple[int, NDArray[np.int64]]:
        """Buffer and byte positions (active threads x size) of an access, which must be aligned and inside its buffer."""
        addresses = pointer[active].astype(np.int64)
        (buffer,) = set((addresses >> SPACE).tolist())
        starts = addresses & ((1 << SPACE) - 1)
        assert not (starts % alignment).any(), "a misaligned access"
        assert starts.min() >= 0 and starts.max() + size <= self.memory[buffer].size, "an access outside of its tensor"
        return buffer, starts[:, None] + np.arange(size)

    def load(self, step: Step, pointer: Array, active: NDArray[np.bool_]) -> Array:
        dtype, count = numpy_type(step.text.rsplit(" -> ", 1)[1])
        made = np.zeros((self.threads, count) if count else self.threads, dtype)
        size = dtype.itemsize * (count or 1)
        buffer, places = self.place(pointer, size, alignment_of(step.text, dtype), active)
        if buffer not in self.read_only:
            self.note_read(buffer, places, active)
        assert buffer == SHARED or self.waited or buffer in self.resident, "a read before earlier kernels are complete"
        made[active] = self.memory[buffer][places].view(dtype).reshape(made[active].shape)
        return made

    def load_words(self, text: str, pointer: Array, active: NDArray[np.bool_]) -> list[Array]:
        """`ld.global.nc` for tensors that no kernel writes, after the wait; else `ld.global`. Returns one or more words."""
        result = text.rsplit(" -> ", 1)[1].removeprefix("!llvm.struct<(").removesuffix(")>").split(", ")
        dtype, count = TYPES[result[0]], len(result)
        buffer, places = self.place(pointer, 4 * count, 4 * count, active)
        assert self.waited or buffer in self.resident, "a read before earlier kernels are complete"
        assert (self.waited and buffer in self.resident) == ("ld.global.nc" in text), "a read by the other path"
        assert buffer in self.read_only, "a read past the cache of what may be written"
        made = np.zeros((self.threads, count), dtype)
        made[active] = self.memory[buffer][places].view(dtype)
        words = [made[:, word] for word in range(count)]
        return [words] if count > 1 else words  # pyright: ignore[reportReturnType]

    def note_read(self, buffer: int, places: NDArray[np.int64], active: NDArray[np.bool_]) -> None:
        threads, reader = np.nonzero(active)[0][:, None], self.reader[buffer]
        assert buffer != SHARED or not self.flying[places].any(), "a read of bytes that are still on their way"
        assert untouched(self.writer[buffer][places], threads), "a read without a barrier"
        several = ~((reader[places] == -1) | (reader[places] == threads))
        reader[places] = threads
        several |= reader[places] != threads  # another thread reads the same byte in this access
        reader[places[several]] = MANY

    def store(self, step: Step, value: Array, pointer: Array, active: NDArray[np.bool_]) -> None:
        size = value.dtype.itemsize * (value.shape[1] if value.ndim > 1 else 1)
        buffer, places = self.place(pointer, size, alignment_of(step.text, value.dtype), active)
        stored = value[active]
        if stored.dtype.kind not in "iub":  # NaN payloads are unspecified: which of two is propagated differs
            stored = np.where(np.isnan(stored), np.asarray(np.nan, stored.dtype), stored)
        data = np.ascontiguousarray(stored).view(np.uint8).reshape(places.shape)
        self.write(buffer, places, data, active)

    def store_words(self, pointer: Array, words: list[Array], active: NDArray[np.bool_]) -> None:
        """`st.global.cs` of 1, 2 or 4 words."""
        buffer, places = self.place(pointer, 4 * len(words), 4 * len(words), active)
        data = np.ascontiguousarray(np.stack(words, axis=1)[active]).view(np.uint8).reshape(places.shape)
        self.write(buffer, places, data, active)

    def write(self, buffer: int, places: NDArray[np.int64], data: Array, active: NDArray[np.bool_]) -> None:
        threads = np.nonzero(active)[0][:, None]
        assert buffer not in self.read_only, "a write to a tensor that is only read"
        assert untouched(self.reader[buffer][places], threads), "a write without a barrier"
        assert untouched(self.writer[buffer][places], threads), "two writes without a barrier"
        self.writer[buffer][places] = threads
        assert buffer == SHARED or self.waited, "a write before earlier kernels are complete"
        self.memory[buffer][places] = data
        # Threads may write replicas of an element without a barrier if the values are equal.
        assert (self.memory[buffer][places] == data).all(), "two threads write different values"
        if buffer == SHARED:
            self.unfenced[places] = True

    def atomic(self, kind: str, pointer: Array, value: Array, active: NDArray[np.bool_]) -> Array:
        buffer, places = self.place(pointer, value.dtype.itemsize, value.dtype.itemsize, active)
        for place, operand in zip(places, value[active], strict=True):
            old = self.memory[buffer][place].view(value.dtype)
            new = ATOMIC[kind](old, operand).astype(value.dtype)
            self.memory[buffer][place] = new.view(np.uint8)
        return value

    def wait(self, pending: int) -> None:
        done = len(self.groups) - pending
        for places, data, active in (copy for group in self.groups[: max(0, done)] for copy in group):
            self.flying[places] = False
            self.write(SHARED, places, data, active.astype(bool))
        self.groups = self.groups[max(0, done) :]

    def copy(self, vector: int, of: list[Array], active: NDArray[np.bool_]) -> None:
        _, targets = self.place(of[0], vector, vector, active)
        threads = np.nonzero(active)[0][:, None]
        assert not self.flying[targets].any(), "a copy over bytes that are still on their way"
        assert untouched(self.reader[SHARED][targets], threads), "a copy without a barrier"
        size = of[2][active] if len(of) == 3 else np.full(len(targets), vector)
        data = np.zeros(targets.shape, np.uint8)
        pointers = of[1][active]
        for count in {int(one) for one in size} - {0}:
            rows = np.nonzero(size == count)[0]
            buffer, places = self.place(pointers[rows], count, vector, np.ones(len(rows), bool))
            assert self.waited or buffer in self.resident, "a copy before earlier kernels are complete"
            data[rows, :count] = self.memory[buffer][places]
        self.flying[targets] = True
        self.group.append((targets, data, active))

    def matrices(self, width: int, transposed: bool, pointer: Array) -> list[Array]:
        """`ldmatrix`: lane 8 m + r addresses row r of matrix m; a lane gets two neighbors of row lane

        4, or of that column.
        """
        lanes = np.arange(32)
        _, places = self.place(pointer, 16, 16, np.arange(self.threads) % 32 < 8 * width)
        assert not self.flying[places].any(), "a read of bytes that are still on their way"
        assert (self.writer[SHARED][places] == -1).all(), "a read without a barrier"
        self.reader[SHARED][places] = MANY
        found = self.memory[SHARED][places].view(np.uint16).reshape(self.threads // 32, width, 8, 8)
        found = found.swapaxes(2, 3) if transposed else found
        pairs = found[:, :, lanes[:, None] // 4, lanes[:, None] % 4 * 2 + np.arange(2)]
        words = np.ascontiguousarray(pairs).view(np.int32)[..., 0]
        return [words[:, matrix].reshape(-1) for matrix in range(width)]

    def matrix_bytes(self, places: NDArray[np.int64]) -> Array:
        """Bytes that the tensor cores read: only writes that a proxy fence and a barrier have made visible."""
        assert places.max() < self.shared_bytes, "an access outside of shared memory"
        assert not self.flying[places].any(), "a product of bytes that are still on their way"
        assert not self.unfenced[places].any(), "a product without a fence"
        assert (self.writer[SHARED][places] == -1).all(), "a product without a barrier"
        self.reader[SHARED][places] = MANY
        return self.memory[SHARED][places]


def untouched(before: NDArray[np.int64], threads: NDArray[np.int64]) -> bool:
    """Whether no other thread accessed these bytes since the last barrier."""
    return bool(((before == -1) | (before == threads)).all())


def alignment_of(text: str, dtype: np.dtype) -> int:
    found = re.search(r"alignment = (\d+)", text)
    return int(found[1]) if found else dtype.itemsize
