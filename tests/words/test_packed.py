"""Tensors of 4-bit elements: every code and conversion against ml_dtypes, loads of any box against NumPy, and the same on the
emulator as on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import ARCHITECTURES, assert_same
from tests.words.packed_kernels import NUMPY, Array, emulated, interpreted, pack, refusal, some_bytes, unpack
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.types import DTYPES
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

EVERY_BYTE = np.arange(256, dtype=np.uint8)
TARGETS = pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)


def whole(source: str, dtype: str) -> str:
    """Reads a tensor of 512 elements as another dtype."""
    return (f"def k(w: tl.In[tl.{source}, 512], out: tl.Out[tl.{dtype}, 512]):\n    tl.grid(1)\n"
            f"    tl.store(out, 0, tl.load(w, 0, shape=512).astype(tl.{dtype}))\n")  # fmt: skip


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "u32", "i64", "f16", "bf16", "f32"])
@pytest.mark.parametrize("source", NUMPY)
def test_every_byte_as_every_dtype(source: str, dtype: str) -> None:
    """Both nibbles of all 256 bytes."""
    numbers, numpy = unpack(EVERY_BYTE, source), numpy_dtype(DTYPES[dtype])
    expected = numbers.astype(np.float32).astype(numpy) if source == "f4e2m1" else numbers.astype(np.int64).astype(numpy)
    if source == "f4e2m1" and dtype[0] == "u":  # toward zero, at most the ends of the range
        expected = np.maximum(numbers.astype(np.float32), 0).astype(numpy)
    arrays = {"w": EVERY_BYTE, "out": np.ones(512, numpy)}
    assert_same(interpreted(whole(source, dtype), arrays)["out"], expected)
    assert_same(emulated(whole(source, dtype), SM_90A, arrays)["out"], expected)


@pytest.mark.parametrize("source", NUMPY)
def test_every_byte_on_every_architecture(source: str) -> None:
    arrays = {"w": EVERY_BYTE, "out": np.ones(512, np.float16)}
    expected = unpack(EVERY_BYTE, source).astype(np.float16)
    for target in ARCHITECTURES:
        assert_same(emulated(whole(source, "f16"), target, arrays)["out"], expected)


def test_zeros_keep_their_sign() -> None:
    arrays = {"w": np.full(256, 0x80, np.uint8), "out": np.ones(512, np.float16)}
    found = emulated(whole("f4e2m1", "f16"), SM_90A, arrays)["out"]
    np.testing.assert_array_equal(np.signbit(found), np.arange(512) % 2 == 1)
    assert not found.any()


GROUPS = """def k(w: tl.In[tl.{dtype}, N, K], s: tl.In[tl.f16, N, "K // 128"], out: tl.Out[tl.f16, N, K]):
    tl.requires(K % 128 == 0)
    tl.grid(tl.cdiv(N, 4), K // 128)
    n, g = tl.bid(0), tl.bid(1)
    q = tl.load(w, (n, g), shape=(4, 128), pad=0).astype(tl.f16)
    tl.store(out, (n, g), q * tl.load(s, (n, g), shape=(4, 1), pad=0), mask=True)
"""


@TARGETS
@pytest.mark.parametrize("dtype", NUMPY)
def test_weights_with_a_scale_for_each_group(dtype: str, target: Target) -> None:
    """A number of rows that is no multiple of the tile."""
    w, scales = some_bytes((7, 192)), np.linspace(0.5, 2, 21, dtype=np.float16).reshape(7, 3)
    arrays = {"w": w, "s": scales, "out": np.ones((7, 384), np.float16)}
    expected = unpack(w, dtype).astype(np.float16) * scales.repeat(128, axis=1)
    body = GROUPS.format(dtype=dtype)
    assert_same(interpreted(body, arrays)["out"], expected)
    assert_same(emulated(body, target, arrays, N=7, K=384)["out"], expected)


PRODUCT = """def k(x: tl.In[tl.bf16, N, K], w: tl.In[tl.{dtype}, 64, K], s: tl.In[tl.f32, 64, "K // 128"],
      out: tl.Out[tl.f32, N, 64]):
    tl.requires(K % 128 == 0)
    tl.grid(tl.cdiv(N, 16))
    i = tl.bid(0)
    acc = tl.zeros((16, 64), tl.f32)
    for g in range(K // 128):
        a = tl.load(x, (i, g), shape=(16, 128), pad=0)
        q = tl.load(w, (0, g), shape=(64, 128)).astype(tl.bf16)
        acc = acc + tl.mma(a, q.T, tl.zeros((16, 64), tl.f32)) * tl.load(s, (0, g), shape=(64, 1)).T
    tl.store(out, (i, 0), acc, mask=True)
"""


@TARGETS
@pytest.mark.parametrize("dtype", NUMPY)
def test_products(dtype: str, target: Target) -> None:
    random = np.random.default_rng(3)
    x = random.integers(-3, 4, (19, 256)).astype(numpy_dtype(DTYPES["bf16"]))
    w, scales = some_bytes((64, 128)), np.float32(2) ** random.integers(-2, 3, (64, 2)).astype(np.float32)
    arrays = {"x": x, "w": w, "s": scales, "out": np.ones((19, 64), np.float32)}
    weights = unpack(w, dtype).astype(np.float32) * scales.repeat(128, axis=1)
    expected = x.astype(np.float32) @ weights.T  # every sum is exact in f32
    body = PRODUCT.format(dtype=dtype)
    assert_same(interpreted(body, arrays)["out"], expected)
    assert_same(emulated(body, target, arrays, N=19, K=256)["out"], expected)


BOX = """def k(w: tl.In[tl.{dtype}, {rows}, {columns}], out: tl.Out[tl.f32, {a}, {b}], row: tl.i32, column: tl.i32):
    tl.grid(1)
    tl.requires(-64 <= row, row <= 64, -64 <= column, column <= 64)
    q = tl.load(w, offset=(row, {offset}), shape=({a}, {b}), pad={pad})
    tl.store(out, (0, 0), q.astype(tl.f32))
"""


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_box_of_any_tensor(data: Any) -> None:
    """Odd offsets, odd extents, and boxes that reach over each edge, are the elements that NumPy has there."""
    dtype = data.draw(st.sampled_from(sorted(NUMPY)))
    rows, half, a, b = (data.draw(st.integers(1, 9), label) for label in ("rows", "half", "a", "b"))
    row, column = (data.draw(st.integers(-5, 20), label) for label in ("row", "column"))
    offset, at = data.draw(st.sampled_from([("column", column), ("column * 2", column * 2), ("2 * column + 4", 2 * column + 4)]))
    pad = data.draw(st.sampled_from([0, 1, 6]))
    w = some_bytes((rows, half), data.draw(st.integers(0, 99), "seed"))
    body = BOX.format(dtype=dtype, rows=rows, columns=2 * half, a=a, b=b, offset=offset, pad=pad)
    arrays = {"w": w, "out": np.ones((a, b), np.float32)}
    expected = np.full((a, b), pad, np.float32)
    numbers = unpack(w, dtype).astype(np.float32)
    for i in range(max(0, -row), min(a, rows - row)):
        for j in range(max(0, -at), min(b, 2 * half - at)):
            expected[i, j] = numbers[row + i, at + j]
    assert_same(interpreted(body, arrays, row=row, column=column)["out"], expected)
    if data.draw(st.integers(0, 3), "emulate") == 0:
        target = data.draw(st.sampled_from(MAIN_TARGETS))
        assert_same(emulated(body, target, arrays, row=row, column=column)["out"], expected)


def test_one_element_and_every_form_of_offset() -> None:
    """Scalars, and offsets by loops with even and odd steps."""
    body = """def k(w: tl.In[tl.i4, N, 32], out: tl.Out[tl.i32, N, 32], sums: tl.Out[tl.i32, N]):
    tl.grid(N)
    n = tl.bid(0)
    total = 0
    for i in range(0, 32, 4):
        tl.store(out, tl.load(w, offset=(n, i), shape=(1, 4)).astype(tl.i32), offset=(n, i))
        for j in range(3):
            three = tl.load(w, offset=(n, j), shape=(1, 3)).astype(tl.i32)
            total += tl.load(w, (n, i + j)).astype(tl.i32) + tl.sum(three.reshape(3), 0)
    tl.store(sums, n, total)
"""
    w = some_bytes((5, 16))
    arrays = {"w": w, "out": np.ones((5, 32), np.int32), "sums": np.ones(5, np.int32)}
    numbers = unpack(w, "i4").astype(np.int32)
    totals = sum(numbers[:, i + j] + numbers[:, j : j + 3].sum(1) for i in range(0, 32, 4) for j in range(3))
    for found in (interpreted(body, arrays), emulated(body, SM_90A, arrays, N=5)):
        np.testing.assert_array_equal(found["out"], numbers)
        np.testing.assert_array_equal(found["sums"], totals)


def test_packing_is_its_own_inverse() -> None:
    for dtype in NUMPY:
        np.testing.assert_array_equal(pack(unpack(EVERY_BYTE, dtype)), EVERY_BYTE)
