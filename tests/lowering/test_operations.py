"""Every operation of the language, lowered and run thread by thread, agrees with NumPy."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES, Array

from tests.campaign import in_turn
from tilec.assemble import assemble
from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.frontend.arithmetic import APPROXIMATED
from tilec.ir.core import Function, VerifyError
from tilec.lowering import arithmetic, lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, TARGETS, Target

IMPORTS = """Atomic, In, Out, abs, arange, argmax, argmin, astype, atomic_add, atomic_max, atomic_min, bf16, ceil, cos, erf,
    exp, exp2, f8e4m3, f8e5m2, f16, f32, floor, full, gather, grid, i8, i16, i32, i64, load, log, log2, nan, max,
    maximum, min, minimum, rsqrt, scatter, sigmoid, sin, sqrt, store, sum, tanh, u8, u16, u32, unsafe, values,
    where"""
SHAPE = (3, 40)


def compiled(folder: Path, signature: str, body: str) -> Callable[[], Function]:
    """The proven kernel of one block, compiled anew at each call."""
    path = folder / "k.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(
        f'"""One operation."""\nimport tilec\nfrom tilec import ({IMPORTS})\n\n\n@tilec.kernel\ndef k({signature}):\n{lines}\n'
    )

    def make() -> Function:
        function = load_kernel(path, {}, root=folder)
        prove(function)
        return function

    return make


def run(make: Callable[[], Function], arrays: dict[str, Array], warps: int = 2) -> None:
    """Lowers for one target, and runs on the arrays."""
    launch(make(), lower(prepare(make(), SM_90A, Overrides(warps=warps)), SM_90A), arrays, {})


def elementwise(folder: Path, source: str, target: str, expression: str, *inputs: Array) -> Array:
    """`expression` of `a` and `b`, tiles of dtype `source`, as a tile of dtype `target`."""
    names = "ab"[: len(inputs)]
    shape = ", ".join(map(str, SHAPE))
    signature = ", ".join(f"{name}_: In[{source}, {shape}]" for name in names) + f", out: Out[{target}, {shape}]"
    loads = "".join(f"{name} = load({name}_, (0, 0), shape={SHAPE})\n" for name in names)
    out = np.full(SHAPE, 99).astype(TYPES_OF[target])
    arrays = {f"{name}_": array for name, array in zip(names, inputs, strict=True)}
    run(compiled(folder, signature, f"grid(1)\n{loads}store(out, (0, 0), {expression})"), arrays | {"out": out})
    return out


TYPES_OF = TYPES | {"u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32)}
RANDOM = np.random.default_rng(5)
FLOATS = ("f32", "f16", "bf16")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32")


def floats(dtype: str, low: float = -3, high: float = 3) -> Array:
    return RANDOM.uniform(low, high, SHAPE).astype(TYPES_OF[dtype])


def integers(dtype: str) -> Array:
    info = np.iinfo(TYPES_OF[dtype])
    edges = RANDOM.choice([info.min, info.max, 0, 1, info.max // 2], SHAPE)
    return np.where(RANDOM.random(SHAPE) < 0.3, edges, RANDOM.integers(max(info.min, -100), 100, SHAPE)).astype(TYPES_OF[dtype])


UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "-a": (np.negative, -3, 3),
    "abs(a)": (np.abs, -3, 3),
    "exp2(a)": (np.exp2, -8, 8),
    "exp(a)": (np.exp, -5, 5),
    "log2(a)": (np.log2, 0.1, 9),
    "log(a)": (np.log, 0.1, 9),
    "sqrt(a)": (np.sqrt, 0, 9),
    "rsqrt(a)": (lambda a: 1 / np.sqrt(a), 0.1, 9),
    "tanh(a)": (np.tanh, -3, 3),
    "sigmoid(a)": (lambda a: 1 / (1 + np.exp(-a)), -6, 6),
    "sin(a)": (np.sin, -3, 3),
    "cos(a)": (np.cos, -3, 3),
    "floor(a)": (np.floor, -3, 3),
    "ceil(a)": (np.ceil, -3, 3),
    "round(a)": (np.rint, -3, 3),
    "erf(a)": (np.vectorize(math.erf), -3, 3),
}


CLOSE = {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}
ROUNDED = {"f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}


@pytest.mark.parametrize(("expression", "dtype"), in_turn(UNARY, FLOATS))
def test_functions_of_floats(expression: str, dtype: str, tmp_path: Path) -> None:
    function, low, high = UNARY[expression]
    a = floats(dtype, low, high)
    word = expression.removesuffix("(a)")
    if word in APPROXIMATED:
        found = elementwise(tmp_path, dtype, dtype, f"{word}(a, fast=True)", a)
        exact = function(a.astype(np.float64))
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=CLOSE[dtype], atol=1e-6)
    found = elementwise(tmp_path, dtype, dtype, expression, a).astype(np.float64)
    np.testing.assert_allclose(
        found, function(a.astype(np.float64)), rtol=CLOSE[dtype] if word not in APPROXIMATED else ROUNDED[dtype], atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "dtype", "known"),
    [("exp", "bf16", "abs, ceil, cos, erf, exp2, floor, log, "), ("sin", "f32", "abs, ceil, cos, erf, exp, exp2, ")],
)
def test_a_function_without_instructions_is_named_with_its_dtype(
    name: str, dtype: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that the language has and the lowering lacks, as while it is being added: the error lists those to use."""
    monkeypatch.delitem(arithmetic.FLOAT_UNARY, name)
    message = f"no instructions compute `{name}` of {dtype}; write it with what there is: {known}"
    with pytest.raises(VerifyError, match=re.escape(message)):
        elementwise(tmp_path, dtype, dtype, f"{name}(a)", floats(dtype))


FLOAT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": np.add,
    "a - b": np.subtract,
    "a * b": np.multiply,
    "a / b": np.divide,
    "maximum(a, b)": np.maximum,
    "minimum(a, b)": np.minimum,
    "where(a < b, a, -b)": lambda a, b: np.where(a < b, a, -b),
    "where((a >= b) | (a == 1), a, b * 2)": lambda a, b: np.where((a >= b) | (a == 1), a, b * 2),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("expression", FLOAT_BINARY)
def test_arithmetic_of_floats_rounds_once(expression: str, dtype: str, tmp_path: Path) -> None:
    a, b = floats(dtype), floats(dtype, 0.5)
    found = elementwise(tmp_path, dtype, dtype, expression, a, b)
    wide = FLOAT_BINARY[expression](a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found, wide.astype(found.dtype))


INTEGER_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": np.add,
    "a - b": np.subtract,
    "a * b": np.multiply,
    "maximum(a, b)": np.maximum,
    "minimum(a, b)": np.minimum,
    "a & b": np.bitwise_and,
    "a | b": np.bitwise_or,
    "a ^ b": np.bitwise_xor,
    "where(a > b, a, b - a)": lambda a, b: np.where(a > b, a, b - a),
    "where((a != b) & (a <= b), a, b)": lambda a, b: np.where((a != b) & (a <= b), a, b),
}


@pytest.mark.parametrize(("expression", "dtype"), in_turn(INTEGER_BINARY, INTEGERS))
def test_arithmetic_of_integers_wraps(expression: str, dtype: str, tmp_path: Path) -> None:
    a, b = integers(dtype), integers(dtype)
    found = elementwise(tmp_path, dtype, dtype, expression, a, b)
    np.testing.assert_array_equal(found, INTEGER_BINARY[expression](a, b))


@pytest.mark.parametrize("dtype", ["i32", "i16", "u8"])
@pytest.mark.parametrize("kind", ["//", "%"])
def test_division_rounds_down(kind: str, dtype: str, tmp_path: Path) -> None:
    a = integers(dtype)
    for divisor in (1, 3, 8):
        found = elementwise(tmp_path, dtype, dtype, f"a {kind} {divisor}", a)
        np.testing.assert_array_equal(found, a // divisor if kind == "//" else a % divisor)


@pytest.mark.parametrize(("target", "source"), in_turn([*FLOATS, *INTEGERS], [*FLOATS, *INTEGERS]))
def test_casts(source: str, target: str, tmp_path: Path) -> None:
    a = floats(source, 0, 90) if source in FLOATS else integers(source)
    if target in FLOATS and source in INTEGERS:
        a = (a % 64).astype(a.dtype)  # exact in every float
    found = elementwise(tmp_path, source, target, f"astype(a, {target})", a)
    np.testing.assert_array_equal(found, a.astype(TYPES_OF[target]))


EIGHT_BITS = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
TYPES_OF |= {name: np.dtype(dtype) for name, dtype in EIGHT_BITS.items()}


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("other", ["f32", "f16", "bf16", "i32"])
def test_casts_of_8_bit_floats(dtype: str, other: str, tmp_path: Path) -> None:
    # Every finite value.
    values = np.arange(120, dtype=np.uint8).view(EIGHT_BITS[dtype]).reshape(SHAPE)
    values = np.where(np.isfinite(values.astype(np.float32)), values, 0).astype(EIGHT_BITS[dtype])
    found = elementwise(tmp_path, dtype, other, f"astype(a, {other})", values)
    np.testing.assert_array_equal(found, values.astype(np.float32).astype(TYPES_OF[other]))
    limit = float(ml_dtypes.finfo(EIGHT_BITS[dtype]).max)
    a = (RANDOM.normal(size=SHAPE) * 100).astype(TYPES_OF[other])
    if other != "i32":
        a[0, 0], a[0, 1] = 60000, -60000
    found = elementwise(tmp_path, other, dtype, f"astype(a, {dtype})", a)
    np.testing.assert_array_equal(found, a.astype(np.float32).clip(-limit, limit).astype(EIGHT_BITS[dtype]))


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("expression", ["a + b", "a * b", "where(a < b, a, -b)", "maximum(a, b)"])
def test_arithmetic_of_8_bit_floats_rounds_once(expression: str, dtype: str, tmp_path: Path) -> None:
    a, b = floats(dtype), floats(dtype)
    found = elementwise(tmp_path, dtype, dtype, expression, a, b)
    wide = FLOAT_BINARY[expression](a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(found, wide.astype(EIGHT_BITS[dtype]))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_8_bit_floats_become_machine_code(target: Target, tmp_path: Path) -> None:
    signature = "x: In[f8e4m3, 64], out: Out[f8e5m2, 65]"
    body = "grid(1)\na = load(x, 0, shape=65, pad=1.5)\nstore(out, 0, astype(a * 2 + 1, f8e5m2))"
    lowered = lower(prepare(compiled(tmp_path, signature, body)(), target), target)
    ptx = to_ptx(lowered.mlir, target)
    assert ("cvt.rn.f16x2.e4m3x2" in ptx and "cvt.rn.satfinite.e5m2x2.f32" in ptx) == target.converts_f8
    assert assemble(ptx, target).resources.spill_bytes == 0


@pytest.mark.parametrize("dtype", [*FLOATS, "f8e4m3", "f8e5m2"])
def test_a_nan_of_the_text(dtype: str, tmp_path: Path) -> None:
    a = floats("f32")
    found = elementwise(tmp_path, "f32", dtype, f"astype(where(a > 0, nan, a), {dtype})", a).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), a > 0)
    signature = f"x: In[{dtype}, 64], out: Out[f32, 65]"
    out = np.zeros(65, np.float32)
    make = compiled(tmp_path, signature, "grid(1)\nstore(out, 0, astype(load(x, 0, shape=65, pad=nan), f32))")
    run(make, {"x": np.zeros(64, EIGHT_BITS.get(dtype) or TYPES[dtype]), "out": out})
    np.testing.assert_array_equal(np.isnan(out), np.arange(65) == 64)


REDUCE: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda a, axis: a.astype(np.float64).sum(axis=axis).astype(a.dtype),
    "max": lambda a, axis: a.max(axis=axis),
    "min": lambda a, axis: a.min(axis=axis),
    "argmax": lambda a, axis: a.argmax(axis=axis),
    "argmin": lambda a, axis: a.argmin(axis=axis),
}


SHAPES = [((3, 40), 0), ((3, 40), 1), ((2, 8, 16), 1), ((512, 2), 0), ((7,), 0), ((4, 96), 1)]
REDUCTIONS = itertools.product((1, 4), REDUCE, ("f32", "i32", "bf16"))


@pytest.mark.parametrize(("reduced", "axes"), in_turn(REDUCTIONS, SHAPES))
def test_reductions(reduced: tuple[int, str, str], axes: tuple[tuple[int, ...], int], tmp_path: Path) -> None:
    (warps, kind, dtype), (shape, axis) = reduced, axes
    a = RANDOM.integers(-6, 6, shape).astype(TYPES[dtype])  # many ties; exact sums
    result_shape = shape[:axis] + shape[axis + 1 :] or (1,)
    target = "i32" if kind.startswith("arg") else dtype
    dims, zeros = (", ".join(map(str, s)) for s in (shape, (0,) * len(shape)))
    signature = f"x: In[{dtype}, {dims}], out: Out[{target}, {', '.join(map(str, result_shape))}]"
    body = f"grid(1)\na = load(x, ({zeros},), shape={shape})\nstore(out, ({'0, ' * len(result_shape)}), {kind}(a, axis={axis}))"
    if len(shape) == 1:
        body = body.replace(f"{kind}(a, axis=0))", f"full((1,), {kind}(a, axis=0), {target}))")
    out = np.full(result_shape, 99).astype(TYPES[target])
    run(compiled(tmp_path, signature, body), {"x": a, "out": out}, warps)
    np.testing.assert_array_equal(out.reshape(-1), REDUCE[kind](a, axis).reshape(-1))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "u8"])
def test_gather_reads_each_index_or_the_padding(dtype: str, tmp_path: Path) -> None:
    x = RANDOM.integers(0, 100, (5, 24)).astype(TYPES_OF[dtype])
    rows, columns = (RANDOM.integers(-3, limit, SHAPE).astype(np.int32) for limit in (8, 30))
    signature = f"x: In[{dtype}, 5, 24], r: In[i32, 3, 40], c: In[i32, 3, 40], out: Out[{dtype}, 3, 40]"
    body = (
        f"grid(1)\ni = load(r, (0, 0), shape={SHAPE})\nj = load(c, (0, 0), shape={SHAPE})\n"
        "store(out, (0, 0), gather(x, (i, j), pad=7))"
    )
    out = np.zeros(SHAPE, x.dtype)
    run(compiled(tmp_path, signature, body), {"x": x, "r": rows, "c": columns, "out": out})
    in_bounds = (rows >= 0) & (rows < 5) & (columns >= 0) & (columns < 24)
    np.testing.assert_array_equal(out, np.where(in_bounds, x[rows.clip(0, 4), columns.clip(0, 23)], 7).astype(x.dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_scatter_writes_each_index_in_bounds(dtype: str, tmp_path: Path) -> None:
    x = RANDOM.integers(0, 100, (48,)).astype(TYPES[dtype])
    indices = RANDOM.permutation(64)[:48].astype(np.int32) - 8
    signature = f"x: In[{dtype}, 48], p: In[i32, 48], out: Out[{dtype}, 40]"
    body = (
        "grid(1)\nv = load(x, 0, shape=48)\ni = load(p, 0, shape=48)\n"
        'with unsafe("no two places are equal"):\n    scatter(out, (i,), v, mask=True)'
    )
    out = np.full(40, -1).astype(x.dtype)
    expected = out.copy()
    in_bounds = (indices >= 0) & (indices < 40)
    expected[indices[in_bounds]] = x[in_bounds]
    run(compiled(tmp_path, signature, body), {"x": x, "p": indices, "out": out})
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize(("kind", "function"), [("add", np.add), ("max", np.maximum), ("min", np.minimum)])
def test_atomics_combine(kind: str, function: np.ufunc, dtype: str, tmp_path: Path) -> None:
    x, out = (RANDOM.integers(-50, 50, SHAPE).astype(TYPES[dtype]) for _ in range(2))
    expected = function(function(out, x), x)
    signature = f"x: In[{dtype}, 3, 40], out: Atomic[{dtype}, 3, 40]"
    body = f"grid(2)\natomic_{kind}(out, (0, 0), load(x, (0, 0), shape={SHAPE}))"
    run(compiled(tmp_path, signature, body), {"x": x, "out": out})
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_float_atomics_at_the_edges(kind: str, tmp_path: Path) -> None:
    """A NaN loses to a number, -0 is below +0, both in memory and as operand; two NaNs give NaN."""
    edges = np.array([np.nan, -np.inf, -1.0, -0.0, 0.0, 1e-45, 1.0, np.inf], np.float32)
    out, x = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(edges, edges))
    expected = [better(kind, a, b) for a, b in zip(out.tolist(), x.tolist(), strict=True)]
    body = f"grid(3)\natomic_{kind}(out, 0, load(x, 0, shape=64))"
    run(compiled(tmp_path, "x: In[f32, 64], out: Atomic[f32, 64]", body), {"x": x, "out": out})
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out) & ~np.isnan(out), [math.copysign(1, e) < 0 and e == e for e in expected])


def better(kind: str, a: float, b: float) -> float:
    """The larger or smaller of two numbers, in the order of the reals with -0 below +0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    pick = max if kind == "max" else min
    return pick(a, b, key=lambda v: (v, math.copysign(1, v)))
