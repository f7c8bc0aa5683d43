"""Weights of eight bits: e4m3 with a scale for each block of 128 x 128, as Qwen3-*-FP8 stores them (DeepSeek-AI, DeepSeek-V3,
2024)."""

import tilec as tl

SQUARE = 128
"""Outputs and inputs of a block of weights with one scale."""

RUN = 8
"""Products that are summed before their scale is applied: a thread has so many neighbors."""


@tl.function
def scaled_sums(x: tl.Tile, w: tl.Tile, scales: tl.Tile, rows: int, width: int) -> tl.Tile:
    """Sums of `x * w` over each RUN columns, times the scales of their blocks, in f32; (1, width), (rows, width) and
    (1, width / SQUARE) -> (rows, width / SQUARE, SQUARE / RUN). The rows are of one block of weights.

    The greatest of RUN equal scales is each of them: so threads load the scales of their own sums. Of 256 columns a warp has
    rows of two squares, each thread RUN neighbors.
    """
    shape = (rows, width // SQUARE, SQUARE // RUN, RUN)
    products = (x.astype(tl.f32) * w.astype(tl.f32)).reshape(shape)
    each = tl.broadcast_to(scales[:, :, None], (rows, width // SQUARE, SQUARE)).reshape(shape)
    return tl.sum(products, axis=3) * tl.max(each, axis=3)
