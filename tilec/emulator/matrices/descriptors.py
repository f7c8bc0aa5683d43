"""Operands of `wgmma` in shared memory: a 64-bit descriptor in, byte addresses of the matrix's elements out.

Source: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout" and "Strides". Matrices consist of core matrices
of 8 rows of 16 bytes. K-major: 16-byte chunks run along K. MN-major (`transposed`): they run along M or N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.swizzle import swizzled

Addresses = NDArray[np.int64]
_SPANS: Final = (0, 128, 64, 32)
"""Bytes of a swizzled row by the value of the mode field."""
CHUNK: Final = 16
DEPTH_BYTES: Final = 32
"""Bytes along K that one instruction reads, in every format."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A matrix in shared memory: byte address, byte offsets, swizzle span in bytes."""

    address: int
    leading: int
    stride: int
    base_offset: int
    span: int

    @classmethod
    def read(cls, bits: int) -> Descriptor:
        """The fields of a descriptor (PTX ISA, "Matrix descriptor format")."""
        return cls(
            (bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, bits >> 49 & 7, _SPANS[bits >> 62 & 3]
        )

    def problem(self) -> str | None:
        """The reason why the descriptor cannot be used, as a clause; None if it can."""
        if self.base_offset:
            return f"has the base offset {self.base_offset}; only operands that begin on a swizzle boundary are emulated"
        return None


@cache
def _offsets(rows: int, element_bytes: int, span: int, leading: int, stride: int, transposed: bool) -> Addresses:
    per_chunk = CHUNK // element_bytes
    row = np.arange(rows)[:, None]
    depth = np.arange(DEPTH_BYTES // element_bytes)[None, :]
    width = span or CHUNK  # bytes of a row of the layout
    if not transposed:
        chunk = depth // per_chunk * (CHUNK if span else leading)
        return row % 8 * width + row // 8 * stride + chunk + depth % per_chunk * element_bytes
    chunks = width // CHUNK
    block = row // (per_chunk * chunks) * (leading if span else stride)
    inside = row // per_chunk % chunks * CHUNK + row % per_chunk * element_bytes
    return block + inside + depth % 8 * width + depth // 8 * (stride if span else leading)


def element_addresses(descriptor: Descriptor, rows: int, element_bytes: int, transposed: bool) -> Addresses:
    """Byte address in shared memory of each element; (rows along M or N, elements along K)."""
    d = descriptor
    offsets = _offsets(rows, element_bytes, d.span, d.leading, d.stride, transposed)
    return swizzled(d.address + offsets, d.span)
