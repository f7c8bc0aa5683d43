"""Gradient of the selective scan."""

from selective_parts import B, D, E, N, T, of_channels, of_states, of_token, rates, then

import tilec as tl


class P(tl.Dim):
    """chunks of tokens"""


class G(tl.Dim):
    """groups of channels"""


@tl.kernel
def selective_scan_backward(
    dy: tl.In[E, B, T, D],
    u: tl.In[E, B, T, D],
    delta: tl.In[E, B, T, D],
    a: tl.In[tl.f32, D, N],
    b: tl.In[E, B, T, N],
    c: tl.In[E, B, T, N],
    skip: tl.In[tl.f32, D],
    states: tl.In[tl.f32, B, P, D, N],
    du: tl.Out[E, B, T, D],
    ddelta: tl.Out[E, B, T, D],
    da: tl.Out[tl.f32, B, D, N],
    db: tl.Out[tl.f32, G, B, T, N],
    dc: tl.Out[tl.f32, G, B, T, N],
    dskip: tl.Out[tl.f32, B, D],
    *,
    E: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
    STATES: tl.Const,
    MULTIPLE: tl.Const,
):
    """With g the gradient of the states, `g[t] = c[t] * dy[t] + exp(delta[t + 1] * a) * g[t + 1]`: a scan from the last token
    to the first. `da` and `dskip` are sums over the tokens of each sequence, `db` and `dc` over each group of BD channels; in
    f32, others are rounded once.

    A block takes a group of channels of a sequence, the last chunk first. The states before each token are computed again from
    those before its chunk."""
    tl.requires(N <= STATES and tl.cdiv(T, BT) == P and tl.cdiv(D, BD) == G and D % MULTIPLE == 0)
    tl.requires(T <= 1073741824)
    tl.grid(G, B)
    d, s = tl.bid(0), tl.bid(1)
    rate = rates(a, d, BD, STATES)
    natural = tl.load(a, (d, 0), shape=(BD, STATES), pad=0)[None, :, :]
    through = tl.load(skip, d, shape=BD, pad=0)[None, :]
    is_first = tl.arange(BT)[:, None, None] == 0
    later = tl.zeros((1, BD, STATES), tl.f32)
    of_a, of_skip = tl.zeros((BD, STATES), tl.f32), tl.zeros((BD,), tl.f32)
    for j in range(P):
        i = P - 1 - j
        t = i * BT
        before = tl.load(states, (s, i, d, 0), shape=(1, 1, BD, STATES), pad=0).reshape((1, BD, STATES))
        time, x = of_channels(delta, s, t, d, BT, BD), of_channels(u, s, t, d, BT, BD)
        slope = of_channels(dy, s, t, d, BT, BD)
        inputs, outputs = of_states(b, s, t, BT, STATES), of_states(c, s, t, BT, STATES)
        earlier = of_channels(delta, s, t - 1, d, BT, BD)
        step = (
            tl.where(is_first, 1, tl.exp2(earlier * rate, fast=True)),
            tl.where(is_first, 0, earlier * of_channels(u, s, t - 1, d, BT, BD) * of_states(b, s, t - 1, BT, STATES)),
        )
        decays, inner = tl.scan(then, step, 0)
        was = inner + decays * before
        back = tl.exp2(of_channels(delta, s, t + 1, d, BT, BD) * rate, fast=True), slope * outputs
        decays, inner = tl.scan(then, back, 0, reverse=True)
        g = inner + decays * later
        later = of_token(g, 0, BT)
        kept = tl.exp2(time * rate, fast=True) * was
        of_x = time * tl.sum(g * inputs, axis=2, keepdims=True) + slope * through[:, :, None]
        of_time = tl.sum(g * (kept * natural + x * inputs), axis=2)
        tl.store(du, (s, i, d), of_x.reshape((1, BT, BD)).astype(E), mask=True)
        tl.store(ddelta, (s, i, d), of_time[None, :, :].astype(E), mask=True)
        tl.store(db, (d, s, i, 0), tl.sum(g * (time * x), axis=1)[None, None, :, :], mask=True)
        tl.store(dc, (d, s, i, 0), tl.sum(slope * (kept + time * x * inputs), axis=1)[None, None, :, :], mask=True)
        of_a = of_a + tl.sum(g * kept * time, axis=0)
        of_skip = of_skip + tl.sum(slope * x, axis=0).reshape((BD,))
    tl.store(da, (s, d, 0), of_a[None, :, :], mask=True)
    tl.store(dskip, (s, d), of_skip[None, :], mask=True)
