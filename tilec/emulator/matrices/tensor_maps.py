"""Tensor maps and bulk tensor copies: a map and a box position in, pairs of byte addresses out.

Source: PTX ISA, "Tensors" and `cp.async.bulk.tensor`; CUDA driver API, `cuTensorMapEncodeTiled`. The 128 bytes of a map are
opaque. The emulator has its own encoding and rejects maps that another program encoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.swizzle import swizzled

MAP_BYTES: Final = 128
_MAGIC: Final = 0x70616D726F736E74
_FORMAT: Final = "<QIIII5I4Q5I"
MAX_RANK: Final = 5


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tiled tensor map; dimension 0 is the innermost. `strides`: byte strides of dimensions 1 and up."""

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        rank = len(self.dims)
        if not 1 <= rank <= MAX_RANK or len(self.box) != rank or len(self.strides) != rank - 1:
            raise ValueError(f"a tensor map of rank {rank} needs {rank} box sizes and {rank - 1} strides")
        if any(not 1 <= size <= 256 for size in self.box):
            raise ValueError(f"box sizes {self.box} must be 1 to 256")
        if self.address % 16 or any(stride % 16 for stride in self.strides):
            raise ValueError("a tensor map's address and strides must be multiples of 16 bytes")
        if self.box[0] * self.element_bytes % 16 or (self.swizzle and self.box[0] * self.element_bytes > self.swizzle):
            raise ValueError(
                f"the box's rows of {self.box[0] * self.element_bytes} bytes do not fit the swizzle {self.swizzle}"
            )

    def encode(self) -> bytes:
        """The map as 128 bytes in parameter or global memory."""
        box, strides, dims = [1] * 5, [0] * 4, [1] * 5
        box[: len(self.box)], strides[: len(self.strides)], dims[: len(self.dims)] = self.box, self.strides, self.dims
        packed = struct.pack(_FORMAT, _MAGIC, len(self.dims), self.element_bytes, self.swizzle, 0, *box, *strides, *dims)
        return (packed + struct.pack("<Q", self.address)).ljust(MAP_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TensorMap | None:
        """The map encoded in 128 bytes; None if `encode` did not make them."""
        size = struct.calcsize(_FORMAT)
        fields = struct.unpack(_FORMAT, data[:size])
        if fields[0] != _MAGIC:
            return None
        rank, element_bytes, swizzle = fields[1:4]
        (address,) = struct.unpack("<Q", data[size : size + 8])
        return cls(address, element_bytes, fields[14 : 14 + rank], fields[10 : 10 + rank - 1], fields[5 : 5 + rank], swizzle)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy of the box counts on its mbarrier, including those outside the tensor."""
        return int(np.prod(self.box)) * self.element_bytes


def box_addresses(tensor: TensorMap, start: tuple[int, ...], shared: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each element of the box at index `start` (innermost first), outermost dimension slowest: its byte address in global
    memory, -1 outside the tensor, and its byte address in shared memory for a box at `shared`; each (elements,)."""
    steps = (tensor.element_bytes, *tensor.strides)
    address = np.full((1,), tensor.address, np.int64)
    inside = np.ones((1,), bool)
    for size, extent, step, first in zip(
        reversed(tensor.box), reversed(tensor.dims), reversed(steps), reversed(start), strict=True
    ):
        index = first + np.arange(size)
        address = (address[:, None] + index * step).reshape(-1)
        inside = (inside[:, None] & (index >= 0) & (index < extent)).reshape(-1)
    shared_addresses = swizzled(shared + np.arange(address.size) * tensor.element_bytes, tensor.swizzle)
    return np.where(inside, address, -1), shared_addresses
