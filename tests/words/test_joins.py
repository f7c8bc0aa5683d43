"""`join` and `split` against NumPy's `stack`, bit by bit; machine code computes what the interpreter computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import One, refusal
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.types import DTYPES
from tilec.target.targets import SM_90A

NUMBERS = [dtype.name for dtype in DTYPES.values() if dtype.kind != "b"]
SHAPE = (4, 24)


def any_bits(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Every bit pattern may occur, so also NaN of either kind, zeros of either sign and subnormals."""
    width = DTYPES[dtype].bits
    bits = np.random.default_rng(seed).integers(0, 1 << width, shape, dtype=np.uint64, endpoint=False)
    ends = np.array([1 << (width - 1), (1 << width) - 1], np.uint64)
    bits.reshape(-1)[:2] = ends[: bits.size]
    return bits.astype(f"u{width // 8}").view(numpy_dtype(DTYPES[dtype]))


def bits_of(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.itemsize}")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_no_bit_changes(dtype: str) -> None:
    a, b = any_bits(dtype, SHAPE, 1), any_bits(dtype, SHAPE, 2)
    pair = np.stack([a, b], axis=-1)
    joined = One("tl.join(a, b)", dtype, (*SHAPE, 2), ((dtype, SHAPE), (dtype, SHAPE)))
    for found in (joined.interpreted(a, b), joined.emulated(SM_90A, a, b)):
        np.testing.assert_array_equal(bits_of(found), bits_of(pair))
    for position, side in enumerate((a, b)):
        one = One(f"tl.split(a)[{position}]", dtype, SHAPE, ((dtype, (*SHAPE, 2)),))
        for found in (one.interpreted(pair), one.emulated(SM_90A, pair)):
            np.testing.assert_array_equal(bits_of(found), bits_of(side))


@settings(max_examples=15, deadline=None)
@given(shape=st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple), seed=st.integers(0, 9))
def test_every_shape(shape: tuple[int, ...], seed: int) -> None:
    """The sides exchanged: of pairs along the last axis of two."""
    a = any_bits("i32", (*shape, 2), seed)
    one = One("tl.join(tl.split(a)[1], tl.split(a)[0])", "i32", (*shape, 2), (("i32", (*shape, 2)),))
    np.testing.assert_array_equal(one.interpreted(a), a[..., ::-1])
    np.testing.assert_array_equal(one.emulated(SM_90A, a), a[..., ::-1])


def test_every_architecture_interleaves() -> None:
    a, b = (np.arange(n, n + 64, dtype=np.float32) for n in (0, 100))
    one = One("tl.reshape(tl.join(a, b), (128,))", "f32", (128,), (("f32", (64,)), ("f32", (64,))))
    np.testing.assert_array_equal(one.agreed(a, b), np.stack([a, b], -1).reshape(-1))


def test_booleans_and_numbers_join_too() -> None:
    a = np.arange(64, dtype=np.int32).reshape(32, 2)
    one = One("tl.where(tl.split(a > 9)[1], 1, 0)", "i32", (32,), (("i32", (32, 2)),))
    np.testing.assert_array_equal(one.agreed(a), a[:, 1] > 9)
    one = One("tl.join(tl.split(a)[0], 7)", "i32", (32, 2), (("i32", (32, 2)),))
    np.testing.assert_array_equal(one.agreed(a), np.stack([a[:, 0], np.full(32, 7)], -1))


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.split(a)[0]", "E0202: `split` takes a tile of shape (..., 2), found a tile of f32 of shape (32,); its last axis has "
      "2 elements: `reshape` or `permute` it first"),
     ("tl.join(a, tl.arange(32))", "E0201: the operands have different dtypes: f32 and i32; convert one side with "
      "`.astype(f32)`"),
     ("tl.join(a, tl.zeros((5,), tl.f32))", "E0202: shapes (32,) and (5,) do not broadcast; insert axes of extent 1 with "
      "`[:, None]` or `[None, :]`")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (32,), (("f32", (32,)),)).text) == message
