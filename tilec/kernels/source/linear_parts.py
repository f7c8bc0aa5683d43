"""Dims that the kernels of a linear layer with a cross entropy share."""

import tilec as tl

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


class E(tl.Element):
    """bf16 or f16"""


class L(tl.Element):
    """i32 or i64"""


class T(tl.Dim):
    """number of tokens"""


class H(tl.Dim):
    """elements of a token"""


class V(tl.Dim):
    """size of the vocabulary"""


class TILES(tl.Dim):
    """tiles of the vocabulary"""


@tl.function
def logits_of_tile(x: tl.Tensor, weight: tl.Tensor, m: tl.Scalar, n: tl.Scalar, BM: int, BN: int, BK: int) -> tl.Tile:
    """Logits of BM tokens and BN classes in units of log 2; -inf past the last class."""
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(H, BK)):
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.load(weight, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(a, b.T, acc)
    return tl.where((n * BN + tl.arange(BN))[None, :] < V, acc * LOG2E, -tl.inf)


@tl.function
def log_sums(maxima: tl.Tensor, sums: tl.Tensor, i: tl.Scalar, ROWS: int, BLOCK: int) -> tl.Tile:
    """`log(sum(exp(logits)))` of ROWS tokens, of which tiles have the largest logit in units of log 2 and a sum."""
    top = tl.full((BLOCK, ROWS), -3.0e38, tl.f32)
    for j in range(tl.cdiv(TILES, BLOCK)):
        top = tl.maximum(top, tl.load(maxima, (j, i), shape=(BLOCK, ROWS), pad=-tl.inf))
    high = tl.max(top, axis=0, keepdims=True)
    total = tl.zeros((BLOCK, ROWS), tl.f32)
    for j in range(tl.cdiv(TILES, BLOCK)):
        tops = tl.load(maxima, (j, i), shape=(BLOCK, ROWS), pad=-tl.inf)
        total = total + tl.load(sums, (j, i), shape=(BLOCK, ROWS), pad=0) * tl.exp2(tops - high, fast=True)
    return (tl.log2(tl.sum(total, axis=0), fast=True) + tl.reshape(high, (ROWS,))) * LN2


@tl.function
def logits_of_labels(x: tl.Tensor, weight: tl.Tensor, labels: tl.Tensor, i: tl.Scalar, ROWS: int, BLOCK: int) -> tl.Tile:
    """`x[t] @ weight[labels[t]]` of ROWS tokens; -inf for a label outside of the vocabulary."""
    chosen = tl.zeros((ROWS,), tl.f32)
    for r in range(ROWS):
        t = i * ROWS + r
        label = tl.load(labels, t, pad=0)
        product = tl.zeros((1, BLOCK), tl.f32)
        for h in range(tl.cdiv(H, BLOCK)):
            a = tl.load(x, (t, h), shape=(1, BLOCK), pad=0).astype(tl.f32)
            product = product + a * tl.load(weight, (label, h), shape=(1, BLOCK), pad=0).astype(tl.f32)
        chosen = tl.where(tl.arange(ROWS) == r, tl.sum(product), chosen)
    own = tl.load(labels, i, shape=ROWS, pad=0)
    return tl.where((own >= 0) & (own < V), chosen, -tl.inf)
