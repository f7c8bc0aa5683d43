"""Dropout with the counter-based generator Philox-4x32-10 (Salmon and others, Parallel Random Numbers, SC 2011)."""

import tilec as tl

ROUNDS = 10
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """number of elements"""


@tl.function
def philox(
    counter: tl.Tile, offset_low: tl.u32, offset_high: tl.u32, seed_low: tl.u32, seed_high: tl.u32
) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile]:
    """Four tiles of u32, the words at counters `(counter, 0, offset_low, offset_high)` with the key `(seed_low, seed_high)`."""
    zero = counter ^ counter
    c0, c1, c2, c3 = counter, zero, zero + offset_low, zero + offset_high
    k0, k1 = seed_low, seed_high
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = (
            tl.mulhi(c2, MULTIPLIER_1) ^ c1 ^ k0,
            c2 * MULTIPLIER_1,
            tl.mulhi(c0, MULTIPLIER_0) ^ c3 ^ k1,
            c0 * MULTIPLIER_0,
        )
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    return c0, c1, c2, c3


@tl.kernel
def dropout(
    x: tl.In[E, N],
    out: tl.Out[E, N],
    threshold: tl.u32,
    scale: tl.f32,
    seed_low: tl.u32,
    seed_high: tl.u32,
    offset_low: tl.u32,
    offset_high: tl.u32,
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    """`out[e] = x[e] * scale` where the number of element e is at least `threshold`, else 0.

    Block i has four quarters of elements. The number of element r of quarter w is word w of the generator at counter
    `(i * BLOCK // 4 + r, 0, offset)` with key `seed`. It depends on nothing else, so that the gradient is the same kernel."""
    assert BLOCK % 4 == 0
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    counter = (i * (BLOCK // 4) + tl.arange(BLOCK // 4)).astype(tl.u32)
    v0 = tl.load(x, 4 * i, shape=BLOCK // 4, pad=0).astype(tl.f32)
    v1 = tl.load(x, 4 * i + 1, shape=BLOCK // 4, pad=0).astype(tl.f32)
    v2 = tl.load(x, 4 * i + 2, shape=BLOCK // 4, pad=0).astype(tl.f32)
    v3 = tl.load(x, 4 * i + 3, shape=BLOCK // 4, pad=0).astype(tl.f32)
    n0, n1, n2, n3 = philox(counter, offset_low, offset_high, seed_low, seed_high)
    tl.store(out, 4 * i, tl.where(n0 >= threshold, v0 * scale, 0.0).astype(E), mask=True)
    tl.store(out, 4 * i + 1, tl.where(n1 >= threshold, v1 * scale, 0.0).astype(E), mask=True)
    tl.store(out, 4 * i + 2, tl.where(n2 >= threshold, v2 * scale, 0.0).astype(E), mask=True)
    tl.store(out, 4 * i + 3, tl.where(n3 >= threshold, v3 * scale, 0.0).astype(E), mask=True)
