"""The register and lane of each element of a matrix fragment, as index arrays, so that a fragment is one gather.

Source: PTX ISA, "Matrix fragments for mma" (m16n8k4 to m16n8k32), "Warp-level matrix load instruction: ldmatrix", "Register
fragments for wgmma". With `group` = lane // 4 and `member` = lane % 4, every format follows one rule: a 32-bit register
contains `per` = 32 / width neighbours along K. A has rows `group` and `group + 8` and columns `per * member + j`, then the
same columns plus `4 * per`; B is the same along K for its column `group`. C has rows `group`, `group + 8`, columns `2
member`, `2 member + 1`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.formats import WIDTH

Index = NDArray[np.int64]
Bits = NDArray[Any]
LANES = 32

_LANE = np.arange(LANES)
_GROUP, _MEMBER = _LANE // 4, _LANE % 4


@cache
def operand_a(depth: int, kind: str) -> tuple[Index, Index]:
    """Row and column of each element of A, 16 x `depth`; each (32 lanes, registers, elements of a register)."""
    per = 32 // WIDTH[kind]
    halves = max(1, depth // (4 * per))
    register = np.arange(2 * halves)
    row = _GROUP[:, None, None] + 8 * (register % 2)[None, :, None]
    column = per * _MEMBER[:, None, None] + np.arange(per)[None, None, :] + 4 * per * (register // 2)[None, :, None]
    return _both(row, column)


@cache
def operand_b(depth: int, kind: str) -> tuple[Index, Index]:
    """Row (along K) and column of each element of B, `depth` x 8; each (32 lanes, registers, elements of a register)."""
    per = 32 // WIDTH[kind]
    halves = max(1, depth // (4 * per))
    row = per * _MEMBER[:, None, None] + np.arange(per)[None, None, :] + 4 * per * np.arange(halves)[None, :, None]
    return _both(row, _GROUP[:, None, None])


@cache
def accumulator(columns: int = 8) -> tuple[Index, Index]:
    """Row and column of each element of C or D, 16 x `columns`; each (32 lanes, `columns` / 2 elements)."""
    element = np.arange(columns // 2)
    row = _GROUP[:, None] + 8 * (element // 2 % 2)[None, :]
    column = 2 * _MEMBER[:, None] + (element % 2)[None, :] + 8 * (element // 4)[None, :]
    return _both(row, column)


def _both(row: Index, column: Index) -> tuple[Index, Index]:
    row, column = np.broadcast_arrays(row, column)
    return np.ascontiguousarray(row), np.ascontiguousarray(column)


def gather(words: Bits, rows: Index, columns: Index, shape: tuple[int, int]) -> Bits:
    """The matrices of these fragments: (..., 32, registers, elements) -> (..., *shape)."""
    matrix = np.zeros((*words.shape[: words.ndim - rows.ndim], *shape), words.dtype)
    matrix[..., rows, columns] = words
    return matrix


def load_matrix(rows: Bits, transposed: bool) -> Bits:
    """The result of `ldmatrix`: rows of 8 elements (..., matrices, 8, 8) as uint16 -> registers (..., 32, matrices) as
    uint32."""
    matrix = np.swapaxes(rows, -1, -2) if transposed else rows
    pairs = matrix.reshape(*matrix.shape[:-2], LANES, 2).astype(np.uint32)
    return np.moveaxis(pairs[..., 0] | pairs[..., 1] << np.uint32(16), -1, -2)


def store_matrix(registers: Bits, transposed: bool) -> Bits:
    """The inverse: registers (..., 32, matrices) -> rows (..., matrices, 8, 8) as uint16, for `stmatrix`."""
    words = np.moveaxis(registers.astype(np.uint32), -1, -2)
    pairs = np.stack((words & 0xFFFF, words >> np.uint32(16)), axis=-1).astype(np.uint16)
    matrix = pairs.reshape(*words.shape[:-1], 8, 8)
    return np.swapaxes(matrix, -1, -2) if transposed else matrix
