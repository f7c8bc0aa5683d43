"""FP8 weights as operands of tensor cores: of 16 bits in registers, and the scale of a block for the sums of its products."""

import tilec as tl

from .eight_rows import rows_in_parts, weights_in_parts
from .fp8_blocks import SQUARE


@tl.function
def scaled_products(x: tl.Tile, w: tl.Tile, scales: tl.Tile, count: int, rows: int, split: int) -> tl.Tile:
    """Products of `count` rows of activations and `rows` rows of weights, each over the columns of one block of weights, in
    f32; (count, split * SQUARE), (rows, split * SQUARE) of e4m3 and (1, split) -> (split, rows, 8), where `count` divides 8.

    The rows of weights are of one block of weights. Warps divide the `split` products."""
    a = weights_in_parts(w.astype(x.dtype), rows, split, SQUARE)
    b = rows_in_parts(x, count, split, SQUARE)
    return tl.mma(a, b, tl.zeros((split, rows, 8), tl.f32)) * scales.reshape((split, 1, 1))
