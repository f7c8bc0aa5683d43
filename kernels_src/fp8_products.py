"""FP8 weights as operands of tensor cores: of 16 bits in registers, and the scale of a block for the sums of its products."""

import tilec as tl

from .eight_rows import rows_in_parts, weights_in_parts
from .fp8_blocks import SQUARE


@tl.function
def scaled_products(x: tl.Tile, w: tl.Tile, scales: tl.Tile, count: int, rows: int, split: int, width: int) -> tl.Tile:
    """Products of `count` rows of activations and `rows` rows of one block of weights, each over `width` columns of a block, in
    f32; (count, split * width), (rows, split * width) of e4m3 and (1, split * width / SQUARE) -> (split * width / SQUARE,
    SQUARE / width, rows, 8), where `count` divides 8 and `width` divides SQUARE. Warps divide the `split` products."""
    blocks = split * width // SQUARE
    a = weights_in_parts(w.astype(x.dtype), rows, split, width)
    products = tl.mma(a, rows_in_parts(x, count, split, width), tl.zeros((split, rows, 8), tl.f32))
    return products.reshape((blocks, SQUARE // width, rows, 8)) * scales.reshape((blocks, 1, 1, 1))
