"""Operands of tcgen05 as bytes: 32 bytes along K in, exact float64 or int64 values out; and scale factors.

Source: PTX ISA, "Alternate floating-point data formats", "Packing formats in shared memory". Elements of 4 and 6 bits lie 16 to
a chunk of 16 bytes, lowest bits first, and the rest of the chunk is unused; in the kinds of only 4-bit elements they are dense.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.formats import decode

Bytes = NDArray[np.uint8]
Values = NDArray[Any]
BITS: Final = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}
"""Bits of an element by format."""


def _table(bits: int, exponent_bits: int) -> Values:
    """Values of all codes of a format without infinities and NaN."""
    mantissa_bits = bits - 1 - exponent_bits
    code = np.arange(1 << bits)
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << exponent_bits - 1) - 1
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent.astype(float) - bias))
    return np.where(code >> bits - 1, -size, size)


_TABLES: Final = {"e2m3": _table(6, 2), "e3m2": _table(6, 3), "e2m1": _table(4, 2)}


def decode_rows(rows: Bytes, kind: str, dense: bool = False) -> Values:
    """Values [..., elements] of rows of whole chunks [..., bytes]. `dense`: 4-bit elements fill their bytes."""
    width = BITS[kind]
    if width >= 8:
        return decode(np.ascontiguousarray(rows).view(f"u{width // 8}"), kind)
    if dense:
        codes = np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)
        return _TABLES[kind][codes]
    bits = np.unpackbits(rows.reshape(*rows.shape[:-1], -1, 16)[..., : 2 * width], axis=-1, bitorder="little")
    grouped = bits.reshape(*bits.shape[:-1], 16, width)
    codes = (grouped << np.arange(width, dtype=np.uint8)).sum(axis=-1)
    return _TABLES[kind][codes].reshape(*rows.shape[:-1], -1)


def scale_values(codes: Bytes, is_ue8m0: bool) -> Values:
    """Values of scale factors: powers of two with bias 127 (255 is NaN), or unsigned e4m3."""
    if is_ue8m0:
        return np.where(codes == 255, np.nan, 2.0 ** (codes.astype(np.float64) - 127))
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
