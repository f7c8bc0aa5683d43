"""Operands of tcgen05 in shared memory: a 64-bit descriptor in, byte addresses out.

Source: PTX ISA, "Shared memory descriptor" (tcgen05) and "Canonical layouts". Except for the mode with atoms of 32 bytes the
layouts are those of `wgmma` (`descriptors`), whose descriptor has other bits. Invariant: every operand has 32 bytes along K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.descriptors import CHUNK, Descriptor, element_addresses

Addresses = NDArray[np.int64]
SPANS: Final = {0: 0, 1: 128, 2: 128, 4: 64, 6: 32}
"""Bytes of a swizzled row by the number of the mode."""
_ATOMS: Final = 1
_RESERVED: Final = 1 << 14 | 1 << 15 | 3 << 30 | 3 << 46 | 0xFF << 53
VERSION: Final = 1 << 46


@dataclass(frozen=True, slots=True)
class SharedDescriptor:
    """A matrix in shared memory: byte address, byte offsets, number of the swizzle mode, and the bits that must be zero."""

    address: int
    leading: int
    stride: int
    base_offset: int
    absolute: bool
    mode: int
    version: int
    reserved: int

    @classmethod
    def read(cls, bits: int) -> SharedDescriptor:
        """The fields of a descriptor."""
        return cls(
            (bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, bits >> 49 & 7,
            bool(bits >> 52 & 1), bits >> 61, bits >> 46 & 7, bits & _RESERVED & ~VERSION,
        )  # fmt: skip

    def problem(self, kind: str = "", turned: bool = False) -> str | None:
        """The field that an operand of format `kind`, MN-major if `turned`, cannot use, as a clause; None if there is none."""
        if self.version != 1:
            return f"has {self.version} in bits 46 to 48, not 1"
        if self.reserved:
            return f"sets reserved bits {self.reserved:#x}"
        if self.absolute:
            return "has the absolute mode of the leading byte offset (bit 52), which sm_100a does not have"
        if self.mode not in SPANS:
            return f"has the swizzle mode {self.mode} (bits 61 to 63)"
        if self.base_offset:
            return f"has the base offset {self.base_offset}; only operands that begin on a swizzle boundary are emulated"
        if turned and (self.mode == _ATOMS) != (kind == "tf32"):
            return f"has the swizzle mode {self.mode} for an MN-major operand of {kind}"
        if not turned and self.mode == _ATOMS:
            return "has the swizzle mode with 32-byte atoms for a K-major operand"
        return None

    def _plain(self) -> Descriptor:
        return Descriptor(self.address, self.leading, self.stride, 0, SPANS[self.mode])

    def chunks(self, rows: int, count: int = 2) -> Addresses:
        """Byte address of each chunk of 16 bytes along K of a K-major matrix, [rows, count]."""
        return element_addresses(self._plain(), rows, CHUNK, False)[:, :count]

    def elements(self, rows: int, element_bytes: int) -> Addresses:
        """Byte address of each element of an MN-major matrix, [rows along M or N, elements along K]."""
        if self.mode != _ATOMS:
            return element_addresses(self._plain(), rows, element_bytes, True)
        address = self.address + _atoms(rows, element_bytes, self.leading, self.stride)
        return address ^ ((address >> 7 & 3) << 5)


@cache
def _atoms(rows: int, element_bytes: int, leading: int, stride: int) -> Addresses:
    """Offsets in the mode with atoms of 32 bytes: rows of 128 bytes along M or N, four of K form an atom."""
    row, depth = np.arange(rows)[:, None], np.arange(32 // element_bytes)[None, :]
    wide = 128 // element_bytes
    return row // wide * leading + row % wide * element_bytes + depth % 4 * 128 + depth // 4 * stride
