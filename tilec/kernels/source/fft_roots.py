"""The roots of unity of a Fourier transform."""

from typing import Literal

import tilec as tl

WHOLE_TURN = 6.283185307179586


class R(tl.Dim):
    """number of roots"""


@tl.kernel
def fft_roots(roots: tl.Out[tl.f32, R, Literal[2]], N: tl.i32, FIRST: tl.i32, SECOND: tl.i32, *, BLOCK: tl.Const):
    """The roots of two stages of `fft` for rows of N numbers. The first N are rows of FIRST: row k has `exp(-2j * pi * k * m /
    N)` for m below FIRST. The other `R - N` are rows of SECOND, with `R - N` in place of N. A block computes BLOCK roots."""
    tl.requires(N >= 1, N <= 65536, FIRST >= 1, SECOND >= 1, R >= N, R <= 2 * N)
    tl.grid(tl.cdiv(R, BLOCK))
    i = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    is_first = i < N
    j = tl.where(is_first, i, i - N)
    row, m = tl.where(is_first, j // FIRST, j // SECOND), tl.where(is_first, j % FIRST, j % SECOND)
    turn = tl.minimum(row * m, 65536).astype(tl.f32) / tl.where(is_first, N, tl.maximum(R - N, 1)).astype(tl.f32)
    angle = tl.where(turn > 0.5, turn - 1.0, turn) * -WHOLE_TURN
    tl.store(roots, (tl.bid(0), 0), tl.join(tl.cos(angle), tl.sin(angle)), mask=True)
