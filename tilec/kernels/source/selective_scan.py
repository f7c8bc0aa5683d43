"""The selective scan of Mamba (Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023)."""

from selective_parts import B, D, E, N, T, of_channels, of_states, of_token, rates, then

import tilec as tl


class P(tl.Dim):
    """chunks of tokens"""


@tl.kernel
def selective_scan(
    u: tl.In[E, B, T, D],
    delta: tl.In[E, B, T, D],
    a: tl.In[tl.f32, D, N],
    b: tl.In[E, B, T, N],
    c: tl.In[E, B, T, N],
    skip: tl.In[tl.f32, D],
    y: tl.Out[E, B, T, D],
    states: tl.Out[tl.f32, B, P, D, N],
    *,
    E: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
    STATES: tl.Const,
    MULTIPLE: tl.Const,
):
    """`h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * u[t] * b[t]` and `y[t] = sum(h[t] * c[t]) + skip * u[t]` of each
    channel, with N states, in f32; y is rounded once. `states` are those before each chunk of BT tokens.

    A block takes BD channels of a sequence, a chunk at a time; there are at most STATES states. Tokens after the end change no
    state, since their `delta` is 0."""
    tl.requires(N <= STATES and tl.cdiv(T, BT) == P and D % MULTIPLE == 0)
    tl.requires(T <= 1073741824)
    tl.grid(tl.cdiv(D, BD), B)
    d, s = tl.bid(0), tl.bid(1)
    rate = rates(a, d, BD, STATES)
    through = tl.load(skip, d, shape=BD, pad=0)[None, :]
    state = tl.zeros((1, BD, STATES), tl.f32)
    for i in range(P):
        t = i * BT
        tl.store(states, (s, i, d, 0), state[None, :, :, :], mask=True)
        time, x = of_channels(delta, s, t, d, BT, BD), of_channels(u, s, t, d, BT, BD)
        step = tl.exp2(time * rate, fast=True), time * x * of_states(b, s, t, BT, STATES)
        decays, inner = tl.scan(then, step, 0)
        h = inner + decays * state
        out = tl.sum(h * of_states(c, s, t, BT, STATES), axis=2) + x.reshape((BT, BD)) * through
        tl.store(y, (s, i, d), out.astype(E)[None, :, :], mask=True)
        state = of_token(h, BT - 1, BT)
