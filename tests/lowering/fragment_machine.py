"""Executes the inline PTX of `mma.sync` and of rounding to tf32, on the registers of all threads of a block.

Fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k8" (tf32) and "mma.m16n8k32" (8 bits): a register has the
elements of 32 bits, neighbors along K.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
from mlir_steps import Array

ELEMENTS = {
    "tf32": np.dtype(np.float32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
}  # fmt: skip
_PRODUCT = re.compile(r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.(f32|s32)\.(\w+)\.(\w+)\.\2 ")


def multiply(text: str, inputs: list[Array]) -> list[Array]:
    """Four registers of the sums; `inputs`: four registers of A, two of B, four of C."""
    match = _PRODUCT.search(text)
    assert match, text
    depth, warps, lane = int(match[1]), len(inputs[0]) // 32, np.arange(32)
    group, member = lane >> 2, lane % 4
    a_words, b_words = (
        [np.ascontiguousarray(word).view(ELEMENTS[kind]).reshape(warps, 32, -1) for word in words]
        for kind, words in ((match[3], inputs[:4]), (match[4], inputs[4:6]))
    )
    per = a_words[0].shape[2]
    assert depth == 8 * per, "an instruction takes 32 bytes of a row"
    a: Any = np.zeros((warps, 16, depth))
    b: Any = np.zeros((warps, depth, 8))
    for index, word in enumerate(a_words):
        for offset in range(per):
            a[:, group + 8 * (index % 2), 4 * per * (index // 2) + per * member + offset] = word[:, :, offset]
    for index, word in enumerate(b_words):
        for offset in range(per):
            b[:, 4 * per * index + per * member + offset, group] = word[:, :, offset]
    if match[3] == "tf32":
        for matrix in (a, b):
            assert not (matrix.astype(np.float32).view(np.uint32) & 0x1FFF).any(), "an operand that was not rounded to tf32"
    sums, found = a @ b, list[Array]()
    for index, old in enumerate(inputs[6:]):
        part: Any = sums[:, group + 8 * (index // 2), 2 * member + index % 2].reshape(-1)
        wide: Any = part + old.astype(np.float64)
        found.append(wide.astype(np.float32) if match[2] == "f32" else wide.astype(np.int64).astype(np.int32))
    return found


def to_tf32(value: Array) -> Array:
    """`cvt.rna.tf32.f32`: to the nearest with 10 bits after the leading one, ties away from zero; finite values."""
    exact: Any = value.astype(np.float64)
    _, exponent = np.frexp(exact)
    unit = np.ldexp(1.0, np.maximum(exponent - 11, -136))
    rounded = np.copysign(np.floor(np.abs(exact) / unit + 0.5) * unit, exact)
    assert np.isfinite(value).all()
    return rounded.astype(np.float32).view(np.int32)
