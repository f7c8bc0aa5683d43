"""Discrete Fourier transforms of rows of a power of two of elements (Cooley and Tukey, 1965).

A position is a number of up to three digits, of radix A, B and C. A thread has the numbers that differ in one digit, and
transforms them by itself; between two stages numbers change places, so that those of a thread differ in the next digit. A
complex number is a pair of tiles, its real and its imaginary part.
"""

from typing import Any, Literal

import tilec as tl

EIGHTH = 0.7071067811865476
C16 = 0.9238795325112867
S16 = 0.3826834323650898


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def times(x: tuple[Any, ...], c: Any, s: Any) -> tuple[Any, ...]:
    """The product of x and `c + 1j * s`."""
    return x[0] * c - x[1] * s, x[0] * s + x[1] * c


@tl.function
def turned_by(x: tuple[Any, ...], k: int) -> tuple[Any, ...]:
    """The product of x and `exp(-2j * pi * k / 16)`, for the k that the transforms below need."""
    if k == 0:
        return x
    if k == 1:
        return times(x, C16, -S16)
    if k == 2:
        return EIGHTH * (x[0] + x[1]), EIGHTH * (x[1] - x[0])
    if k == 3:
        return times(x, S16, -C16)
    if k == 4:
        return x[1], -x[0]
    if k == 6:
        return EIGHTH * (x[1] - x[0]), -EIGHTH * (x[0] + x[1])
    assert k == 9
    return times(x, -C16, S16)


@tl.function
def two(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The transform of two numbers."""
    return (a[0] + b[0], a[1] + b[1]), (a[0] - b[0], a[1] - b[1])


@tl.function
def four(a: tuple[Any, ...], b: tuple[Any, ...], c: tuple[Any, ...], d: tuple[Any, ...]) -> tuple[Any, ...]:
    """The transform of four numbers."""
    sum_even, difference_even = two(a, c)
    sum_odd, difference_odd = two(b, d)
    first, third = two(sum_even, sum_odd)
    second, fourth = two(difference_even, turned_by(difference_odd, 4))
    return first, second, third, fourth


@tl.function
def transformed(xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The transform of 2, 4, 8 or 16 numbers."""
    if len(xs) == 2:
        return two(xs[0], xs[1])
    if len(xs) == 4:
        return four(xs[0], xs[1], xs[2], xs[3])
    if len(xs) == 8:
        even, odd = four(xs[0], xs[2], xs[4], xs[6]), four(xs[1], xs[3], xs[5], xs[7])
        low, high = (), ()
        for k in tl.static_range(4):
            a, b = two(even[k], turned_by(odd[k], 2 * k))
            low, high = (*low, a), (*high, b)
        return low + high
    assert len(xs) == 16
    columns: tuple[Any, ...] = ()
    for j in tl.static_range(4):
        columns = (*columns, four(xs[j], xs[j + 4], xs[j + 8], xs[j + 12]))
    rows = ()
    for k in tl.static_range(4):
        a, b, c, d = columns[0][k], columns[1][k], columns[2][k], columns[3][k]
        rows += four(a, turned_by(b, k), turned_by(c, 2 * k), turned_by(d, 3 * k))
    return rows[0::4] + rows[1::4] + rows[2::4] + rows[3::4]


@tl.function
def multiplied(xs: tuple[Any, ...], roots: tl.Tensor, start: int, REST: int) -> tuple[Any, ...]:
    """Number k of xs, which have REST elements each, times row k of the roots that begin at `start`."""
    m, part = tl.arange(REST)[None, None, :, None], tl.arange(2)[None, None, None, :]
    found = (xs[0],)
    for k in tl.static_range(1, len(xs)):
        c, s = tl.split(tl.gather(roots, (m + (start + k * REST), part)))
        found = (*found, times(xs[k], c, s))
    return found


@tl.function
def together(xs: tuple[Any, ...]) -> tl.Tile:
    """A power of two of tiles along new last axes of two elements, the first number's binary digits first."""
    for half in (8, 4, 2, 1):
        if len(xs) == 2 * half:
            joined = ()
            for k in tl.static_range(half):
                joined = (*joined, tl.join(xs[k], xs[k + half]))
            xs = joined
    return xs[0]


@tl.function
def apart(x: tl.Tile, COUNT: int) -> tuple[Any, ...]:
    """The inverse of `together`, of a tile whose last axis has COUNT elements."""
    bits = ()
    for count in (1, 2, 4, 8):
        if count < COUNT:
            bits = (*bits, 2)
    xs = (x.reshape(x.shape[:-1] + bits),)
    for _ in bits:
        first, second = (), ()
        for one in xs:
            a, b = tl.split(one)
            first, second = (*first, a), (*second, b)
        xs = first + second
    return xs


@tl.function
def exchanged(xs: tuple[Any, ...], ROWS: int, DONE: int, NEXT: int, REST: int) -> tuple[Any, ...]:
    """Numbers that differ in a digit of results become such that differ in the next digit of positions: from tiles of elements
    `[ROWS, DONE, NEXT, REST]` to NEXT tiles of `[ROWS, len(xs) * DONE, REST]`."""
    parts: tuple[Any, ...] = ()
    for part in tl.static_range(2):
        mine = ()
        for x in xs:
            mine = (*mine, x[part].reshape((ROWS, DONE, NEXT, REST)))
        moved = tl.permute(together(mine).reshape((ROWS, DONE, NEXT, REST, len(xs))), (0, 4, 1, 3, 2))
        parts = (*parts, apart(moved.reshape((ROWS, len(xs) * DONE, REST, NEXT)), NEXT))
    pairs = ()
    for k in tl.static_range(NEXT):
        pairs = (*pairs, (parts[0][k], parts[1][k]))
    return pairs


@tl.kernel
def fft(
    x: tl.In[tl.f32, T, N, Literal[2]],
    roots: tl.In[tl.f32, Literal["N + B * C"], Literal[2]],
    out: tl.Out[tl.f32, T, N, Literal[2]],
    sign: tl.f32,
    scale: tl.f32,
    *,
    N: tl.Const,
    A: tl.Const,
    B: tl.Const,
    C: tl.Const,
    ROWS: tl.Const,
):
    """`out[t, k] = scale * sum(x[t, j] * exp(sign * 2j * pi * j * k / N) for j in range(N))` for a sign of 1 or -1, of numbers
    whose real and imaginary parts lie side by side; `roots` are those of `fft_roots`. A block transforms ROWS rows."""
    assert N == A * B * C
    tl.grid(tl.cdiv(T, ROWS))
    xs = ()
    for k in tl.static_range(A):
        re, im = tl.split(tl.load(x, (tl.bid(0), k, 0), shape=(ROWS, B * C, 2), pad=0))
        shape = (ROWS, 1, B * C)
        xs = (*xs, (re.reshape(shape), im.reshape(shape) * -sign))  # the transform of conjugates, conjugated, is the other one
    xs = transformed(xs)
    if B > 1:
        xs = transformed(exchanged(multiplied(xs, roots, 0, B * C), ROWS, 1, B, C))
    if C > 1:
        xs = transformed(exchanged(multiplied(xs, roots, N, C), ROWS, A, C, 1))
    for k in tl.static_range(len(xs)):
        pair = tl.join(xs[k][0] * scale, xs[k][1] * (-sign * scale))
        tl.store(out, (tl.bid(0), k, 0), pair.reshape((ROWS, N // len(xs), 2)), mask=True)
