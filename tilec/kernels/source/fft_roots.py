"""The roots of unity of a Fourier transform."""

from typing import Literal

import tilec as tl

HALF_TURN = 3.141592653589793


class N(tl.Dim):
    """elements of a row"""


@tl.function
def reversed_bits(i: tl.Tile) -> tl.Tile:
    """The 16 bits of i in reverse order: swaps of neighbors, pairs and so on."""
    swapped = ((i & 0x5555) << 1) | ((i >> 1) & 0x5555)
    swapped = ((swapped & 0x3333) << 2) | ((swapped >> 2) & 0x3333)
    swapped = ((swapped & 0x0F0F) << 4) | ((swapped >> 4) & 0x0F0F)
    return ((swapped & 0x00FF) << 8) | ((swapped >> 8) & 0x00FF)


@tl.kernel
def fft_roots(roots: tl.Out[tl.f32, N, Literal[2]], *, BLOCK: tl.Const):
    """`roots[i] = cos(pi * r), sin(pi * r)`, where the binary digits of r after the point are the bits of i from the lowest one
    on: every stage of `fft` takes the first of the same roots. A block computes BLOCK roots."""
    tl.requires(N <= 65536)
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    angle = reversed_bits(i).astype(tl.f32) * (HALF_TURN / 65536)
    tl.store(roots, (tl.bid(0), 0), tl.join(tl.cos(angle), tl.sin(angle)), mask=True)
