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

PTX_TYPES = {
    **{f"{kind}{8 * size}": np.dtype(f"{'i' if kind == 's' else 'u'}{size}") for kind in "sub" for size in (4, 8)},
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": TYPES["bf16"],
}
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
        self.combined = np.zeros(self.shared_bytes, bool)  # bytes of shared memory that atomics changed
        self.waited = False
        self.in_flight = np.zeros(self.shared_bytes, bool)
        self.group: list[tuple[Array, Array, Array]] = []
        self.groups: list[list[tuple[Array, Array, Array]]] = []
        self.unfenced = np.zeros(self.shared_bytes, bool)

    def locate(self, pointer: Array, size: int, alignment: int, active: NDArray[np.bool_]) -> tuple[int, NDArray[np.int64]]:
        """Buffer and byte positions (active threads x size) of an access, which must be aligned and inside its buffer."""
        addresses = pointer[active].astype(np.int64)
        (buffer,) = set((addresses >> SPACE).tolist())
        starts = addresses & ((1 << SPACE) - 1)
        assert not (starts % alignment).any(), "a misaligned access"
        assert starts.min() >= 0 and starts.max() + size <= self.memory[buffer].size, "an access outside of its tensor"
        return buffer, starts[:, None] + np.arange(size)

    def load(self, step: Step, pointer: Array, active: NDArray[np.bool_]) -> Array:
        dtype, count = numpy_type(step.text.rsplit(" -> ", 1)[1])
        values = np.zeros((self.threads, count) if count else self.threads, dtype)
        size = dtype.itemsize * (count or 1)
        buffer, positions = self.locate(pointer, size, alignment_of(step.text, dtype), active)
        if buffer not in self.read_only:
            self.note_read(buffer, positions, active)
        assert buffer == SHARED or self.waited or buffer in self.resident, "a read before earlier kernels are complete"
        values[active] = self.memory[buffer][positions].view(dtype).reshape(values[active].shape)
        return values

    def load_words(self, text: str, pointer: Array, active: NDArray[np.bool_]) -> list[Array]:
        """`ld.global.nc` for tensors that no kernel writes, after the wait; else `ld.global`. Returns one or more words."""
        result = text.rsplit(" -> ", 1)[1].removeprefix("!llvm.struct<(").removesuffix(")>").split(", ")
        dtype, count = TYPES[result[0]], len(result)
        buffer, positions = self.locate(pointer, 4 * count, 4 * count, active)
        assert self.waited or buffer in self.resident, "a read before earlier kernels are complete"
        assert (self.waited and buffer in self.resident) == ("ld.global.nc" in text), "a read by the other path"
        assert buffer in self.read_only, "a read past the cache of what may be written"
        values = np.zeros((self.threads, count), dtype)
        values[active] = self.memory[buffer][positions].view(dtype)
        words = [values[:, word] for word in range(count)]
        return [words] if count > 1 else words  # pyright: ignore[reportReturnType]

    def note_read(self, buffer: int, positions: NDArray[np.int64], active: NDArray[np.bool_]) -> None:
        threads, reader = np.nonzero(active)[0][:, None], self.reader[buffer]
        assert buffer != SHARED or not self.in_flight[positions].any(), "a read of bytes that are still on their way"
        assert buffer != SHARED or not self.combined[positions].any(), "a read of sums without a barrier"
        assert untouched(self.writer[buffer][positions], threads), "a read without a barrier"
        shared = ~((reader[positions] == -1) | (reader[positions] == threads))
        reader[positions] = threads
        shared |= reader[positions] != threads  # another thread reads the same byte in this access
        reader[positions[shared]] = MANY

    def store(self, step: Step, value: Array, pointer: Array, active: NDArray[np.bool_]) -> None:
        size = value.dtype.itemsize * (value.shape[1] if value.ndim > 1 else 1)
        buffer, positions = self.locate(pointer, size, alignment_of(step.text, value.dtype), active)
        stored = value[active]
        if stored.dtype.kind not in "iub":  # NaN payloads are unspecified: which of two is propagated differs
            stored = np.where(np.isnan(stored), np.asarray(np.nan, stored.dtype), stored)
        data = np.ascontiguousarray(stored).view(np.uint8).reshape(positions.shape)
        self.write(buffer, positions, data, active)

    def store_words(self, pointer: Array, words: list[Array], active: NDArray[np.bool_]) -> None:
        """`st.global.cs` of 1, 2 or 4 words."""
        buffer, positions = self.locate(pointer, 4 * len(words), 4 * len(words), active)
        data = np.ascontiguousarray(np.stack(words, axis=1)[active]).view(np.uint8).reshape(positions.shape)
        self.write(buffer, positions, data, active)

    def write(self, buffer: int, positions: NDArray[np.int64], data: Array, active: NDArray[np.bool_]) -> None:
        threads = np.nonzero(active)[0][:, None]
        assert buffer not in self.read_only, "a write to a tensor that is only read"
        assert buffer != SHARED or not self.combined[positions].any(), "a write of sums without a barrier"
        assert untouched(self.reader[buffer][positions], threads), "a write without a barrier"
        assert untouched(self.writer[buffer][positions], threads), "two writes without a barrier"
        self.writer[buffer][positions] = threads
        assert buffer == SHARED or self.waited, "a write before earlier kernels are complete"
        self.memory[buffer][positions] = data
        # Threads may write replicas of an element without a barrier if the values are equal.
        assert (self.memory[buffer][positions] == data).all(), "two threads write different values"
        if buffer == SHARED:
            self.unfenced[positions] = True

    def atomics(self, text: str, inputs: list[Array], active: NDArray[np.bool_]) -> list[Array]:
        """One after the other; the old values, which a `red` does not give."""
        sums = re.search(r"global\.add\.(?:noftz\.)?(?:v(\d)\.)?(f32|b?f16x2) \[", text)
        if sums and (sums[1] or sums[2].endswith("x2")):
            self.add_vectors(inputs, sums[2].removesuffix("x2"), active)
            return []
        loop = re.search(r"again: (max|min)\.f32", text)
        plain = re.fullmatch(r"(?:atom|red)\.relaxed\.(?:gpu\.global|cta\.shared)\.(\w+)\.(?:noftz\.)?(\w+) .*", text)
        kind = f"f{loop[1]}" if loop else plain[1] if plain else ""
        dtype = PTX_TYPES["f32" if loop else plain[2] if plain else ""]
        old = np.zeros_like(inputs[1])
        buffer, positions = self.locate(inputs[0], dtype.itemsize, dtype.itemsize, active)
        assert self.waited or buffer == SHARED, "an atomic before earlier kernels are complete"
        assert (buffer == SHARED) == (".cta.shared." in text), "an atomic of another space"
        if buffer == SHARED:
            accessors = (self.writer[SHARED][positions], self.reader[SHARED][positions])
            assert all((one == -1).all() for one in accessors), "an atomic without a barrier"
            self.combined[positions] = True
        operands = [value.view(dtype) for value in inputs[1:]]
        for thread, position in zip(np.flatnonzero(active), positions, strict=True):
            found = self.memory[buffer][position].view(dtype).copy()
            given = [value[thread : thread + 1] for value in operands]
            if kind == "cas":
                new = np.where(found == given[0], given[1], found)
            else:
                new = ATOMIC[kind](found, given[0]).astype(dtype)
            self.memory[buffer][position] = new.view(np.uint8)
            old[thread : thread + 1] = found.view(old.dtype)
        return [] if text.startswith("red") or (loop and "$2" not in text) else [old]

    def add_vectors(self, inputs: list[Array], kind: str, active: NDArray[np.bool_]) -> None:
        """Sums of neighbors at an address that is a multiple of their size, each by itself; pairs of 16 bits to a register."""
        pointer, *words = inputs
        self.locate(pointer, 4 * len(words), 4 * len(words), active)
        parts = [np.ascontiguousarray(word).view(np.uint16).reshape(-1, 2)[:, half].copy() for word in words for half in (0, 1)]
        elements = words if kind == "f32" else parts
        size = 4 if kind == "f32" else 2
        for number, element in enumerate(elements):
            name = "f32" if kind == "f32" else f"noftz.{kind}"
            self.atomics(f"red.relaxed.gpu.global.add.{name} [$0], $1;", [pointer + number * size, element], active)

    def wait(self, pending: int) -> None:
        num_complete = len(self.groups) - pending
        for positions, data, active in (copy for group in self.groups[: max(0, num_complete)] for copy in group):
            self.in_flight[positions] = False
            self.write(SHARED, positions, data, active.astype(bool))
        self.groups = self.groups[max(0, num_complete) :]

    def copy(self, vector: int, inputs: list[Array], active: NDArray[np.bool_]) -> None:
        _, targets = self.locate(inputs[0], vector, vector, active)
        threads = np.nonzero(active)[0][:, None]
        assert not self.in_flight[targets].any(), "a copy over bytes that are still on their way"
        assert untouched(self.reader[SHARED][targets], threads), "a copy without a barrier"
        size = inputs[2][active] if len(inputs) == 3 else np.full(len(targets), vector)
        data = np.zeros(targets.shape, np.uint8)
        pointers = inputs[1][active]
        for count in {int(one) for one in size} - {0}:
            rows = np.nonzero(size == count)[0]
            buffer, positions = self.locate(pointers[rows], count, vector, np.ones(len(rows), bool))
            assert self.waited or buffer in self.resident, "a copy before earlier kernels are complete"
            data[rows, :count] = self.memory[buffer][positions]
        self.in_flight[targets] = True
        self.group.append((targets, data, active))

    def matrices(self, width: int, transposed: bool, pointer: Array) -> list[Array]:
        """`ldmatrix`: lane 8 m + r addresses row r of matrix m; a lane gets two neighbors of row lane

        4, or of that column.
        """
        lanes = np.arange(32)
        _, positions = self.locate(pointer, 16, 16, np.arange(self.threads) % 32 < 8 * width)
        assert not self.in_flight[positions].any(), "a read of bytes that are still on their way"
        assert (self.writer[SHARED][positions] == -1).all(), "a read without a barrier"
        self.reader[SHARED][positions] = MANY
        matrices = self.memory[SHARED][positions].view(np.uint16).reshape(self.threads // 32, width, 8, 8)
        matrices = matrices.swapaxes(2, 3) if transposed else matrices
        pairs = matrices[:, :, lanes[:, None] // 4, lanes[:, None] % 4 * 2 + np.arange(2)]
        words = np.ascontiguousarray(pairs).view(np.int32)[..., 0]
        return [words[:, matrix].reshape(-1) for matrix in range(width)]

    def matrix_bytes(self, positions: NDArray[np.int64]) -> Array:
        """Bytes that the tensor cores read: only writes that a proxy fence and a barrier have made visible."""
        assert positions.max() < self.shared_bytes, "an access outside of shared memory"
        assert not self.in_flight[positions].any(), "a product of bytes that are still on their way"
        assert not self.unfenced[positions].any(), "a product without a fence"
        assert (self.writer[SHARED][positions] == -1).all(), "a product without a barrier"
        self.reader[SHARED][positions] = MANY
        return self.memory[SHARED][positions]


def untouched(accessors: NDArray[np.int64], threads: NDArray[np.int64]) -> bool:
    """Whether no other thread accessed these bytes since the last barrier."""
    return bool(((accessors == -1) | (accessors == threads)).all())


def alignment_of(text: str, dtype: np.dtype) -> int:
    match = re.search(r"alignment = (\d+)", text)
    return int(match[1]) if match else dtype.itemsize
