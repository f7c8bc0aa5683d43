"""Reads and writes of tensors.

An access moves a tile, `tile`, between the block and a tensor, its first operand. The other operands, `indices`, give the
location: one scalar offset of a box per tensor axis or, if the access is `indexed`, one tile of indices per tensor axis with
an index for each element moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.types import DTYPES, TensorType

_OF_INTEGERS: Final = ("add", "max", "min", "and", "or", "xor", "exch", "cas")
ATOMICS: Final[dict[str, tuple[str, ...]]] = {
    **{name: _OF_INTEGERS for name, dtype in DTYPES.items() if dtype.is_integer and dtype.bits >= 32},
    "f32": ("add", "max", "min", "exch"),
    **dict.fromkeys(("f16", "bf16"), ("add",)),
}
"""Kinds of atomics by dtype. Of less than 4 bytes, PTX has sums of floats (PTX ISA, `atom`, `.noftz`) and compare-and-swap; and
`cas` compares bits, which of floats is not their equality."""
BOX_KINDS: Final = ("add", "max", "min", "and", "or", "xor")
"""Kinds of atomics of a box: those of which the order of two does not matter, apart from rounding."""
_VECTORS: Final = (0, 1, 2, 4, 8, 16, 32)


def atomic_word(kind: str) -> str:
    """The word of the language for a kind of atomics."""
    return "atomic_exchange" if kind == "exch" else f"atomic_{kind}"


def adds_vectors(op: AtomicUpdate | AtomicScatter) -> bool:
    """Whether `red` combines vectors in this way (PTX ISA, `red`, vector types): sums of floats, without the old values."""
    return op.kind == "add" and op.tensor.tensor.dtype.is_float and not op.results


class MemoryOp(Op):
    """Base of all accesses, through `ReadOp` or `WriteOp`. `unsafe` is the index of the enclosing unsafe block or None."""

    leading = (TensorType,)
    indexed: ClassVar[bool] = False
    """Whether the access has an index for each element rather than a box at an offset."""
    unsafe: int | None

    @property
    def tensor(self) -> Value:
        """The tensor that is read or written."""
        return self.operands[0]

    @property
    def tile(self) -> Value:
        """The elements moved."""
        raise NotImplementedError

    @property
    def indices(self) -> list[Value]:
        """An offset or index tile for each axis of the tensor."""
        raise NotImplementedError

    @property
    def clipped(self) -> bool:
        """Whether the access skips elements outside the tensor; if not, it is proven to have none."""
        raise NotImplementedError

    @property
    def verb(self) -> str:
        """The function that the kernel's author called: of packed tensors, which have no gather, always a load."""
        return "load" if self.opcode == "gather" and self.tensor.tensor.packed is not None else self.opcode

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.tensor, self.effect),)

    def verify(self) -> None:
        self.require(isinstance(self.tensor.type, TensorType), "the first operand is a tensor")
        self.require(self.tile.tile.dtype == self.tensor.tensor.dtype, "tile and tensor share a dtype")
        if self.indexed:
            self._verify_indices()
        else:
            self._verify_box()

    def _verify_box(self) -> None:
        rank = self.tensor.tensor.rank
        self.require(self.tile.tile.rank == rank == len(self.indices), "one offset and one extent per tensor axis")
        for offset in self.indices:
            self.require(offset.tile.rank == 0 and offset.tile.dtype.is_integer, "offsets are integer scalars")

    def _verify_indices(self) -> None:
        self.require(len(self.indices) == self.tensor.tensor.rank, "one index tile per tensor axis")
        for index in self.indices:
            fits = index.tile.dtype.is_integer and index.tile.shape == self.tile.tile.shape
            self.require(fits, "indices have the tile's shape")


class ReadOp(MemoryOp):
    """Base of reads. Operands: tensor, `indices`. With `pad`, elements outside the tensor read as that value."""

    pad: float | None

    @property
    def source(self) -> Value:
        return self.operands[0]

    @property
    def tile(self) -> Value:
        return self.result

    @property
    def indices(self) -> list[Value]:
        return self.operands[1:]

    @property
    def clipped(self) -> bool:
        return self.pad is not None


class WriteOp(MemoryOp):
    """Base of writes. Operands: tensor, tile, `indices`. With `mask`, elements outside the tensor are not written."""

    num_results = 0
    mask: bool

    @property
    def target(self) -> Value:
        return self.operands[0]

    @property
    def tile(self) -> Value:
        return self.operands[1]

    @property
    def indices(self) -> list[Value]:
        return self.operands[2:]

    @property
    def clipped(self) -> bool:
        return self.mask


class VectorOp(MemoryOp):
    """Mixin of accesses that move vectors. `vector` is the number of bytes that a thread may move at once, which a pass proves
    from alignment; 0 before it ran. `whole` states that the tensor's rows end at a multiple of `vector` bytes, so that a vector
    at such a multiple from the start of a row lies entirely inside or entirely outside of it."""

    vector: int
    whole: bool

    @property
    def offsets(self) -> list[Value]:
        return self.indices

    def verify(self) -> None:
        super().verify()
        self.require(self.vector in _VECTORS, f"an access moves no {self.vector} bytes at once")


@dataclass(eq=False, kw_only=True)
class Load(VectorOp, ReadOp, opcode="load", effect=Effect.READ):
    """Read the box `[offset_k, offset_k + shape_k)` of a tensor. Operands: tensor, one i32/i64 scalar offset (in elements)
    per axis."""

    pad: float | None = None
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False


@dataclass(eq=False, kw_only=True)
class Store(VectorOp, WriteOp, opcode="store", effect=Effect.WRITE):
    """Write a tile over the box at the offsets. Operands: tensor, tile, offsets. `streamed`: caches evict the written data
    first, as far as it consists of whole words."""

    mask: bool = False
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False
    streamed: bool = False


@dataclass(eq=False, kw_only=True)
class Gather(VectorOp, ReadOp, opcode="gather", effect=Effect.READ):
    """Read one element per tile position. Operands: tensor, one integer index tile per axis (all of the result's shape). With
    `vector`, positions are consecutive in runs of as many bytes (`AtomicScatter`)."""

    indexed = True
    pad: float | None = None
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False


@dataclass(eq=False, kw_only=True)
class Scatter(VectorOp, WriteOp, opcode="scatter", effect=Effect.WRITE):
    """Write one element per tile position. Operands: tensor, tile, one integer index tile per axis. `vector` as in `gather`."""

    indexed = True
    mask: bool = False
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False


@dataclass(eq=False, kw_only=True)
class AtomicUpdate(VectorOp, WriteOp, opcode="atomic", effect=Effect.ATOMIC):
    """Combine a tile into the box at the offsets, atomically per element, relaxed order. Operands: tensor, tile, offsets. With
    `vector`, a thread may combine that many bytes at once, each element by itself."""

    kind: str
    mask: bool = False
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False

    @property
    def verb(self) -> str:
        return atomic_word(self.kind)

    def verify(self) -> None:
        self.require(not self.vector or adds_vectors(self), "vectors are of sums of floats")
        self.require(self.kind in BOX_KINDS, f"unknown kind {self.kind}")
        dtype = self.tensor.tensor.dtype
        self.require(self.kind in ATOMICS.get(dtype.name, ()), f"atomics of {dtype} do not exist")
        super().verify()


@dataclass(eq=False, kw_only=True)
class AtomicScatter(VectorOp, WriteOp, opcode="atomic_scatter", effect=Effect.ATOMIC):
    """Combine one element per tile position with the tensor's element at that position's indices, each by one relaxed atomic,
    those of one tile in any order. Operands: tensor, tile, one integer index tile per axis, and for `cas` a tile of the values
    to compare with. The result, if there is one, has the elements that were there before, and 0 where `mask` skipped one. With
    `vector`, the indices of the last axis count up by 1 from a multiple of `vector` bytes on in each run of as many bytes along
    the tile's last axis, where the others do not change: a thread may combine that many bytes at once."""

    indexed = True
    num_results = None
    kind: str
    mask: bool = False
    unsafe: int | None = None
    vector: int = 0
    whole: bool = False

    @property
    def indices(self) -> list[Value]:
        return self.operands[2 : len(self.operands) - (self.kind == "cas")]

    @property
    def compared(self) -> Value | None:
        """The tile that `cas` compares with."""
        return self.operands[-1] if self.kind == "cas" else None

    @property
    def verb(self) -> str:
        return atomic_word(self.kind)

    def verify(self) -> None:
        dtype = self.tensor.tensor.dtype
        self.require(self.kind in ATOMICS.get(dtype.name, ()), f"no {self.kind} of {dtype}")
        super().verify()
        self.require(len(self.results) <= 1, "at most one result")
        self.require(not self.vector or adds_vectors(self), "vectors are of sums of floats, of which no old value is used")
        same = [*self.results, *([self.compared] if self.compared is not None else [])]
        self.require(all(value.type == self.tile.type for value in same), "result and compared tile are like the tile")
        self.require(self.tile.tile.rank > 0, "a tile has an axis")
