"""Element formats of matrix instructions: register or memory bits in, exact float64 or int64 values out, and products of
them.

Products and their sums are computed in float64 and rounded once to the accumulator's type. A product of two elements is exact
in float64 (at most 24 bits). A sum of at most 32 of them and an accumulator accumulates at most 33 rounding errors of 2^-53
of the sum of magnitudes, negligible against the final rounding to f32. Tensor cores instead align all terms of an instruction
to the largest one and truncate below it. A chip's result may differ from this one by at most 2^-22 of the sum of magnitudes
per instruction (24 bits kept, one truncation per term and one of the result).
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""Unsigned integers."""
Values = NDArray[Any]
"""float64, or int64 for integer formats."""

WIDTH: Final = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f32": 32, "s32": 32}
"""Bits of an element as it lies in a register or in memory."""

_FLOATS: Final[dict[str, Any]] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_UNSIGNED: Final = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def is_integer(kind: str) -> bool:
    """Whether elements of a format are integers, so that sums are exact."""
    return kind in ("s8", "u8", "s32")


def decode(bits: Bits, kind: str) -> Values:
    """Exact values of element bits, any shape. `tf32` ignores the low 13 bits, like the chips."""
    raw = bits.astype(_UNSIGNED[WIDTH[kind]])
    if kind == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "f32":
        return raw.view(np.float32).astype(np.float64)
    if kind == "u8":
        return raw.astype(np.int64)
    if kind in ("s8", "s32"):
        return raw.view(np.int8 if kind == "s8" else np.int32).astype(np.int64)
    return raw.view(_FLOATS[kind]).astype(np.float64)


def encode(values: Values, kind: str) -> Bits:
    """Bits of values rounded to nearest even (f32, f16), or wrapped (s32); any shape, unsigned integers of the width."""
    if kind == "s32":
        return values.astype(np.int64).astype(np.int32).view(np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "f32":
            return values.astype(np.float32).view(np.uint32)
        if kind == "f16":
            return values.astype(np.float16).view(np.uint16)
    raise ValueError(f"no accumulator has the format {kind}")


def split(words: Bits, kind: str) -> Bits:
    """Elements of 32-bit registers, lowest bits first; (..., registers) -> (..., registers, elements of a register)."""
    width = WIDTH[kind]
    shifts = np.arange(0, 32, width, dtype=np.uint32)
    mask = np.uint32((1 << width) - 1) if width < 32 else np.uint32(0xFFFFFFFF)
    return (words.astype(np.uint32)[..., None] >> shifts) & mask


def join(elements: Bits, kind: str) -> Bits:
    """The inverse of `split`."""
    shifts = np.arange(0, 32, WIDTH[kind], dtype=np.uint32)
    return np.bitwise_or.reduce(elements.astype(np.uint32) << shifts, axis=-1)


def multiply_add(a: Values, b: Values, c: Values) -> Values:
    """`a @ b + c`; (..., M, K), (..., K, N), (..., M, N). NaNs and infinities propagate as in IEEE arithmetic."""
    with np.errstate(invalid="ignore", over="ignore"):
        return a @ b + c
