"""Weights of four bits, and products of up to eight rows of activations with them on tensor cores.

The weights are unsigned codes with a scale and a zero point for each row and each group of 128 columns, as AWQ and GPTQ have
them (Lin et al., 2023; Frantar et al., 2022).

`weights[n, k] = (q[n, k] - w_zeros[k // 128, n]) * w_scales[k // 128, n]`, and bits 4 i to 4 i + 3 of `w[n, j]` are
`q[n, 8 j + i]`. Of a file without zero points, each is 8. Scales and zero points have the rows of weights along their last
axis: the threads of a block, which has several rows, then find theirs side by side.

The lowest bits of a float count in its smallest steps, 2^-133 in bf16 and 2^-24 in f16: so a field of a word is a float where
it stands, and one fused multiply-add moves it up and subtracts its zero point, for two codes at once. The results are codes
times 2^-6 and 2^-9, exact in eight bits. Products with activations are exact, and summed in f32, so nothing rounds or overflows
that would not with weights of 16 bits.
"""

import tilec as tl

from .eight_rows import eight_rows

GROUP = 128
"""Columns with one scale and one zero point for each row."""
WORDS = GROUP // 8
"""Words of a group."""
LANES = 4
"""Threads that share the words of a row and group: neighboring words are one thread's."""


@tl.function
def codes(words: tl.Tile, zeros: tl.Tile, parts: int, rows: int, dtype: tl.Const) -> tl.Tile:
    """Codes minus their zero points, times 2^-6 in bf16 and 2^-9 in f16, in the order of `group_inputs`; (rows, parts * WORDS)
    of u32 and (parts, rows) of u8 -> (parts, rows, GROUP)."""
    up = 2.0**15 if dtype == tl.f16 else 2.0**127
    each = (parts, rows, WORDS, 4)
    words = tl.permute(words.reshape((rows, parts, LANES, WORDS // LANES)), (1, 0, 3, 2)).reshape((parts, rows, WORDS, 1))
    field = tl.arange(4)[None, None, None, :]
    halves = tl.broadcast_to(words, each) >> (8 * (field // 2)).astype(tl.u32)
    is_low = tl.broadcast_to(field % 2 == 0, each)
    pairs = tl.where(is_low, halves & 0x000F000F, halves & 0x00F000F0)  # fields i and i + 4, in the halves of a word
    q = tl.bitcast(tl.join(pairs.astype(tl.u16), (pairs >> 16).astype(tl.u16)), dtype)
    unit = tl.where(is_low, up, up / 16.0).astype(dtype)[:, :, :, :, None]
    below = tl.bitcast(zeros.astype(tl.u16), dtype) * tl.full((parts, rows), -up, dtype)
    return (q * unit + below[:, :, None, None, None]).reshape((parts, rows, GROUP))


@tl.function
def group_inputs(x: tl.Tile, parts: int) -> tl.Tile:
    """Activations in the order in which `codes` has those of each group, eight times: tensor cores multiply by eight columns;
    (1, parts * GROUP) -> (parts, GROUP, 8)."""
    ordered = tl.permute(x.reshape((parts, LANES, WORDS // LANES, 2, 4)), (0, 2, 1, 4, 3))
    return tl.broadcast_to(ordered.reshape((parts, GROUP, 1)), (parts, GROUP, 8))


@tl.function
def group_rows(x: tl.Tile, count: int, parts: int) -> tl.Tile:
    """As `group_inputs`, of several rows, each in 8 / count of the columns; (count, parts * GROUP) -> (parts, GROUP, 8), where
    `count` divides 8."""
    eight = eight_rows(x, count, parts * GROUP).reshape((8, parts, LANES, WORDS // LANES, 2, 4))
    return tl.permute(eight, (1, 3, 2, 5, 4, 0)).reshape((parts, GROUP, 8))


@tl.function
def group_sums(
    x: tl.Tile, words: tl.Tile, scales: tl.Tile, zeros: tl.Tile, parts: int, rows: int, dtype: tl.Const
) -> tl.Tile:  # fmt: skip
    """Sums of products over each group, as multiples of the unit of `codes`, times their scales; the activations of
    `group_inputs` or `group_rows`, (rows, parts * WORDS) of u32 and (parts, rows) twice -> (parts, rows, 8)."""
    sums = tl.mma(codes(words, zeros, parts, rows, dtype), x, tl.zeros((parts, rows, 8), tl.f32))
    return sums * scales.astype(tl.f32)[:, :, None]


@tl.function
def row_sums(sums: tl.Tile, dtype: tl.Const) -> tl.Tile:
    """The sums of whole rows from those of `group_sums`; (parts, rows, 8) -> (rows, 8)."""
    return tl.sum(sums, axis=0) * (512.0 if dtype == tl.f16 else 64.0)  # the inverse of the unit


@tl.function
def each_row(y: tl.Tile) -> tl.Tile:
    """Each of eight equal columns once; (rows, 8) -> (1, rows)."""
    return tl.max(y, axis=1)[None, :]
