"""The roots of unity of a Fourier transform."""

from typing import Literal

import tilec as tl

TAU = 6.283185307179586


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def fft_roots(roots: tl.Out[tl.f32, N, Literal[2]], *, BLOCK: tl.Const):
    """`roots[i] = cos(tau * i / N), sin(tau * i / N)`; a block computes BLOCK roots."""
    tl.requires(N <= 1048576)
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    angle = i.astype(tl.f32) * (TAU / tl.f32(N))
    tl.store(roots, (tl.bid(0), 0), tl.join(tl.cos(angle), tl.sin(angle)), mask=True)
