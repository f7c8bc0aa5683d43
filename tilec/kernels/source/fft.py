"""Discrete Fourier transforms of rows of a power of two of elements (Cooley and Tukey, 1965).

A row is a polynomial, and its transform are the values at roots of unity. A stage takes remainders of polynomials by `z ** half
- r` and `z ** half + r`, with one product for two elements; after the last stage these are values, in order of reversed bits.
"""
# A comparison of tiles is a bool to a type checker.
# pyright: reportArgumentType=false

from typing import Literal

import tilec as tl


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def exchanged(a: tl.Tile, b: tl.Tile, is_second: tl.Tile, half: int) -> tuple[tl.Tile, tl.Tile]:
    """Swap the bit that tells `a` from `b` with bit `half` of positions: half of the elements move."""
    moved = tl.butterfly(tl.where(is_second, a, b), 1, half)
    return tl.where(is_second, moved, a), tl.where(is_second, b, moved)


@tl.function
def stage(a: tl.Tile, b: tl.Tile, roots: tl.Tensor, sign: tl.f32, half: int, N: int) -> tuple[tl.Tile, tl.Tile]:
    """Remainders of polynomials of `2 * half` coefficients, of which `a` gets the first half and `b` the second one."""
    i, part = tl.arange(N // 2)[None, :, None], tl.arange(2)[None, None, :]
    a, b = exchanged(a, b, (i & half) != 0, half)
    c, s = tl.split(tl.gather(roots, (i // half, part)))
    re, im = tl.split(b)
    turned = tl.join(re * c - im * (s * sign), re * (s * sign) + im * c)
    return a + turned, a - turned


@tl.function
def bit_moved(x: tl.Tile, first: int, ROWS: int, N: int) -> tl.Tile:
    """The last bit of positions comes after as many as `first` numbers have."""
    bits = x.reshape((ROWS, first, N // (4 * first), 2, 2))
    return tl.permute(bits, (0, 1, 3, 2, 4)).reshape((ROWS, N // 2, 2))


@tl.function
def in_order(x: tl.Tile, ROWS: int, N: int) -> tl.Tile:
    """The elements at positions of reversed bits."""
    if N >= 8:
        x = bit_moved(x, 1, ROWS, N)
    if N >= 16:
        x = bit_moved(x, 2, ROWS, N)
    if N >= 32:
        x = bit_moved(x, 4, ROWS, N)
    if N >= 64:
        x = bit_moved(x, 8, ROWS, N)
    if N >= 128:
        x = bit_moved(x, 16, ROWS, N)
    if N >= 256:
        x = bit_moved(x, 32, ROWS, N)
    if N >= 512:
        x = bit_moved(x, 64, ROWS, N)
    if N >= 1024:
        x = bit_moved(x, 128, ROWS, N)
    if N >= 2048:
        x = bit_moved(x, 256, ROWS, N)
    if N >= 4096:
        x = bit_moved(x, 512, ROWS, N)
    return x


@tl.kernel
def fft(
    x: tl.In[tl.f32, T, N, Literal[2]],
    roots: tl.In[tl.f32, N, Literal[2]],
    out: tl.Out[tl.f32, T, Literal["2 * N"]],
    sign: tl.f32,
    scale: tl.f32,
    *,
    N: tl.Const,
    ROWS: tl.Const,
):
    """Elements k of row t of the result, its real part before its imaginary part, are `scale * sum(x[t, j] * exp(sign * 2j * pi
    * j * k / N) for j in range(N))`; `roots` are those of `fft_roots`. A block transforms ROWS rows, whose halves are two
    tiles. Rows of `out` are flat, since a thread has neighbors, which it then writes 16 bytes at a time."""
    assert N <= 4096 and N & (N - 1) == 0
    tl.grid(tl.cdiv(T, ROWS))
    low = tl.load(x, (tl.bid(0), 0, 0), shape=(ROWS, N // 2, 2), pad=0)
    high = tl.load(x, (tl.bid(0), 1, 0), shape=(ROWS, N // 2, 2), pad=0)
    a, b = low + high, low - high
    if N >= 4:
        a, b = stage(a, b, roots, sign, N // 4, N)
    if N >= 8:
        a, b = stage(a, b, roots, sign, N // 8, N)
    if N >= 16:
        a, b = stage(a, b, roots, sign, N // 16, N)
    if N >= 32:
        a, b = stage(a, b, roots, sign, N // 32, N)
    if N >= 64:
        a, b = stage(a, b, roots, sign, N // 64, N)
    if N >= 128:
        a, b = stage(a, b, roots, sign, N // 128, N)
    if N >= 256:
        a, b = stage(a, b, roots, sign, N // 256, N)
    if N >= 512:
        a, b = stage(a, b, roots, sign, N // 512, N)
    if N >= 1024:
        a, b = stage(a, b, roots, sign, N // 1024, N)
    if N >= 2048:
        a, b = stage(a, b, roots, sign, N // 2048, N)
    if N >= 4096:
        a, b = stage(a, b, roots, sign, 1, N)
    tl.store(out, (tl.bid(0), 0), in_order(a * scale, ROWS, N).reshape((ROWS, N)), mask=True)
    tl.store(out, (tl.bid(0), 1), in_order(b * scale, ROWS, N).reshape((ROWS, N)), mask=True)
