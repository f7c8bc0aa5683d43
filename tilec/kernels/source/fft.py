"""Discrete Fourier transforms of rows of a power of two of elements (Cooley and Tukey, 1965)."""

from typing import Literal

import tilec as tl


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def reversed_bits(i: tl.Tile, N: int) -> tl.Tile:
    """The positions whose bits are those of i in reverse order, of as many bits as positions below N have, at most 12: swaps of
    neighbors, pairs and so on reverse 16 bits."""
    swapped = ((i & 0x55555555) << 1) | ((i >> 1) & 0x55555555)
    swapped = ((swapped & 0x33333333) << 2) | ((swapped >> 2) & 0x33333333)
    swapped = ((swapped & 0x0F0F0F0F) << 4) | ((swapped >> 4) & 0x0F0F0F0F)
    swapped = ((swapped & 0x00FF00FF) << 8) | ((swapped >> 8) & 0x00FF00FF)
    return (((swapped & 0x0000FFFF) >> 4) * N >> 12) & (N - 1)


@tl.function
def stage(re: tl.Tile, im: tl.Tile, roots: tl.Tensor, sign: tl.f32, half: int, N: int) -> tuple[tl.Tile, tl.Tile]:
    """Transforms of `2 * half` elements out of pairs of those of `half`: sums and differences with the second times a root."""
    i = tl.arange(N)[None, :]
    is_second = (i & half) != 0
    root = (i & (half - 1)) * (N // (2 * half))
    c, s = tl.gather(roots, (root, 0)), tl.gather(roots, (root, 1)) * sign
    turned_re, turned_im = re * c - im * s, re * s + im * c
    re, im = tl.where(is_second, turned_re, re), tl.where(is_second, turned_im, im)
    other_re, other_im = tl.butterfly(re, 1, half), tl.butterfly(im, 1, half)
    return tl.where(is_second, other_re - re, re + other_re), tl.where(is_second, other_im - im, im + other_im)


@tl.kernel
def fft(
    x: tl.In[tl.f32, T, N, Literal[2]],
    roots: tl.In[tl.f32, N, Literal[2]],
    out: tl.Out[tl.f32, T, N, Literal[2]],
    sign: tl.f32,
    scale: tl.f32,
    *,
    N: tl.Const,
    ROWS: tl.Const,
):
    """`out[t, k] = scale * sum(x[t, j] * root ** (sign * j * k) for j in range(N))`, with `root = roots[1]`; the last axis has
    real and imaginary parts. A block transforms ROWS rows, which it reads in the order of reversed bits."""
    assert N <= 4096 and N & (N - 1) == 0
    tl.grid(tl.cdiv(T, ROWS))
    rows = (tl.bid(0) * ROWS + tl.arange(ROWS))[:, None]
    at = reversed_bits(tl.arange(N), N)[None, :]
    re, im = tl.gather(x, (rows, at, 0), pad=0), tl.gather(x, (rows, at, 1), pad=0)
    if N >= 2:
        re, im = stage(re, im, roots, sign, 1, N)
    if N >= 4:
        re, im = stage(re, im, roots, sign, 2, N)
    if N >= 8:
        re, im = stage(re, im, roots, sign, 4, N)
    if N >= 16:
        re, im = stage(re, im, roots, sign, 8, N)
    if N >= 32:
        re, im = stage(re, im, roots, sign, 16, N)
    if N >= 64:
        re, im = stage(re, im, roots, sign, 32, N)
    if N >= 128:
        re, im = stage(re, im, roots, sign, 64, N)
    if N >= 256:
        re, im = stage(re, im, roots, sign, 128, N)
    if N >= 512:
        re, im = stage(re, im, roots, sign, 256, N)
    if N >= 1024:
        re, im = stage(re, im, roots, sign, 512, N)
    if N >= 2048:
        re, im = stage(re, im, roots, sign, 1024, N)
    if N >= 4096:
        re, im = stage(re, im, roots, sign, 2048, N)
    tl.store(out, (tl.bid(0), 0, 0), tl.join(re * scale, im * scale), mask=True)
