"""`sort`, `argsort` and `topk` against NumPy's stable sort; machine code computes the bits that the interpreter computes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import Array, One, assert_same, refusal
from tests.words.test_joins import NUMBERS, any_bits
from tilec import interpreter
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.ops import Select, Sort
from tilec.ir.types import DTYPES
from tilec.passes.schedule.simplify import networks
from tilec.target.targets import MAIN_TARGETS, SM_90A

SPECIAL = (0.0, -0.0, 1.5, -1.5, 2.0**-9, np.inf, -np.inf, np.nan, 3.0, 3.0)


def keys(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Keys with many ties; floats also have zeros of both signs, infinities and NaN of both signs."""
    r = np.random.default_rng(seed)
    if not DTYPES[dtype].is_float:
        some = any_bits(dtype, (7,), seed)
        return np.where(r.random(shape) < 0.5, r.choice(some, shape), any_bits(dtype, shape, seed + 1)).astype(some.dtype)
    found = r.choice(SPECIAL, shape).astype(np.float32)
    found = np.where(r.random(shape) < 0.5, -found, found)
    return found.astype(numpy_dtype(DTYPES[dtype]))


def order(a: Array, axis: int, descending: bool = False) -> Array:
    """Positions by Python's sort, by numbers and then positions: NaN is above all numbers, -0 below 0."""

    def rank(line: Array, i: int) -> tuple[float, ...]:
        value = float(line[i])
        if np.isnan(value):
            key = (1.0, 0.0, 0.0)
        else:
            key = (0.0, value, 0.0 if np.signbit(value) else 1.0)
        return (*(-part for part in key), i) if descending else (*key, i)

    def positions(line: Array) -> list[int]:
        return sorted(range(len(line)), key=lambda i: rank(line, i))

    exact = a.astype(np.float64) if a.dtype.kind not in "iu" else a.astype(object)
    lines = np.moveaxis(exact, axis, -1).reshape(-1, a.shape[axis])
    if a.dtype.kind in "iu":
        found = [sorted(range(len(line)), key=lambda i, line=line: (-line[i] if descending else line[i], i)) for line in lines]
    else:
        found = [positions(line) for line in lines]
    moved = np.array(found).reshape(np.moveaxis(a, axis, -1).shape)
    return np.moveaxis(moved, -1, axis)


SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (((64,), 0), ((3, 32), 1), ((16, 5), 0), ((2, 8, 3), 1))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype(dtype: str) -> None:
    """Values alone, positions, and both, in either order, of every shape in turn."""
    for number, (shape, axis) in enumerate(SHAPES):
        descending = number % 2 == 1
        a = keys(dtype, shape, number)
        positions = order(a, axis, descending)
        flag = ", descending=True" * descending
        for expression, result, expected in (
            (f"tl.sort(a, {axis}{flag})", dtype, np.take_along_axis(a, positions, axis)),
            (f"tl.argsort(a, {axis}{flag})", "i32", positions.astype(np.int32)),
        ):
            one = One(expression, result, shape, ((dtype, shape),))
            assert_same(one.interpreted(a), expected)
            assert_same(one.emulated(MAIN_TARGETS[number % 3], a, warps=(1, 2, 4)[number % 3]), expected)


@pytest.mark.parametrize("payload", ["bf16", "i64", "u8"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "u16"])
def test_other_tiles_follow_the_keys(dtype: str, payload: str) -> None:
    a, b = keys(dtype, (4, 64), 1), any_bits(payload, (4, 64), 2)
    positions = order(a, 1)
    one = One("tl.sort((a, b, tl.arange(64)[None, :] + tl.zeros((4, 64), tl.i32)), 1)[1]", payload, (4, 64),
              ((dtype, (4, 64)), (payload, (4, 64))))  # fmt: skip
    expected = np.take_along_axis(b, positions, 1)
    np.testing.assert_array_equal(one.interpreted(a, b).view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(one.emulated(SM_90A, a, b).view(np.uint8), expected.view(np.uint8))


def test_numpy_sorts_numbers_alike() -> None:
    """NaN last, ties by position."""
    a = np.array([3, np.nan, 1, 2, np.nan, -np.inf, 1, 3], np.float32)
    one = One("tl.argsort(a, 0)", "i32", (8,), (("f32", (8,)),))
    np.testing.assert_array_equal(one.agreed(a), np.argsort(a, kind="stable"))
    one = One("tl.sort(a, 0)", "f32", (8,), (("f32", (8,)),))
    np.testing.assert_array_equal(one.agreed(a), np.sort(a))


@settings(max_examples=15, deadline=None)
@given(
    bits=st.integers(0, 8), before=st.integers(1, 3), after=st.integers(1, 3), dtype=st.sampled_from(("f32", "i32", "bf16")),
    descending=st.booleans(), warps=st.sampled_from((1, 2, 4)),
)  # fmt: skip
def test_every_shape(bits: int, before: int, after: int, dtype: str, descending: bool, warps: int) -> None:
    shape = (before, 1 << bits, after)
    a = keys(dtype, shape, bits)
    one = One(f"tl.argsort(a, -2, descending={descending})", "i32", shape, ((dtype, shape),))
    expected = order(a, 1, descending).astype(np.int32)
    np.testing.assert_array_equal(one.interpreted(a), expected)
    np.testing.assert_array_equal(one.emulated(SM_90A, a, warps=warps), expected)


@pytest.mark.parametrize("extent", [2, 4, 8, 16])
def test_the_network_sorts_every_sequence_of_zeros_and_ones(extent: int) -> None:
    """Then it sorts every sequence (the zero-one principle; Knuth, "The Art of Computer Programming", 5.3.4)."""
    count = 1 << min(extent, 12)
    rows = np.arange(count)[:, None] >> np.arange(extent) & 1 if extent < 16 else None
    if rows is None:
        rows = np.random.default_rng(1).integers(0, 2, (count, extent))
    a = rows.astype(np.int8)
    function = One("tl.sort(a, 1)", "i8", a.shape, (("i8", a.shape),)).function()
    networks.expand(function)
    assert not any(isinstance(op, Sort) for op in function.body.walk())

    out = np.ones(a.shape, np.int8)
    interpreter.run(function, {"a_": a, "out": out})
    np.testing.assert_array_equal(out, np.sort(a, 1))
    steps = (extent.bit_length() - 1) * extent.bit_length() // 2
    assert sum(isinstance(op, Select) for op in function.body.walk()) == steps


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "u8"])
@pytest.mark.parametrize("k", [1, 4, 32])
def test_the_largest_come_first(k: int, dtype: str) -> None:
    a = keys(dtype, (3, 32), k)
    positions = order(a, 1, descending=True)[:, :k]
    for index, result, expected in ((0, dtype, np.take_along_axis(a, positions, 1)), (1, "i32", positions.astype(np.int32))):
        one = One(f"tl.topk(a, {k}, 1)[{index}]", result, (3, k), ((dtype, (3, 32)),))
        assert_same(one.interpreted(a), expected)
        assert_same(one.emulated(SM_90A, a), expected)


@pytest.mark.parametrize(("expression", "dtype", "lines"), [("tl.sort(a, 0)", "f32", 1500), ("tl.argsort(a, 0)", "f32", 3200)])
def test_a_thousand_elements_compile_in_seconds(expression: str, dtype: str, lines: int) -> None:
    one = One(expression, "i32" if "arg" in expression else dtype, (1024,), ((dtype, (1024,)),))
    start = time.process_time()
    text = one.ptx(SM_90A, warps=4)[0]
    assert time.process_time() - start < 20
    assert text.count("\n") < lines


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.sort(a, 1)", "E0202: `sort` takes a power of two of elements, axis 1 has 24; load 32 elements with `pad=`"),
     ("tl.sort(a > 0, 0)", "E0204: `sort` takes numbers as keys; use `where(condition, 1, 0)`"),
     ("tl.sort((), 0)", "E0217: `sort` of an empty tuple; pass the keys, or a tuple of keys and other tiles"),
     ("tl.sort((a, tl.arange(4)), 0)", "E0202: `sort` takes tiles of one shape, found a tile of i32 of shape (4,); "
      "`broadcast_to` gives the tiles of a tuple one shape"),
     ("tl.argsort(1.0, 0)", "E0206: `argsort` takes a tile, found a scalar; a scalar has no axis"),
     ("tl.topk(a, 3, 0)[0]", "E0203: `topk` takes a power of two of elements, found 3; take 1, 2, 4, ... up to 4, and leave "
      "the last ones unused"),
     ("tl.topk(a, 8, 0)[0]", "E0203: `topk` takes a power of two of elements, found 8; take 1, 2, 4, ... up to 4, and leave "
      "the last ones unused"),
     ("tl.topk(a, tl.bid(0), 0)[0]", "E0203: `k` of `topk` is static, found a scalar of i32; pass a constant"),
     ("tl.sort(a, 0, descending=1)", "E0203: `descending` is `True` or `False`, found `1`; write `descending=True`")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (4, 24), (("f32", (4, 24)),)).text) == message
