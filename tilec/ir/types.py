"""Types of the tile IR: dtypes, tiles (on chip) and tensors (in global memory)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.expr import Expr
from tilec.target.dtypes import (
    DTYPES,
    PACKED,
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

__all__ = [
    "DTYPES",
    "MAX_DIM",
    "PACKED",
    "DType",
    "RingType",
    "ScratchType",
    "SharedType",
    "TensorType",
    "TileType",
    "TmemSpaceType",
    "TmemType",
    "Type",
    "bf16",
    "boolean",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]  # fmt: skip


MAX_DIM: Final = 2**31 - 2**16
"""Largest extent of a tensor axis that a launch accepts; the gap below 2^31 lets a last partial tile end without
wrapping i32."""


TMEM_LANES: Final = 128
"""Lanes of tensor memory (PTX ISA, "Tensor Memory Addressing")."""
TMEM_COLUMNS: Final = 512
"""Columns of tensor memory."""


@dataclass(frozen=True, slots=True)
class TileType:
    """A value of one block: `shape` is static, `()` is a scalar."""

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor in global memory.

    `dims` and `strides` (in elements) are expressions over symbolic dims and integer scalars; a constant is fixed per
    specialisation. `strides` None means row-major contiguous. `align` is the guaranteed alignment of the base in bytes.
    `packed`: each element, of u8, is a byte with two elements of this dtype of the author's tensor, which lie next to each
    other along the last axis. It is for messages: what reads or writes such a tensor reads or writes bytes.
    """

    dtype: DType
    dims: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None = None
    align: int = 16
    packed: DType | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        text = f"tensor<{self.dtype}, [{', '.join(map(str, self.dims))}]"
        if self.strides is not None:
            text += f", strides [{', '.join(map(str, self.strides))}]"
        text += f", align {self.align}"
        return f"{text}, packed {self.packed}>" if self.packed is not None else f"{text}>"


@dataclass(frozen=True, slots=True)
class SharedType:
    """A ring of `stages` row-major matrices in shared memory.

    Rows are divided into 16-byte chunks. If a row has a power of two of them, chunk `c` of row `r` is stored at position `c
    ^ ((r >> swizzle_shift) & swizzle_mask)`; otherwise rows are padded to an odd number of chunks. Either way the chunks of
    one column in any eight consecutive rows lie in eight different groups of four banks, so `ldmatrix` has no bank
    conflicts.

    Rows wider than one box of a tensor map are split into `swizzle_atoms` of equal width, each one atom wide, stored one after
    the other, each like a matrix of its own.
    """

    dtype: DType
    shape: tuple[int, int]
    stages: int
    swizzle_atoms: int = 1

    @property
    def width(self) -> int:
        """Columns of one of the `swizzle_atoms`."""
        return self.shape[1] // self.swizzle_atoms

    @property
    def chunks(self) -> int:
        """16-byte chunks of data in a row of a swizzle atom (of one of the `swizzle_atoms`)."""
        return self.width * self.dtype.bytes // 16

    @property
    def swizzle_mask(self) -> int:
        """Bits of a chunk number that the swizzle may flip; 0 if rows are padded or need no swizzle."""
        return min(self.chunks, 8) - 1 if self.chunks & (self.chunks - 1) == 0 else 0

    @property
    def swizzle_shift(self) -> int:
        """log2 of the number of rows in one 128-byte line, which have the same swizzle."""
        return max(0, 3 - (self.chunks.bit_length() - 1))

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        padded = self.chunks if self.swizzle_mask or self.chunks % 2 else self.chunks + 1
        return padded * 16

    @property
    def atom_bytes(self) -> int:
        """Bytes of one of the `swizzle_atoms`, padding included, a multiple of 128."""
        return (self.shape[0] * self.pitch + 127) // 128 * 128

    @property
    def stage_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.swizzle_atoms * self.atom_bytes

    @property
    def bytes(self) -> int:
        return self.stages * self.stage_bytes

    def offset(self, row: int, column: int) -> int:
        """Byte offset of an element in its stage, for copies and loads alike."""
        atom, column = divmod(column, self.width)
        chunk, byte = divmod(column * self.dtype.bytes, 16)
        return (
            atom * self.atom_bytes
            + row * self.pitch
            + ((chunk ^ ((row >> self.swizzle_shift) & self.swizzle_mask)) << 4)
            + byte
        )

    def __str__(self) -> str:
        swizzle_atoms = f", swizzle_atoms {self.swizzle_atoms}" if self.swizzle_atoms > 1 else ""
        return f"shared<{self.dtype}, [{self.shape[0]}, {self.shape[1]}], stages {self.stages}{swizzle_atoms}>"


@dataclass(frozen=True, slots=True)
class ScratchType:
    """Bytes of shared memory through which threads pass elements to each other."""

    bytes: int

    def __str__(self) -> str:
        return f"scratch<{self.bytes}>"


@dataclass(frozen=True, slots=True)
class RingType:
    """A queue of stages (`tilec.ir.ops.sync_ops`)."""

    stages: int

    def __str__(self) -> str:
        return f"ring<{self.stages}>"


@dataclass(frozen=True, slots=True)
class TmemSpaceType:
    """Columns of tensor memory that a block has allocated (PTX ISA, "Tensor Memory"): 128 lanes of 32 bits each."""

    columns: int

    def __str__(self) -> str:
        return f"tmem_space<{self.columns}>"


@dataclass(frozen=True, slots=True)
class TmemType:
    """A ring of `stages` matrices of 32-bit elements in tensor memory: accumulators of `tcgen05.mma`. A matrix has `shape[0]`
    rows, 64 or a multiple of `TMEM_LANES`; a lane has one row of each 128, and a column of tensor memory one column."""

    dtype: DType
    shape: tuple[int, int]
    stages: int

    @property
    def row_tiles(self) -> int:
        """Instructions along the rows, whose columns lie one after the other."""
        return max(1, self.shape[0] // TMEM_LANES)

    @property
    def stage_columns(self) -> int:
        """Columns of tensor memory of one matrix."""
        return self.row_tiles * self.shape[1]

    @property
    def columns(self) -> int:
        return self.stages * self.stage_columns

    def __str__(self) -> str:
        return f"tmem<{self.dtype}, [{self.shape[0]}, {self.shape[1]}], stages {self.stages}>"


Type = TileType | TensorType | SharedType | ScratchType | RingType | TmemSpaceType | TmemType
