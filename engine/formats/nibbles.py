"""Moves 4- and 8-bit fields of 32-bit words between the orders of published formats and that of `forms`.

Fields are numbered from the low bits of a word. All arrays are little-endian, as in safetensors files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

TILE: Final = 128
"""Rows and columns of words that are repacked at a time: eight such arrays fit in a core's cache."""
STRIP: Final = 32
"""Rows that `transposed` copies at a time: each row of the result then gets whole cache lines."""


def transposed(matrix: NDArray[Any]) -> NDArray[Any]:
    """The transpose of a matrix, row-major."""
    rows, columns = matrix.shape
    result = np.empty((columns, rows), matrix.dtype)
    for begin in range(0, rows, STRIP):
        result[:, begin : begin + STRIP] = matrix[begin : begin + STRIP].T
    return result


def unpacked(words: Words, bits: int) -> NDArray[np.uint8]:
    """The fields of 4 or 8 bits along the last axis: (..., M) words to (..., M * 32 / bits) bytes."""
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    fields = np.empty((*data.shape, 2), np.uint8)
    np.bitwise_and(data, 15, out=fields[..., 0])
    np.right_shift(data, 4, out=fields[..., 1])
    return fields.reshape(*data.shape[:-1], -1)


def packed(fields: NDArray[np.uint8]) -> Words:
    """4-bit fields along the last axis, a multiple of 8, as words; the inverse of `unpacked`."""
    data = fields[..., 0::2] | fields[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(data).view(np.uint32)


def columns_to_rows(words: Words, fields: Sequence[int]) -> Words:
    """Repack words of 8 columns each: (K, N / 8) to (N, K / 8). Field `i` of a word is column `8j + fields[i]`; in the result,
    field `i` of word `j` is row `8j + i` of `words`."""
    depth, groups = words.shape
    rows = words.reshape(depth // 8, 8, groups)
    result = np.empty((groups, 8, depth // 8), np.uint32)
    for r in range(0, depth // 8, TILE):
        for c in range(0, groups, TILE):
            tile = [np.ascontiguousarray(rows[r : r + TILE, row, c : c + TILE]) for row in range(8)]
            _transpose_fields(tile)
            for field, column in enumerate(fields):
                result[c : c + TILE, column, r : r + TILE] = tile[field].T
    return result.reshape(groups * 8, depth // 8)


def _transpose_fields(words: list[Words]) -> None:
    """Exchange field `i` of word `t` with field `t` of word `i`, for eight arrays of words: blocks of 4, 2 and 1 fields are
    exchanged in turn (Warren, Hacker's Delight, section 7-3)."""
    for distance, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        shift, low = np.uint32(4 * distance), np.uint32(mask)
        for first in range(8):
            if first & distance:
                continue
            a, b = words[first], words[first + distance]
            exchanged = ((a >> shift) ^ b) & low
            words[first + distance] = b ^ exchanged
            words[first] = a ^ (exchanged << shift)


def by_group(g_idx: NDArray[np.int64]) -> NDArray[np.int32] | None:
    """The columns sorted by group, those of a group in ascending order; None if they are sorted already."""
    if (np.diff(g_idx) >= 0).all():
        return None
    return np.argsort(g_idx, kind="stable").astype(np.int32)
