"""Products of a tile of tokens with weights that stay as they are stored: of 16 bits in registers, on tensor cores.

A warp has 16 outputs of the tile and one block of 128 inputs of an iteration; SPLIT warps have blocks side by side, whose sums
are added last. So a block of threads reads weights of few outputs once, and all tokens of its tile from the cache.
"""

import tilec as tl

from .eight_rows import weights_in_parts
from .fp8_blocks import SQUARE
from .int4_groups import GROUP, LANES, WORDS, codes

MOST = 32
"""Tokens of a tile at most: threads hold sums of no more."""


@tl.function
def fp8_sums(x: tl.Tile, w: tl.Tile, scales: tl.Tile, tokens: int, rows: int, split: int) -> tl.Tile:
    """Sums of products over each block of weights, times its scale, in f32; (tokens, split * SQUARE), (rows, split * SQUARE) of
    e4m3, of one row of blocks, and (1, split) -> (split, rows, tokens)."""
    right = tl.permute(tl.reshape(x, (tokens, split, SQUARE)), (1, 2, 0))
    left = weights_in_parts(w.astype(x.dtype), rows, split, SQUARE)
    return tl.mma(left, right, tl.zeros((split, rows, tokens), tl.f32)) * scales.reshape((split, 1, 1))


@tl.function
def int4_sums(
    x: tl.Tile, words: tl.Tile, scales: tl.Tile, zeros: tl.Tile, tokens: int, rows: int, split: int, dtype: tl.Const
) -> tl.Tile:  # fmt: skip
    """Sums of products over each group, as multiples of the unit of `codes`, times their scales; (tokens, split * GROUP),
    (rows, split * WORDS) of u32 and (split, rows) twice -> (split, rows, tokens)."""
    ordered = tl.permute(x.reshape((tokens, split, LANES, WORDS // LANES, 2, 4)), (1, 3, 2, 5, 4, 0))
    right = ordered.reshape((split, GROUP, tokens))
    sums = tl.mma(codes(words, zeros, split, rows, dtype), right, tl.zeros((split, rows, tokens), tl.f32))
    return sums * scales.astype(tl.f32)[:, :, None]
