"""Sums, products, extrema and the author's own functions of all elements up to each, against NumPy; machine code computes the
bits that the interpreter computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import Array, One, refusal
from tests.words.test_joins import any_bits
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.types import DTYPES
from tilec.target.targets import MAIN_TARGETS, SM_90A

INTEGERS = [dtype.name for dtype in DTYPES.values() if dtype.is_integer]
FLOATS = [dtype.name for dtype in DTYPES.values() if dtype.is_float]
NUMPY: dict[str, np.ufunc] = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.fmax, "cummin": np.fmin}
SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((64,), 0), ((4,), 0), ((3, 256), 1), ((32, 6), 0), ((2, 16, 5), 1), ((1, 8), 1), ((5, 1), 1),
)  # fmt: skip


def directed(accumulate: Callable[[Array], Array], a: Array, axis: int, reverse: bool, exclusive: bool, first: int) -> Array:
    """A scan along an axis by NumPy."""
    a = np.moveaxis(a, axis, -1)[..., :: -1 if reverse else 1]
    found = accumulate(a)
    if exclusive:
        found = np.concatenate([np.full_like(found[..., :1], first), found[..., :-1]], axis=-1)
    return np.moveaxis(found[..., :: -1 if reverse else 1], -1, axis)


def options(reverse: bool, exclusive: bool) -> str:
    return ", reverse=True" * reverse + ", exclusive=True" * exclusive


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("word", NUMPY)
def test_integers_wrap(word: str, dtype: str) -> None:
    """Every dtype, shape and direction in turn."""
    numpy = numpy_dtype(DTYPES[dtype])
    for number, (shape, axis) in enumerate(SHAPES):
        reverse, exclusive = number % 2 == 1, word in ("cumsum", "cumprod") and number % 3 == 1
        a = any_bits(dtype, shape, number) if word != "cumprod" else any_bits(dtype, shape, number) | numpy.type(1)
        one = One(f"tl.{word}(a, {axis}{options(reverse, exclusive)})", dtype, shape, ((dtype, shape),))
        with np.errstate(all="ignore"):
            ufunc = {"cummax": np.maximum, "cummin": np.minimum}.get(word, NUMPY[word])
            first = int(word == "cumprod")
            expected = directed(lambda x, u=ufunc: u.accumulate(x, axis=-1, dtype=numpy), a, axis, reverse, exclusive, first)
        np.testing.assert_array_equal(one.interpreted(a), expected)
        target = MAIN_TARGETS[number % len(MAIN_TARGETS)]
        np.testing.assert_array_equal(one.emulated(target, a, warps=(2, 4)[number % 2]), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("word", ["cumsum", "cumprod"])
def test_floats_are_added_in_f32_and_rounded_once(word: str, dtype: str) -> None:
    """Numbers whose sums and products are exact in f32: the results are the exact ones, rounded once."""
    numpy = numpy_dtype(DTYPES[dtype])
    r = np.random.default_rng(FLOATS.index(dtype))
    for reverse in (False, True):
        a = r.integers(-7, 8, (3, 128)) if word == "cumsum" else r.choice((1, 1, -1, 2, 0.5), (3, 128))
        a = a.astype(np.float32).astype(numpy)
        exact = directed(lambda x: NUMPY[word].accumulate(x, axis=-1), a.astype(np.float64), 1, reverse, False, 0)
        assert (exact == exact.astype(np.float32)).all()
        one = One(f"tl.{word}(a, 1{options(reverse, False)})", dtype, a.shape, ((dtype, a.shape),))
        expected = one.agreed(a)
        largest = DTYPES[dtype].largest
        bounded = np.clip(exact, -largest, largest) if DTYPES[dtype].bits == 8 else exact
        np.testing.assert_array_equal(expected.astype(np.float64), bounded.astype(np.float32).astype(numpy).astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("word", ["cummax", "cummin"])
def test_a_number_wins_over_a_nan_and_zeros_have_an_order(word: str, dtype: str) -> None:
    a = np.array([np.nan, np.nan, -0.0, 0.0, -0.0, 3, -5, np.nan] * 4, np.float32).astype(numpy_dtype(DTYPES[dtype]))
    found = One(f"tl.{word}(a, 0)", dtype, (32,), ((dtype, (32,)),)).agreed(a).astype(np.float32)
    expected = NUMPY[word].accumulate(a.astype(np.float32))
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[:2]).all() and np.signbit(found[2])
    assert np.signbit(found[3]) == (word == "cummin")


def test_signs_of_zeros_in_sums() -> None:
    """A sum keeps the sign of a zero as `sum` does; what precedes the first element is 0."""
    a = np.full(32, -0.0, np.float32)
    assert np.signbit(One("tl.cumsum(a, 0)", "f32", (32,), (("f32", (32,)),)).agreed(a)).all()
    assert not np.signbit(One("tl.cumsum(a, 0, exclusive=True)", "f32", (32,), (("f32", (32,)),)).agreed(a)).any()


@settings(max_examples=20, deadline=None)
@given(
    bits=st.integers(0, 9), before=st.integers(1, 3), after=st.integers(1, 4), reverse=st.booleans(), exclusive=st.booleans(),
    warps=st.sampled_from((1, 2, 4)),
)  # fmt: skip
def test_sums_of_every_shape(bits: int, before: int, after: int, reverse: bool, exclusive: bool, warps: int) -> None:
    shape = (before, 1 << bits, after)
    a = np.random.default_rng(bits).integers(-99, 99, shape).astype(np.float32)
    one = One(f"tl.cumsum(a, -2{options(reverse, exclusive)})", "f32", shape, (("f32", shape),))
    expected = directed(lambda x: np.cumsum(x, -1), a, 1, reverse, exclusive, 0)
    np.testing.assert_array_equal(one.interpreted(a), expected)
    np.testing.assert_array_equal(one.emulated(SM_90A, a, warps=warps), expected)


def test_the_error_of_a_sum_is_that_of_a_tree() -> None:
    """Of 4096 random numbers, less than that of adding one after the other, which has 4096 roundings in a row."""
    a = np.random.default_rng(3).uniform(0, 1, 4096).astype(np.float32)
    found = One("tl.cumsum(a, 0)", "f32", (4096,), (("f32", (4096,)),)).interpreted(a)
    exact = np.cumsum(a.astype(np.float64))
    assert (np.abs(found - exact) <= 13 * 2.0**-24 * exact).all()


@dataclass(frozen=True)
class Scanned(One):
    """Calls of tile functions, which `functions` define."""

    functions: str = ""

    @property
    def text(self) -> str:
        return super().text.replace("\n\n\n@tl.kernel", f"\n\n\n{self.functions}\n\n\n@tl.kernel")


AFFINE = """@tl.function
def after(f, g):
    (a, b), (c, d) = f, g
    return c * a, c * b + d"""
LATEST = """@tl.function
def latest(before, after):
    return tl.where(after != 0, after, before)"""


def composed(a: Array, b: Array, reverse: bool) -> tuple[Array, Array]:
    """`x -> a x + b` of all rows up to each, one after the other."""
    step = -1 if reverse else 1
    first, second = a[::step].copy(), b[::step].copy()
    for i in range(1, len(a)):
        first[i], second[i] = first[i] * first[i - 1], first[i] * second[i - 1] + second[i]
    return first[::step], second[::step]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 8, 64, 512])
def test_functions_that_do_not_commute(length: int, reverse: bool) -> None:
    shape = (length, 2)
    a, b = (any_bits("i32", shape, seed) for seed in (1, 2))
    for position in (0, 1):
        expression = f"tl.scan(after, (a, b), 0{options(reverse, False)})[{position}]"
        one = Scanned(expression, "i32", shape, (("i32", shape), ("i32", shape)), AFFINE)
        with np.errstate(all="ignore"):
            expected = composed(a, b, reverse)[position]
        np.testing.assert_array_equal(one.interpreted(a, b), expected)
        np.testing.assert_array_equal(one.emulated(SM_90A, a, b), expected)


@pytest.mark.parametrize("dtype", ["bf16", "i8", "f8e4m3"])
def test_a_function_of_one_tile(dtype: str) -> None:
    """The last element other than 0: no arithmetic, so every architecture moves the same bits."""
    a = np.random.default_rng(4).choice((0, 0, 0, 1, 2, -3), (3, 128)).astype(np.float32).astype(numpy_dtype(DTYPES[dtype]))
    one = Scanned("tl.scan(latest, a, 1)", dtype, a.shape, ((dtype, a.shape),), LATEST)
    expected = a.astype(np.float32)
    for i in range(1, 128):
        expected[:, i] = np.where(expected[:, i] != 0, expected[:, i], expected[:, i - 1])
    np.testing.assert_array_equal(one.agreed(a).astype(np.float32), expected)


def test_a_function_of_booleans_and_numbers() -> None:
    """Sums that begin anew where the flag is set."""
    functions = """@tl.function
def segmented(before, after):
    (flag, total), (starts, more) = before, after
    return flag | starts, tl.where(starts, more, total + more)"""
    a = np.random.default_rng(5).integers(0, 100, 256).astype(np.int32)
    one = Scanned("tl.scan(segmented, (a % 7 == 0, a), 0)[1]", "i32", (256,), (("i32", (256,)),), functions)
    expected = a.copy()
    for i in range(1, 256):
        expected[i] += 0 if a[i] % 7 == 0 else expected[i - 1]
    np.testing.assert_array_equal(one.agreed(a), expected)


@pytest.mark.parametrize(("shape", "axis"), [((1024,), 0), ((8, 128), 1)])
def test_threads_pass_on_totals_alone(shape: tuple[int, ...], axis: int) -> None:
    """Each thread has 8 neighbors and one total: a shuffle for each bit of the lane index."""
    text = One(f"tl.cumsum(a, {axis})", "f32", shape, (("f32", shape),)).ptx(SM_90A, 4)[0]
    assert text.count("shfl.sync.bfly") == min(5, shape[axis].bit_length() - 4)


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.cumsum(a, 1)", "E0202: `cumsum` takes a power of two of elements, axis 1 has 24; load 32 elements with `pad=` 0"),
     ("tl.cummin(a, 1)", "E0202: `cummin` takes a power of two of elements, axis 1 has 24; load 32 elements with `pad=` inf"),
     ("tl.cumsum(a > 0, 0)", "E0204: `cumsum` takes numbers; use `where(condition, 1, 0)`"),
     ("tl.cummax(a, 0, exclusive=True)", "E0203: `exclusive` is a parameter of `cumsum` and `cumprod`, not `cummax`; `cummax` "
      "has no value before the first element"),
     ("tl.cumsum(a)", "E0113: `cumsum` needs an argument for `axis`; its parameters: x, axis, reverse, exclusive"),
     ("tl.cumsum(a, 0, reverse=1)", "E0203: `reverse` is `True` or `False`, found `1`; write `reverse=True`"),
     ("tl.cumsum(3, 0)", "E0206: `cumsum` takes a tile, found a scalar; a scalar has no axis"),
     ("tl.scan(a, 0)", "E0106: `scan` takes a tile function; its first argument is the name of a tile function of two "
      "arguments"),
     ("tl.scan()", "E0113: `scan` needs a function; its first argument is the name of a tile function of two arguments"),
     ("tl.scan(latest, a, 1)", "E0202: `scan` takes a power of two of elements, axis 1 has 24; load 32 elements with `pad=`"),
     ("tl.scan(latest, (a, tl.arange(4)), 0)", "E0202: `scan` takes tiles of one shape, found a tile of i32 of shape (4,); "
      "`broadcast_to` gives the tiles of a tuple one shape"),
     ("tl.scan(latest, (), 0)", "E0217: `scan` of an empty tuple; pass a tile, or a tuple of tiles"),
     ("tl.scan(one, a, 0)", "E0114: `one` takes 1 arguments, 2 given; it combines two values"),
     ("tl.scan(three, a, 0)", "E0114: `three` needs an argument for `c`; pass it by position or name"),
     ("tl.scan(two, a, 0)", "E0217: the function of `scan` returns a tuple of 2, not a tile; it takes two arguments like `x` "
      "and returns one like them"),
     ("tl.scan(smaller, a, 0)", "E0202: the function of `scan` returns a tile of f32 of shape (24,) for a tile of f32 of shape "
      "(4, 24); each result has the dtype and the shape of its argument"),
     ("tl.scan(truth, a, 0)", "E0201: the function of `scan` returns a tile of bool of shape (4, 24) for a tile of f32 of "
      "shape (4, 24); each result has the dtype and the shape of its argument")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    bodies = {
        "one(a)": "a", "three(a, b, c)": "a", "two(a, b)": "a, b", "smaller(a, b)": "tl.sum(a, 0)", "truth(a, b)": "a < b",
    }  # fmt: skip
    functions = "\n\n\n".join([LATEST, *(f"@tl.function\ndef {head}:\n    return {body}" for head, body in bodies.items())])
    assert refusal(Scanned(expression, "f32", (4, 24), (("f32", (4, 24)),), functions).text) == message
