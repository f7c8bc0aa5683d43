"""Shared memory swizzles of `wgmma` operands and bulk tensor copies: byte addresses in, permuted byte addresses out.

Source: PTX ISA, "Swizzling modes". A mode permutes chunks of 16 bytes in rows of 32, 64 or 128 bytes: the chunk number is
XORed with address bits 7 and up, so the pattern repeats every 256, 512 or 1024 bytes.
"""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray

CHUNK_BITS: Final = {0: 0, 32: 1, 64: 2, 128: 3}
"""Number of permuted address bits by the mode's row size in bytes."""


def swizzled(addresses: NDArray[Any], span: int) -> NDArray[Any]:
    """The swizzled addresses (any shape) for a swizzle of `span` bytes: 0, 32, 64 or 128."""
    mask = (1 << CHUNK_BITS[span]) - 1
    return addresses ^ ((addresses >> 7 & mask) << 4)
