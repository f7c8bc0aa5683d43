"""INT4 weights as an operand of tensor cores, in the order in which they are stored: of products of a prompt's experts."""

import tilec as tl

from .int4_groups import GROUP, WORDS


@tl.function
def codes_in_order(words: tl.Tile, zeros: tl.Tile, rows: int, dtype: tl.Const) -> tl.Tile:
    """Codes minus their zero points, times 2^-6 in bf16 and 2^-9 in f16, in the order of columns; (rows, WORDS) of u32 and
    (rows) of u8 -> (rows, GROUP). Two fields that are side by side become the low bits of the halves of a word."""
    up = 2.0**15 if dtype == tl.f16 else 2.0**127
    bytes_ = words[:, :, None] >> (8 * tl.arange(4)).astype(tl.u32)[None, None, :]
    pairs = bytes_ & 0x0000000F | bytes_ << 12 & 0x000F0000
    q = tl.bitcast(tl.join(pairs.astype(tl.u16), (pairs >> 16).astype(tl.u16)), dtype)
    below = tl.bitcast(zeros.astype(tl.u16), dtype) * tl.full((rows,), -up, dtype)
    return (q * tl.full((rows, WORDS, 4, 2), up, dtype) + below[:, None, None, None]).reshape((rows, GROUP))
