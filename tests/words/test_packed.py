"""Tensors of 4-bit elements: every code and conversion against ml_dtypes, loads of any box against NumPy, and the same on the
emulator as on the interpreter."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.machines import manifest
from tests.words.kernels import ARCHITECTURES, assert_same
from tests.words.packed_kernels import NUMPY, Array, emulated, interpreted, kernel, pack, some_bytes, unpack
from tilec.codegen.ptx import to_ptx
from tilec.interpreter.dtypes import numpy_dtype
from tilec.interpreter.errors import InterpreterError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.text.tokens import ParseError
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.runtime import LaunchError, TensorView
from tilec.runtime.contract import check_shapes, check_type
from tilec.runtime.tensors import contiguous_strides
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
    offsets = {"column": column, "column * 2": column * 2, "2 * column + 4": 2 * column + 4}
    offset, at = data.draw(st.sampled_from(list(offsets.items())))
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


def narrowed(source: str, dtype: str, count: int) -> str:
    """Stores numbers as a packed dtype."""
    return (f"def k(x: tl.In[tl.{source}, {count}], out: tl.Out[tl.{dtype}, {count}]):\n    tl.grid(1)\n"
            f"    tl.store(out, 0, tl.load(x, 0, shape={count}).astype(tl.{dtype}))\n")  # fmt: skip


@pytest.mark.parametrize("source", ["i8", "u8", "i32", "i64"])
@pytest.mark.parametrize("dtype", ["u4", "i4"])
def test_integers_keep_their_low_bits(source: str, dtype: str) -> None:
    """As every cast from integer to integer: 256 numbers from below the range to above it."""
    x = np.arange(256).astype(numpy_dtype(DTYPES[source])) - numpy_dtype(DTYPES[source]).type(100)
    arrays = {"x": x, "out": np.zeros(128, np.uint8)}
    for found in (interpreted(narrowed(source, dtype, 256), arrays), emulated(narrowed(source, dtype, 256), SM_90A, arrays)):
        np.testing.assert_array_equal(found["out"], pack((x.astype(np.int64) & 15).astype(np.uint8)))


FLOATS = np.array([0, -0.0, 0.4, -0.4, 0.99, -0.99, 1, 7.5, 7.99, 8, -8, -8.5, -9, 14.9, 15, 15.5, 16, 1e9, -1e9, 1e30, -1e30,
                   np.inf, -np.inf, np.nan, 3.3e38, 2**-149, -3.7, 5.1, -1, 2, -2, 4.5], np.float32)  # fmt: skip


@pytest.mark.parametrize("source", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("dtype", ["u4", "i4"])
def test_floats_go_toward_zero_and_saturate(source: str, dtype: str) -> None:
    low, high = (0, 15) if dtype == "u4" else (-8, 7)
    with np.errstate(all="ignore"):
        x = FLOATS.astype(numpy_dtype(DTYPES[source]))
        numbers = np.nan_to_num(np.clip(np.trunc(x.astype(np.float64)), low, high), nan=0).astype(np.int64)
    body, arrays = narrowed(source, dtype, len(x)), {"x": x, "out": np.zeros(len(x) // 2, np.uint8)}
    for found in (interpreted(body, arrays), emulated(body, SM_90A, arrays)):
        np.testing.assert_array_equal(found["out"], pack((numbers & 15).astype(np.uint8)))


def nearest_f4(x: Array) -> Array:
    """Codes of the nearest number in exact arithmetic, of two equally near the one whose code is even."""
    table = np.arange(8, dtype=np.uint8).view(NUMPY["f4e2m1"]).astype(np.float64)
    codes: list[int] = []
    for number in x.astype(np.float64).tolist():
        if np.isnan(number):
            codes.append(7)
            continue
        distance = [abs(one - min(abs(number), 6.0)) for one in table.tolist()]
        best = min(range(8), key=lambda code: (distance[code], code % 2))
        codes.append(best + 8 * bool(np.signbit(number)))
    return np.array(codes, np.uint8)


@pytest.mark.parametrize("source", ["f32", "bf16", "f16", "i32"])
def test_numbers_round_to_the_nearest_f4(source: str) -> None:
    """Each number, each point halfway and its neighbours, infinities, NaN and zeros of both signs."""
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    halfway = [(a + b) / 2 for a, b in itertools.pairwise(table)]
    points = np.array([*table, *halfway, 7, 8, 100], np.float32)
    near = np.concatenate([points, np.nextafter(points, np.float32(-np.inf)), np.nextafter(points, np.float32(np.inf)), FLOATS])
    with np.errstate(all="ignore"):
        x = np.concatenate([near, -near])[: (2 * len(near)) // 4 * 4].astype(numpy_dtype(DTYPES[source]))
    body, arrays = narrowed(source, "f4e2m1", len(x)), {"x": x, "out": np.zeros(len(x) // 2, np.uint8)}
    for found in (interpreted(body, arrays), emulated(body, SM_90A, arrays)):
        np.testing.assert_array_equal(found["out"], pack(nearest_f4(x)))
    finite = np.isfinite(x.astype(np.float64)) & (np.abs(x.astype(np.float64)) <= 6)
    with np.errstate(all="ignore"):
        peer = x.astype(np.float32).astype(NUMPY["f4e2m1"]).view(np.uint8)
    np.testing.assert_array_equal(nearest_f4(x)[finite], peer[finite])


COPY = """def k(w: tl.In[tl.{dtype}, N, K], x: tl.In[tl.f32, K], out: tl.Out[tl.{dtype}, N, K]):
    tl.grid(tl.cdiv(N, {a}), tl.cdiv(K, {b}))
    n, k = tl.bid(0), tl.bid(1)
    q = tl.load(w, (n, k), shape=({a}, {b}), pad=0)
    tl.store(out, {where}, mask=True)
"""


@TARGETS
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_what_is_stored_is_what_was_loaded(target: Target, data: Any) -> None:
    """Tiles that reach over edges, by tile index and by offset, directly and through a wider dtype."""
    dtype, through = data.draw(st.sampled_from([("u4", "u8"), ("i4", "i8"), ("i4", "f32"), ("f4e2m1", "f16")]))
    rows, half, a = (data.draw(st.integers(1, 9), label) for label in ("rows", "half", "a"))
    b = 2 * data.draw(st.integers(1, 8), "b")
    q = data.draw(st.sampled_from(["q", f"q.astype(tl.{through}).astype(tl.{dtype})"]))
    where = data.draw(st.sampled_from([f"(n, k), {q}", f"{q}, offset=(n * {a}, k * {b})"]))
    w = some_bytes((rows, half), data.draw(st.integers(0, 99), "seed"))
    arrays = {"w": w, "x": np.zeros(2 * half, np.float32), "out": np.zeros_like(w)}
    body = COPY.format(dtype=dtype, a=a, b=b, where=where)
    np.testing.assert_array_equal(interpreted(body, arrays)["out"], w)
    np.testing.assert_array_equal(emulated(body, target, arrays, N=rows, K=2 * half)["out"], w)


def test_rows_at_a_stride_of_the_launch() -> None:
    """Strides count elements; the launch sees half as many bytes."""
    body = """def k(w: tl.In[tl.i4, N, 32, tl.Strides["2 * S", 1]], out: tl.Out[tl.i32, N, 32]):
    tl.grid(N)
    tl.store(out, (tl.bid(0), 0), tl.load(w, (tl.bid(0), 0), shape=(1, 32)).astype(tl.i32))
"""
    w = some_bytes((6, 24))[:, :16]
    found = interpreted(body, {"w": w, "out": np.zeros((6, 32), np.int32)})["out"]
    np.testing.assert_array_equal(found, unpack(np.ascontiguousarray(w), "i4").astype(np.int32))


def test_shapes_are_those_of_elements() -> None:
    body = """def k(w: tl.In[tl.u4, N, K], out: tl.Out[tl.i32, N, K]):
    tl.grid(w.shape[0])
    q = tl.load(w, (tl.bid(0), 0), shape=(1, 8), pad=0)
    tl.requires(w.shape[1] == 8)
    tl.store(out, (tl.bid(0), 0), q.astype(tl.i32) + q.shape[1] - w.shape[1] + q.ndim)
"""
    w = some_bytes((3, 4))
    found = interpreted(body, {"w": w, "out": np.zeros((3, 8), np.int32)})["out"]
    np.testing.assert_array_equal(found, unpack(w, "u4").astype(np.int32) + 2)


def test_an_array_with_an_element_in_each_byte_is_refused() -> None:
    arrays = {"w": np.zeros(512, NUMPY["i4"]), "out": np.ones(512, np.float32)}
    with pytest.raises(InterpreterError, match="`w`: holds int4, the kernel takes u8, bytes of two elements of i4 each"):
        interpreted(whole("i4", "f32"), arrays)


def launched(dtype: str, columns: int, of_bytes: int) -> str:
    """The refusal of a launch of `COPY` of two rows, as a launcher gives it; an empty string for none."""
    function = kernel(COPY.format(dtype="u4", a=2, b=4, where="(n, k), q"))
    code = lower(prepare(function, SM_90A, choose(function, SM_90A)), SM_90A)
    contract = replace(manifest(function, code, SM_90A), launch_checks=prove(function).launch_checks)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "w": (dtype, (2, of_bytes)), "x": ("f32", (columns,)), "out": ("u8", (2, columns // 2)),
    }  # fmt: skip
    views = {name: TensorView(4096, one, shape, contiguous_strides(shape)) for name, (one, shape) in shapes.items()}
    try:
        for spec in contract.tensors:
            check_type(spec, views[spec.name], contract.kernel)
        check_shapes(contract, views, {}, {})
    except LaunchError as error:
        return str(error)
    return ""


def test_a_launch_gives_whole_bytes() -> None:
    assert not launched("u8", 130, 65)
    odd = launched("u8", 131, 65)
    assert "[E0910]" in odd and "requires(K % 2 == 0)" in odd and "K = 131" in odd
    short = launched("u8", 130, 64)
    assert "[E0906]" in short and "`K // 2` = 65" in short and "argument `w`" in short
    assert "[E0904]" in launched("i8", 130, 65)


@pytest.mark.parametrize("dtype", NUMPY)
def test_the_text_of_a_kernel_has_its_packed_dtypes(dtype: str) -> None:
    function = kernel(COPY.format(dtype=dtype, a=2, b=4, where="(n, k), q"))
    text = print_function(function)
    assert text.count(f"packed {dtype}") == 2 and print_function(parse_function(text)) == text
    with pytest.raises(ParseError, match="no two elements of"):
        parse_function(text.replace("tensor<u8", "tensor<i8", 1))


def test_threads_load_vectors_of_bytes() -> None:
    """Of rows at a length of the launch, which its contract makes a multiple of vectors."""
    body = GROUPS.format(dtype="i4").replace("(4, ", "(32, ").replace("(N, 4)", "(N, 32)")
    function = kernel(body)
    ptx = to_ptx(lower(prepare(function, SM_90A, choose(function, SM_90A)), SM_90A).mlir, SM_90A)
    assert "ld.global.v2.b32" in ptx and "ld.global.b8" not in ptx
