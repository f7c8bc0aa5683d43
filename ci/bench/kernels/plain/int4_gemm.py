"""`out = a @ w.T` with w of signed 4 bits (nibble - 8), two in a byte, a scale for each 64 along the depth."""

from typing import Literal

import tilec as tl


class M(tl.Dim):
    """rows of activations"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.kernel
def int4_gemm(
    a: tl.In[tl.bf16, M, K],
    packed: tl.In[tl.u8, N, Literal["K // 2"]],
    scales: tl.In[tl.bf16, N, Literal["K // 64"]],
    out: tl.Out[tl.bf16, M, N],
    *,
    BM: tl.Const,
    BN: tl.Const,
):
    tl.requires(K % 64 == 0)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(K // 64):
        x = tl.load(a, (m, k), shape=(BM, 64), pad=0)
        p = tl.load(packed, (n, k), shape=(BN, 32), pad=0).astype(tl.i32)
        scale = tl.load(scales, (n, k), shape=(BN, 1), pad=0).astype(tl.f32)
        q = tl.join((p & 15) - 8, (p >> 4) - 8).reshape((BN, 64))
        w = (q.astype(tl.f32) * scale).astype(tl.bf16)
        acc = tl.mma(x, w.T, acc)
    tl.store(out, (m, n), acc.astype(tl.bf16), mask=True)
