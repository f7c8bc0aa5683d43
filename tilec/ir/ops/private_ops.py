"""A block's own part of an atomic tensor in shared memory, made by passes and never by a kernel's author.

    part = shared_alloc               a *place* for each element of the tensor, in row-major order, and spare ones
    private_fill part, tensor         every place is neutral: combining it changes nothing
    private_update part, tensor, ...  what `atomic_scatter` combines with the tensor, into the part
    private_flush tensor, part        every place that is not neutral is combined with the tensor's element
    shared_free part

A barrier lies between fill and updates, and between updates and flush.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.ops.memory import ATOMICS, BOX_KINDS
from tilec.ir.types import DType, ScratchType, TensorType, f32

SPARE_SLOTS: Final = 32
"""Places after those of the tensor, one for each lane, for positions outside of it. Nothing is done with what is there."""


def can_be_private(kind: str, dtype: DType) -> bool:
    """Whether `red` on shared memory combines elements in this way (PTX ISA, `red`), and in any order and grouping, apart from
    the rounding of f32."""
    if kind not in BOX_KINDS or kind not in ATOMICS.get(dtype.name, ()):
        return False
    return dtype.is_integer or (dtype == f32 and kind == "add")


def neutral(kind: str, dtype: DType) -> int | float:
    """The element that changes no other when it is combined with it; of sums of floats -0.0, for either sign of zero."""
    if dtype.is_float:
        return -0.0
    least, greatest = dtype.integer_range()
    return {"max": least, "min": greatest, "and": -1 if dtype.kind == "i" else greatest}.get(kind, 0)


class _PrivateOp(Op):
    """Base of the three. `shape`: for each axis of the tensor an upper bound of its extent, by which places are numbered."""

    kind: str
    shape: tuple[int, ...]

    @property
    def part(self) -> Value:
        """The block's part, scratch."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        return prod(self.shape)

    def verify_part(self, dtype: DType) -> None:
        """VerifyError unless the part has a place for each element, in whole vectors."""
        self.require(isinstance(self.part.type, ScratchType), "the part is scratch")
        self.require(can_be_private(self.kind, dtype), f"no parts of {self.kind} of {dtype}")
        self.require(min(self.shape, default=0) >= 1, "an extent for each axis")
        self.require(self.part.scratch.bytes == part_bytes(self.slots, dtype), "the part has a place for each element")

    def verify_tensor(self, tensor: Value) -> None:
        """VerifyError unless the tensor may have this shape."""
        dims = tensor.tensor.dims
        self.require(len(self.shape) == len(dims), "an extent for each axis of the tensor")
        constants = [(dim.constant, extent) for dim, extent in zip(dims, self.shape, strict=True)]
        self.require(all(dim is None or dim == extent for dim, extent in constants), "the extents are the tensor's")
        self.verify_part(tensor.tensor.dtype)


def part_bytes(slots: int, dtype: DType) -> int:
    """Shared memory of a part with its spare places: whole vectors of 16 bytes."""
    return -(-(slots + SPARE_SLOTS) * dtype.bytes // 16) * 16


@dataclass(eq=False, kw_only=True)
class PrivateFill(_PrivateOp, opcode="private_fill", effect=Effect.SHARED):
    """Make every place neutral. Operands: part, tensor."""

    num_operands = 2
    leading = (ScratchType, TensorType)
    num_results = 0
    kind: str
    shape: tuple[int, ...]

    @property
    def part(self) -> Value:
        return self.operands[0]

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.part, Effect.WRITE),)

    def verify(self) -> None:
        self.verify_tensor(self.operands[1])


@dataclass(eq=False, kw_only=True)
class PrivateUpdate(_PrivateOp, opcode="private_update", effect=Effect.SHARED):
    """Combine one element per tile position with the place of the element at that position's indices, each by one relaxed
    atomic of the block. With `mask`, positions outside the tensor are skipped; without, there are none. Operands: part,
    tensor, tile, one integer index tile per axis of the tensor."""

    leading = (ScratchType, TensorType)
    num_results = 0
    kind: str
    shape: tuple[int, ...]
    mask: bool = False

    @property
    def part(self) -> Value:
        return self.operands[0]

    @property
    def tensor(self) -> Value:
        """The tensor whose part is updated."""
        return self.operands[1]

    @property
    def tile(self) -> Value:
        """The elements combined."""
        return self.operands[2]

    @property
    def indices(self) -> list[Value]:
        return self.operands[3:]

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.part, Effect.ATOMIC),)

    def verify(self) -> None:
        self.verify_tensor(self.tensor)
        tile = self.tile.tile
        self.require(tile.rank > 0 and tile.dtype == self.tensor.tensor.dtype, "tile and tensor share a dtype")
        self.require(len(self.indices) == len(self.shape), "one index tile per tensor axis")
        fits = all(index.tile.dtype.is_integer and index.tile.shape == tile.shape for index in self.indices)
        self.require(fits, "indices have the tile's shape")


@dataclass(eq=False, kw_only=True)
class PrivateFlush(_PrivateOp, opcode="private_flush", effect=Effect.ATOMIC):
    """Combine every place that is not neutral with the tensor's element, each by one relaxed atomic. Operands: tensor, part."""

    num_operands = 2
    leading = (TensorType, ScratchType)
    num_results = 0
    kind: str
    shape: tuple[int, ...]

    @property
    def part(self) -> Value:
        return self.operands[1]

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.part, Effect.READ), (self.operands[0], Effect.ATOMIC))

    def verify(self) -> None:
        self.verify_tensor(self.operands[0])
