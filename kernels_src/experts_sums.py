"""Down projections of the experts of one token, summed by their weights: what the kernels of one row of a mixture share."""

import tilec as tl

from .fp8_blocks import RUN, SQUARE, scaled_sums
from .int4_groups import GROUP, WORDS, each_row, group_inputs, group_sums, row_sums


@tl.function
def weighted_sums(
    x: tl.Tensor, experts: tl.Tensor, weights: tl.Tensor, w: tl.Tensor, t: int, n: int, K: int, C: int, ROWS: int, BLOCK: int,
) -> tl.Tile:  # fmt: skip
    """Outputs n * ROWS and following of the sum of `weights[t, c] * (w[experts[t, c]] @ x[t, c])` over c, in order, in f32;
    (1, ROWS)."""
    acc = tl.zeros((1, ROWS, BLOCK), tl.f32)
    for c in tl.static_range(C):
        e, part = tl.load(experts, (t, c)), tl.load(weights, (t, c))
        for k in tl.static_range(K // BLOCK):
            a = tl.load(x, (t, c, k), shape=(1, 1, BLOCK)).astype(tl.f32) * part
            acc += a * tl.load(w, (e, n, k), shape=(1, ROWS, BLOCK)).astype(tl.f32)
    return tl.sum(acc, axis=2)


@tl.function
def weighted_sums_fp8(
    x: tl.Tensor, experts: tl.Tensor, weights: tl.Tensor, w: tl.Tensor, w_scales: tl.Tensor, t: int, n: int, K: int, C: int,
    ROWS: int, BLOCK: int,
) -> tl.Tile:  # fmt: skip
    """`weighted_sums` with the weights `w[e, n, k] * w_scales[e, n // 128, k // 128]`."""
    acc = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for c in tl.static_range(C):
        e, part = tl.load(experts, (t, c)), tl.load(weights, (t, c))
        for k in tl.static_range(K // BLOCK):
            s = tl.load(w_scales, (e, n // (SQUARE // ROWS), k), shape=(1, 1, BLOCK // SQUARE))
            a = tl.load(x, (t, c, k), shape=(1, 1, BLOCK)).reshape((1, BLOCK))
            b = tl.load(w, (e, n, k), shape=(1, ROWS, BLOCK)).reshape((ROWS, BLOCK))
            acc += scaled_sums(a, b, s.reshape((1, BLOCK // SQUARE)), ROWS, BLOCK) * part
    return tl.sum(acc, axis=(1, 2))[None, :]


@tl.function
def weighted_sums_int4(
    x: tl.Tensor, experts: tl.Tensor, weights: tl.Tensor, w: tl.Tensor, w_scales: tl.Tensor, w_zeros: tl.Tensor, t: int,
    n: int, K: int, C: int, ROWS: int, SPLIT: int, E: tl.Const,
) -> tl.Tile:  # fmt: skip
    """`weighted_sums` with the weights of `int4_groups`, SPLIT groups at a time."""
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for c in tl.static_range(C):
        e, part = tl.load(experts, (t, c)), tl.load(weights, (t, c))
        for k in tl.static_range(K // (SPLIT * GROUP)):
            s = tl.load(w_scales, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
            z = tl.load(w_zeros, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
            a = group_inputs(tl.load(x, (t, c, k), shape=(1, 1, SPLIT * GROUP)).reshape((1, SPLIT * GROUP)), SPLIT)
            words = tl.load(w, (e, n, k), shape=(1, ROWS, SPLIT * WORDS)).reshape((ROWS, SPLIT * WORDS))
            acc += group_sums(a, words, s, z, SPLIT, ROWS, E) * part
    return each_row(row_sums(acc, E))
