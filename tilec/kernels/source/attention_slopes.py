"""The slope of each query and key, for attention with biases of distances (Press et al., ALiBi, 2021)."""

from typing import Literal

from attention_parts import HKV, LOG2E, G, N

import tilec as tl


class T(tl.Dim):
    """queries of all sequences"""


class S(tl.Dim):
    """keys of all sequences"""


@tl.kernel
def attention_slopes(
    slopes: tl.In[tl.f32, N, HKV, G],
    spans: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal[4], Literal["ROWS"]],
    rows: tl.Out[tl.f32, HKV, G, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal["ROWS"]],
    T: tl.i32,
    S: tl.i32,
    *,
    ROWS: tl.Const,
):
    """Those of heads, times log2(e), for each row of the tiles of `attention_spans`. `slopes` are of each sequence, or one row
    is of all; numbers of sequences are not trusted.
    """
    tl.requires(T >= 1, T <= 16777216, S >= 1, S <= 16777216, HKV * G <= 65535)
    tl.grid(tl.cdiv(T, ROWS) + tl.cdiv(S, ROWS), HKV * G)
    tile, head, member = tl.bid(0), tl.bid(1) // G, tl.bid(1) % G
    sequence = tl.reshape(tl.load(spans, (tile, 3, 0), shape=(1, 1, ROWS)), ROWS)
    own = tl.gather(slopes, (tl.minimum(tl.maximum(sequence, 0), N - 1), head, member))
    tl.store(rows, (head, member, tile, 0), tl.reshape(own * LOG2E, (1, 1, 1, ROWS)))
