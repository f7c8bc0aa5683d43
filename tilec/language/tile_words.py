"""What a kernel computes with tiles: functions of the kernel language that make them, change their shape or dtype, compute
element by element, along an axis or as a matrix product; loops, and what prints. Every tile shape is static.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilec.language.tiles import DTypeLike, Operand, Scalar, Shape, Tile, not_compiled

Axes = int | tuple[int, ...] | None
"""Axes of a reduction: negative ones count from the end, None is all of them."""

inf: Final = float("inf")
"""Positive infinity, for `pad=-inf` and running maxima."""
nan: Final = float("nan")
"""No number: a quiet NaN, for `pad=nan` before an ascending `sort`, which puts NaN last, and for `where(..., nan)`. `x != x` is
true of a NaN alone."""


def arange(n: Scalar, /) -> Tile:
    """`0, 1, ..., n - 1` as i32 of shape `(n,)`."""
    not_compiled()


def full(shape: Shape, value: Operand, dtype: DTypeLike) -> Tile:
    """A tile filled with one value."""
    not_compiled()


def zeros(shape: Shape, dtype: DTypeLike) -> Tile:
    """A tile of zeros."""
    not_compiled()


def where(condition: Tile | bool, on_true: Operand, on_false: Operand, /) -> Tile:
    """`on_true` where the condition is true, else `on_false`, element-wise."""
    not_compiled()


def maximum(a: Operand, b: Operand, /) -> Tile:
    """Element-wise larger of two."""
    not_compiled()


def minimum(a: Operand, b: Operand, /) -> Tile:
    """Element-wise smaller of two."""
    not_compiled()


def mulhi(a: Operand, b: Operand, /) -> Tile:
    """Upper half of the product of two integers of one dtype, by its sign: `a * b >> bits` of the exact product, whose width is
    twice that of the dtype. Shapes broadcast; floats and booleans are refused (E0204). PTX ISA, `mul.hi`."""
    not_compiled()


def exp2(x: Operand, /, *, fast: bool = False) -> Tile:
    """`2 ** x` of floats; accuracy and `fast` as of `exp`. The approximation is `ex2`."""
    not_compiled()


def exp(x: Operand, /, *, fast: bool = False) -> Tile:
    """`e ** x` of floats.

    Of f32 within 2 units in the last place, for all arguments: infinities, NaN, both zeros, subnormal arguments and results.
    Its operations are those that IEEE 754 defines, so the bits are the same on every chip and in the interpreter. Of narrower
    floats it is that result, rounded. With `fast=True` the chip's approximation, in f32 too: few instructions, an error that
    the PTX ISA bounds, and perhaps other bits on another chip. Here that is `ex2` of `x * log2(e)`: a relative error of 2^-22
    near 0 and of 2^-17 near the ends, and 0 for results below 2^-126. Shape and dtype are those of `x`; integers and booleans
    are refused (E0204)."""
    not_compiled()


def log2(x: Operand, /, *, fast: bool = False) -> Tile:
    """Logarithm to base 2 of floats: -infinity of 0, NaN of negative numbers; accuracy and `fast` as of `exp`. The
    approximation is `lg2`, of which near 1 only the absolute error is small, 2^-22."""
    not_compiled()


def log(x: Operand, /, *, fast: bool = False) -> Tile:
    """Natural logarithm of floats: -infinity of 0, NaN of negative numbers; accuracy and `fast` as of `exp`. The approximation
    is `lg2` times ln 2."""
    not_compiled()


def pow(x: Operand, y: Operand, /, *, fast: bool = False) -> Tile:
    """`x ** y` of floats, as C's `pow`: 1 for `y = 0` and for `x = 1`; of a negative `x` NaN, unless `y` is an integer. Shapes
    broadcast. Accuracy and `fast` as of `exp`; an exponent that is the number 2 or 3 multiplies. The approximation is
    `ex2(y * lg2(x))`: NaN for a negative `x`, and for 0 or infinity to the power 0; its error grows with the exponent of the
    result."""
    not_compiled()


def sqrt(x: Operand, /, *, fast: bool = False) -> Tile:
    """Square root of floats, rounded to nearest; NaN of negative numbers. With `fast=True` the chip's approximation (PTX ISA,
    `sqrt.approx`)."""
    not_compiled()


def rsqrt(x: Operand, /, *, fast: bool = False) -> Tile:
    """`1 / sqrt(x)` of floats: an infinity with the sign of a zero, NaN of negative numbers; accuracy and `fast` as of `exp`.
    The approximation is `rsqrt`, with an error of 2^-22.9."""
    not_compiled()


def tanh(x: Operand, /, *, fast: bool = False) -> Tile:
    """Hyperbolic tangent of floats, from -1 to 1; accuracy and `fast` as of `exp`. The approximation, `tanh`, has an error of
    2^-11: as many correct bits as an f16."""
    not_compiled()


def sigmoid(x: Operand, /, *, fast: bool = False) -> Tile:
    """`1 / (1 + exp(-x))` of floats, from 0 to 1; accuracy and `fast` as of `exp`. The approximation is `ex2` and `rcp`."""
    not_compiled()


def sin(x: Operand, /, *, fast: bool = False) -> Tile:
    """Sine of floats, in radians, from -1 to 1, NaN of infinities; accuracy and `fast` as of `exp`: of large `x` too, which
    takes a longer way from 2^16 on. The approximation, `sin`, has an absolute error of 2^-20.5 from -pi to pi, and a growing
    one outside."""
    not_compiled()


def cos(x: Operand, /, *, fast: bool = False) -> Tile:
    """Cosine of floats, in radians; as `sin`."""
    not_compiled()


def erf(x: Operand, /) -> Tile:
    """Error function of floats, for the exact GELU: from -1 to 1, of NaN NaN. Of f32 within 2 units in the last place over all
    arguments (1.77 measured, `tests/words/test_erf.py`); of narrower floats that result, rounded. Shape and dtype are those of
    `x`; integers and booleans are refused (E0204). A minimax polynomial up to 1, and above one in the exponent of `ex2` (PTX
    ISA)."""
    not_compiled()


def abs(x: Operand, /) -> Tile:
    """Absolute value."""
    not_compiled()


def floor(x: Operand, /) -> Tile:
    """Largest integral float not above x."""
    not_compiled()


def ceil(x: Operand, /) -> Tile:
    """Smallest integral float not below x."""
    not_compiled()


def round(x: Operand, /) -> Tile:
    """The integral float nearest to x; of two, the even one: -0.5, 0.5, 1.5 and 2.5 give -0, 0, 2 and 2 (PTX ISA, `cvt.rni`).
    NaN and infinities stay. Python's `round(x)` is this too: the result is a float, which `.astype(i8)` converts. Integers and
    booleans are refused (E0204)."""
    not_compiled()


def clamp(x: Operand, low: Operand, high: Operand, /) -> Tile:
    """`minimum(maximum(x, low), high)`: x between `low` and `high`, numbers or tiles; shapes broadcast. A NaN gives `low`, as
    a number wins over a NaN."""
    not_compiled()


def isnan(x: Operand, /) -> Tile:
    """Whether an element of floats is NaN, as booleans: `x != x`. Other dtypes are refused (E0204)."""
    not_compiled()


def isinf(x: Operand, /) -> Tile:
    """Whether an element of floats is infinite: `abs(x) == inf`. Other dtypes are refused (E0204)."""
    not_compiled()


def isfinite(x: Operand, /) -> Tile:
    """Whether an element of floats is neither infinite nor NaN: `abs(x) < inf`. Other dtypes are refused (E0204)."""
    not_compiled()


def sum(x: Tile, /, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    """Sum over an axis, over each axis of a tuple, or over all if `axis` is None. The axes are removed; with `keepdims=True`
    they have extent 1. Floats are summed in f32 and rounded once to the dtype of `x`; integers wrap. Refused: an axis that `x`
    lacks or that is named twice (E0203), booleans (E0204), scalars (E0206)."""
    not_compiled()


def max(x: Tile, /, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    """Largest element over axes, as of `sum`; a number wins over a NaN."""
    not_compiled()


def min(x: Tile, /, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    """Smallest element over axes, as of `sum`; a number wins over a NaN."""
    not_compiled()


def any(x: Tile, /, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    """Whether an element over axes, as of `sum`, is true, as a tile of booleans; of numbers it is refused (E0204): compare them
    first. Without an axis the result is a scalar, which `if` takes."""
    not_compiled()


def all(x: Tile, /, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    """Whether all elements over axes, as of `sum`, are true; otherwise as `any`."""
    not_compiled()


def argmax(x: Tile, /, axis: int | None = None) -> Tile:
    """Position of the largest element over an axis as i32; the lowest position among equals."""
    not_compiled()


def argmin(x: Tile, /, axis: int | None = None) -> Tile:
    """Position of the smallest element over an axis as i32; the lowest position among equals."""
    not_compiled()


def mma(a: Tile, b: Tile, acc: Tile, /, *, tf32: bool = False) -> Tile:
    """`a @ b + acc`: a (M, K), b (K, N), acc (M, N). acc is f32 for operands that are both bf16, both f16, or of f8e4m3 and
    f8e5m2 in any order; i32, in which sums wrap, for i8 and u8 in any order. Two f32 operands need `tf32=True`, which rounds
    them to tf32 (11 significant bits, to nearest, ties away from zero); acc is f32. With three axes, a batch of products:
    (S, M, K), (S, K, N), (S, M, N)."""
    not_compiled()


def astype(x: Operand, dtype: DTypeLike, /) -> Tile:
    """`x.astype(dtype)`."""
    not_compiled()


def bitcast(x: Operand, dtype: DTypeLike, /) -> Tile:
    """The bits of each element as another dtype of the same width and shape: f32 with i32 and u32, f16 and bf16 with i16 and
    u16, f8 with i8 and u8, integers with each other. Refused for another width and for booleans (E0201). A NaN that was loaded
    keeps its bits; those of a NaN that arithmetic made are the chip's. PTX ISA, `mov`."""
    not_compiled()


def reshape(x: Tile, shape: Shape, /) -> Tile:
    """Same elements in row-major order under another shape; one extent may be -1."""
    not_compiled()


def permute(x: Tile, axes: tuple[int, ...], /) -> Tile:
    """Axis k of the result is axis `axes[k]` of `x`."""
    not_compiled()


def broadcast_to(x: Operand, shape: Shape, /) -> Tile:
    """Repeat along axes of extent 1, as numpy does."""
    not_compiled()


def join(a: Operand, b: Operand, /) -> Tile:
    """Two tiles of one dtype along a new last axis: of shapes `s`, which broadcast, the result has `(*s, 2)`, and reshaped it
    has their elements in turn. Refused: different dtypes (E0201), shapes that do not broadcast (E0202), more elements than a
    tile has (E0203)."""
    not_compiled()


def split(x: Tile, /) -> tuple[Tile, Tile]:
    """The inverse of `join`: `a, b = split(x)` of shape `(*s, 2)` gives two tiles of shape `s`, the elements at 0 and at 1 of
    the last axis, every bit kept. Another last axis is refused (E0202)."""
    not_compiled()


def butterfly(x: Tile, /, axis: int, mask: int) -> Tile:
    """The element at position `i ^ mask` of an axis at position `i`, every bit kept: of pairs, groups of four and so on, the
    elements exchanged. The axis has a power of two of elements (E0202), more than the constant `mask` (E0203)."""
    not_compiled()


def flip(x: Tile, /, axis: int) -> Tile:
    """The elements of an axis in reverse order, every bit kept. The axis has a power of two of elements (E0202)."""
    not_compiled()


def static_range(start: int, stop: int | None = None, step: int = 1, /) -> range:
    """Numbers of a loop that is written out at compile time: `for i in static_range(4):` has its body four times, in which `i`
    is 0, 1, 2 and 3, constants that may index a tuple or decide an `if`. A loop over a tuple is written out too. The bounds
    are constants (E0203), the step is not 0 (E0111)."""
    not_compiled()


def invariant(*conditions: bool) -> None:
    """At the start of a loop's body: conditions on what the loop carries, which hold whenever an iteration starts, and after
    the loop. The prover shows that they hold before the loop and that each iteration keeps them (E0310), and then knows them.
    A condition is arithmetic of scalars; it may mention the loop's variable. Iterations that a `break` skips keep it too."""
    not_compiled()


def decreases(number: Scalar) -> None:
    """At the start of the body of `while`: an i32 that is positive where a pass starts, and smaller where it ends, so that the
    loop ends; the prover shows both (E0309). Without it, the number is the difference of the sides of the first comparison in
    the condition, `n - i` for `while i < n`. A pass that ends in a `break` need not make it smaller."""
    not_compiled()


def take(x: Tile, indices: Tile, /, axis: int) -> Tile:
    """The elements at computed positions along an axis, as NumPy's `take_along_axis`: for axis 1, `x[i, indices[i, j]]` at
    `[i, j]`. The tile of i32 indices has the axes of `x`; along the others both broadcast. The prover must show that every
    index is within the axis, from 0 to its extent less 1 (E0308)."""
    not_compiled()


def cumsum(x: Tile, /, axis: int, *, reverse: bool = False, exclusive: bool = False) -> Tile:
    """The sum of all elements up to each along an axis, itself included; without itself if `exclusive`, then 0 at the first.
    With `reverse` of all elements from each to the last. The order in which elements are added is the same for every block, a
    tree. Floats are added in f32, and each sum is rounded once; integers wrap. The axis has a power of two of elements
    (E0202): load more of them with `pad=0`. Booleans are refused (E0204)."""
    not_compiled()


def cumprod(x: Tile, /, axis: int, *, reverse: bool = False, exclusive: bool = False) -> Tile:
    """The product of all elements up to each along an axis, otherwise as `cumsum`; 1 at the first if `exclusive`."""
    not_compiled()


def cummax(x: Tile, /, axis: int, *, reverse: bool = False) -> Tile:
    """The largest of all elements up to each along an axis, or from each to the last if `reverse`. As in `maximum`, a number
    wins over a NaN. The axis has a power of two of elements (E0202)."""
    not_compiled()


def cummin(x: Tile, /, axis: int, *, reverse: bool = False) -> Tile:
    """The smallest of all elements up to each along an axis, otherwise as `cummax`."""
    not_compiled()


def scan(function: Callable[..., Any], x: Tile | tuple[Tile, ...], /, axis: int, *, reverse: bool = False) -> Any:
    """All elements up to each along an axis, combined by a tile function of two arguments: `function(before, after)`, of tiles
    of any shape, gives what stands for both. It is associative; it need not be commutative. `x` may be a tuple of tiles of one
    shape: then both arguments are such tuples, and the function returns one. With `reverse`, elements are combined from the
    last to the first, which is then `before`. The axis has a power of two of elements (E0202). The function keeps dtypes
    (E0201) and shapes (E0202)."""
    not_compiled()


def sort(x: Tile | tuple[Tile, ...], /, axis: int, *, descending: bool = False) -> Any:
    """A tile in ascending order along an axis, or in descending order. Of a tuple of tiles of one shape, the first has the
    keys: the result is a tuple of all of them in the order of the keys. -0 is below 0, a NaN above all numbers: last in
    ascending order, first in descending order. Equal keys, and NaN, keep the order of their positions in both. Keys are
    numbers (E0204); the axis has a power of two of elements (E0202)."""
    not_compiled()


def argsort(x: Tile, /, axis: int, *, descending: bool = False) -> Tile:
    """The position of each element that `sort` puts there, as i32: each position of the axis once, so that a `scatter` to these
    positions writes each element once."""
    not_compiled()


def topk(x: Tile, /, k: int, axis: int) -> tuple[Tile, Tile]:
    """The `k` largest elements along an axis, the largest first, and their positions as i32; in the order of `sort` with
    `descending`. `k` is a power of two up to the extent (E0203), which is one too (E0202)."""
    not_compiled()


def print(text: str, /, *values: Operand, where: Tile | bool = True) -> None:
    """Write to standard output while the kernel runs: `print("x {} of {}", x, i)`. For looking into a kernel, not for shipping
    it: `tilec bundle pack` refuses one that prints (E0718).

    Each `{}` of the text, which is a literal (E0218), stands for a value, `{{` and `}}` for braces. The values broadcast, and
    every element of the block's tile is one line, with the block and the position before the text: `bid (0, 2) at (5, 1): x
    0.5 of 3`, or `bid (0, 2): x 0.5 of 3` for scalars. Floats are written as C's `%g` with as many digits as tell all numbers
    of their dtype apart, booleans as 0 or 1. With `where=`, a bool tile or scalar (E0210), only elements where it is true are
    written; without it, a tile has at most 1024 (E0218). All lines of a `print` come before those of the block's next one;
    among themselves, and with those of other blocks, they have no order on a chip. Proofs do not depend on it. On a GPU the
    driver shows what was written when the host synchronises, and keeps the last megabyte only (CUDA programming guide,
    "Formatted output")."""
    not_compiled()
