"""The layouts into which weights of every published format are repacked: one for each kind of element.

`N` is the number of output features (rows) and `K` that of input features (columns) of a weight; rows are contiguous. Scales
keep the dtype of the file: bf16, f16 or f32. No form has a NaN, an infinite scale, or a product that overflows f32: the reader
of its format has refused those. Arrays are read-only, and views of the mapped file where its layout is already this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scales = NDArray[Any]
"""bf16, f16 or f32."""


@dataclass(frozen=True, slots=True)
class Int4:
    """Unsigned 4-bit codes with a scale, and perhaps a zero point, for each `group` columns of a row.

    `W[n, k] = f32(q[n, k] - zero[n, k // group]) * f32(scales[n, k // group])`, one rounding. Bits 4i to 4i + 3 of
    `packed[n, j]` are `q[n, 8j + i]`. Without `zeros` every zero point is 8. With `order`, column `j` of the form is column
    `order[j]` of the weight, so that groups are contiguous; a product takes activations in that order.
    """

    packed: NDArray[np.uint32]
    """(N, K / 8)"""
    scales: Scales
    """(N, K / group)"""
    group: int
    zeros: NDArray[np.uint8] | None = None
    """(N, K / group), from 0 to 15"""
    order: NDArray[np.int32] | None = None
    """(K,), a permutation"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 8


@dataclass(frozen=True, slots=True)
class Int8:
    """Signed 8-bit codes with a scale, and perhaps a zero point, for each `group` columns of a row; `group` may be K.

    `W[n, k] = f32(q[n, k] - zero[n, k // group]) * f32(scales[n, k // group])`, one rounding. Without `zeros` every zero point
    is 0. `order` is as in `Int4`.
    """

    values: NDArray[np.int8]
    """(N, K)"""
    scales: Scales
    """(N, K / group)"""
    group: int
    zeros: NDArray[np.int8] | None = None
    """(N, K / group)"""
    order: NDArray[np.int32] | None = None
    """(K,), a permutation"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]


@dataclass(frozen=True, slots=True)
class Fp8:
    """e4m3 codes with a scale for each block of `block[0]` rows and `block[1]` columns: (128, 128), (1, K) for scales of rows,
    or (N, K) for one scale. Blocks at the last row and column may be cut.

    `W[n, k] = f32(e4m3(codes[n, k])) * f32(scales[n // block[0], k // block[1]])`, one rounding.
    """

    codes: NDArray[np.uint8]
    """(N, K); e4m3fn, none is NaN"""
    scales: Scales
    """(ceil(N / block[0]), ceil(K / block[1]))"""
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """e2m1 codes with an e4m3 scale for each 16 columns of a row, and one scale for the tensor.

    `W[n, k] = e2m1(q[n, k]) * s`, where `s` is `f32(e4m3(scales[n, k // 16]))` divided by `global_scale` if `divides`,
    otherwise multiplied by it, rounded to f32: producers differ, and so do the last bits. The low nibble of `packed[n, j]` is
    `q[n, 2j]`.
    """

    packed: NDArray[np.uint8]
    """(N, K / 2)"""
    scales: NDArray[np.uint8]
    """(N, K / 16); e4m3fn, none is NaN"""
    global_scale: np.float32
    divides: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 2


Form = Int4 | Int8 | Fp8 | Nvfp4
