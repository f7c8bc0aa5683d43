"""Weights of eight bits: e4m3 with a scale for each block of 128 x 128, as Qwen3-*-FP8 stores them (DeepSeek-AI, DeepSeek-V3, 2024)."""

import tilec as tl

SQUARE = 128
"""Outputs and inputs of a block of weights with one scale."""

RUN = 8
"""Products that are summed before their scale is applied: neighbours of one thread, so that no sum crosses threads."""


@tl.function
def scaled_sums(x: tl.Tile, w: tl.Tile, scales: tl.Tile, rows: int, width: int) -> tl.Tile:
    """Sums of `x * w` over each RUN columns, times the scales of their blocks, in f32; (1, width), (rows, width) and
    (1, width / SQUARE) -> (rows, width / RUN). The rows are of one block of weights."""
    runs = width // RUN
    products = x.astype(tl.f32).reshape((1, runs, RUN)) * w.astype(tl.f32).reshape((rows, runs, RUN))
    each = tl.broadcast_to(scales[:, :, None], (1, width // SQUARE, SQUARE // RUN)).reshape((1, runs))
    return tl.sum(products, axis=2) * each
