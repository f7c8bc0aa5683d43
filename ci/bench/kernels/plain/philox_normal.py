"""Normal numbers by Philox-4x32-10 and Box-Muller."""

import math

import tilec as tl


class N(tl.Dim):
    """numbers"""


@tl.function
def unit(x):
    return ((x >> 9).astype(tl.f32) + 0.5) * (1.0 / 8388608.0)


@tl.kernel
def philox_normal(out: tl.Out[tl.f32, N], seed: tl.u64, *, BLOCK: tl.Const):
    tl.grid(tl.cdiv(N, 4 * BLOCK))
    i = tl.bid(0)
    k0 = tl.u32(seed & 0xFFFFFFFF)
    k1 = tl.u32(seed >> 32)
    c0 = (i * BLOCK + tl.arange(BLOCK)).astype(tl.u32)
    c1 = tl.zeros((BLOCK,), tl.u32)
    c2 = tl.zeros((BLOCK,), tl.u32)
    c3 = tl.zeros((BLOCK,), tl.u32)
    for _ in range(10):
        h0, l0 = tl.mulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        h1, l1 = tl.mulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    ra, ta = tl.sqrt(-2.0 * tl.log(unit(c0))), unit(c1) * (2 * math.pi)
    rb, tb = tl.sqrt(-2.0 * tl.log(unit(c2))), unit(c3) * (2 * math.pi)
    za = tl.join(ra * tl.cos(ta), ra * tl.sin(ta))
    zb = tl.join(rb * tl.cos(tb), rb * tl.sin(tb))
    z = tl.join(za, zb).permute((0, 2, 1)).reshape((4 * BLOCK,))
    tl.store(out, i, z, mask=True)
