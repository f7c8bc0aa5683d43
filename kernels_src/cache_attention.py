"""Attention of the query heads of one key head, (8, D) in halves, to a cache: what kernels of heads without a norm share."""

import tilec as tl


@tl.function
def attended(
    state: tuple[tl.Tile, tl.Tile, tl.Tile], low: tl.Tile, high: tl.Tile, k_cache: tl.Tensor, v_cache: tl.Tensor, b: int,
    head: int, j: int, slot: tl.Tile, log2_scale: tl.Tile, BN: int, D: int, E: tl.Const,
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """Online softmax (Milakov and Gimelshein, 2018) over tile `j` of a sequence's cache, of its slots before `slot`.

    `state`: of each query, the greatest score so far, times log2(e), and the sum of powers; their mean of values, (D, 8).
    """
    total, acc, top = state
    keys_low = tl.reshape(tl.load(k_cache, offset=(b, j * BN, head, 0), shape=(1, BN, 1, D // 2)), (BN, D // 2))
    keys_high = tl.reshape(tl.load(k_cache, offset=(b, j * BN, head, D // 2), shape=(1, BN, 1, D // 2)), (BN, D // 2))
    v = tl.reshape(tl.load(v_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
    s = tl.mma(keys_high, high.T, tl.mma(keys_low, low.T, tl.zeros((BN, 8), tl.f32)))
    s = tl.where((j * BN + tl.arange(BN))[:, None] < slot, s, -tl.inf)
    higher = tl.maximum(top, tl.max(s, axis=0) * log2_scale)
    p = tl.exp2(s * log2_scale - higher[None, :], fast=True)
    shrink = tl.exp2(top - higher, fast=True)
    return total * shrink + tl.sum(p, axis=0), tl.mma(v.T, tl.astype(p, E), acc * shrink[None, :]), higher


@tl.function
def with_new_token(
    state: tuple[tl.Tile, tl.Tile, tl.Tile], low: tl.Tile, high: tl.Tile, new_low: tl.Tile, new_high: tl.Tile, value: tl.Tile,
    log2_scale: tl.Tile,
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """`attended` of one key more, (1, D) f32 in halves, and its value, (D,) f32."""
    total, acc, top = state
    s_new = tl.sum(low.astype(tl.f32) * new_low, axis=1) + tl.sum(high.astype(tl.f32) * new_high, axis=1)
    higher = tl.maximum(top, s_new * log2_scale)
    p_new = tl.exp2(s_new * log2_scale - higher, fast=True)
    shrink = tl.exp2(top - higher, fast=True)
    return total * shrink + p_new, acc * shrink[None, :] + value[:, None] * p_new[None, :], higher
