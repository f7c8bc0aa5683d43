"""Padding of matrices in shared memory: rows begin in different banks, and no byte is spent where they do so anyway."""

from __future__ import annotations

import itertools

from tilec.ir.layouts.blocked_layouts import BANKS_BYTES, PADDED_BYTES, conversion_bytes, row_padding
from tilec.ir.types import TileType, bf16, f32, i8, i64

MATRICES = [
    TileType(dtype, (rows, columns))
    for dtype, rows, columns in itertools.product((i8, bf16, f32, i64), (1, 16, 24), (8, 16, 40, 64, 96, 128, 256))
]


def test_neighboring_rows_of_a_small_matrix_begin_in_different_banks() -> None:
    for tile in MATRICES:
        pitch = tile.shape[-1] * tile.dtype.bytes
        assert tile.size * tile.dtype.bytes <= PADDED_BYTES
        assert (pitch + row_padding(tile)) % BANKS_BYTES, tile


def test_rows_that_begin_in_different_banks_without_padding_get_none() -> None:
    for tile in MATRICES:
        bytes_ = tile.size * tile.dtype.bytes
        if tile.shape[-1] * tile.dtype.bytes % BANKS_BYTES:
            assert row_padding(tile) == 0 and conversion_bytes(tile) == bytes_, tile
        else:
            assert conversion_bytes(tile) > bytes_, tile
