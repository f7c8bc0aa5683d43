"""Every operation has one value for all operands: interpreter, constant folding, lowered code on the block machine, and an
oracle in plain Python agree at the edges of every dtype."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import plain_meaning as plain
import pytest
from block_machine import launch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.campaign import in_turn
from tilec import interpreter
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.text.parser import parse_function
from tilec.ir.types import DTYPES, TileType, boolean
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.simplify import folding
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

Array = NDArray[Any]
INTEGERS = tuple(plain.BITS)
NUMPY: dict[str, Any] = {name: np.dtype(("int" if name[0] == "i" else "uint") + name[1:]) for name in INTEGERS} | {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "bool": np.dtype(bool),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
INTEGER_KINDS = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "and", "or", "xor", "shl", "shr", "mulhi")
SMALLEST = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
LARGEST = {"f32": (2 - 2.0**-23) * 2.0**127, "f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127}


def edges(dtype: str) -> list[Any]:
    """Values at which an operation may overflow, round or change sign."""
    if dtype in plain.BITS:
        low, high = plain.limits(dtype)
        bits = plain.BITS[dtype]
        cases = {low, low + 1, 0, 1, 2, 3, 7, bits - 1, bits, bits + 1, high - 1, high, *({-1, -2, -7, -bits} if low else ())}
        return sorted(cases)
    if dtype == "bool":
        return [False, True]
    tiny, large = SMALLEST[dtype], LARGEST[dtype]
    normal = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}[dtype]
    positive = [0.0, tiny, normal - tiny, normal, 0.5, 1.0, 1.5, 127.0, 255.0, 256.0, 32767.0, 2.0**15, large, math.inf]
    if dtype != "f16":
        positive += [2.0**31, 2.0**32, 2.0**63, 2.0**64]
    representable = list(dict.fromkeys(plain.rounded(x, dtype) for x in positive))
    return [math.nan, *representable, *(-x for x in representable)]


def both(line: str, result: str, *inputs: tuple[str, list[Any]]) -> tuple[list[Any], list[Any]]:
    """The results of `line` for every element, by the interpreter and by lowered code; `%a`, `%b` are the inputs."""
    count = len(inputs[0][1])
    letters = "ab"[: len(inputs)]
    result_dtype, _, shape = result.rstrip("]").partition("[")
    parameters = [
        f"%p{letter}: in tensor<{dtype}, [{count}], align 16>" for letter, (dtype, _) in zip(letters, inputs, strict=True)
    ]
    text = f"kernel @k({', '.join([*parameters, f'%out: out tensor<{result_dtype}, [{shape or count}], align 16>'])}) {{\n"
    text += "  constants {}\n  dims []\n  strides []\n  grid [1]\n  %z = constant {value = 0} : i32\n"
    for letter, (dtype, _) in zip(letters, inputs, strict=True):
        text += f"  %{letter} = load %p{letter}, %z {{pad = none, unsafe = none, vector = 0}} : {dtype}[{count}]\n"
    text += f"  {line}\n  store %out, %r, %z {{mask = false, unsafe = none, vector = 0}}\n}}\n"
    arrays = {f"p{n}": np.array(values, NUMPY[dtype]) for n, (dtype, values) in zip(letters, inputs, strict=True)}
    size = int(shape or count)
    interpreted, executed = np.zeros(size, NUMPY[result_dtype]), np.zeros(size, NUMPY[result_dtype])
    with np.errstate(all="ignore"):
        interpreter.run(parse_function(text), arrays | {"out": interpreted})
        function = prepare(parse_function(text), SM_90A, Overrides(warps=2))
        launch(function, lower(function, SM_90A), arrays | {"out": executed}, {})
    return [as_python(x) for x in interpreted], [as_python(x) for x in executed]


def as_python(value: Any) -> int | float | bool:
    """A NumPy scalar as a Python number."""
    if isinstance(value, np.bool_):
        return bool(value)
    return int(value) if isinstance(value, np.integer) else float(value)


def same(found: Any, expected: Any) -> bool:
    """Equal, including the sign of zero; any NaN equals any NaN."""
    if isinstance(expected, float) and expected != expected:
        return found != found
    return found == expected and math.copysign(1, found) == math.copysign(1, expected)


def check(found: tuple[list[Any], list[Any]], expected: list[Any], *operands: list[Any]) -> None:
    for name, values in zip(("interpreter", "lowered code"), found, strict=True):
        mismatches = [(*inputs, x, y) for *inputs, x, y in zip(*operands, values, expected, strict=True) if not same(x, y)]
        assert not mismatches, f"{name}: operands, found, wanted: {mismatches[:5]}"


def pairs(dtype: str) -> tuple[list[Any], list[Any]]:
    all_pairs = list(itertools.product(edges(dtype), repeat=2))
    return [a for a, _ in all_pairs], [b for _, b in all_pairs]


def folded(op: Op, dtype: str, result: TileType, *values: int) -> int | None:
    """The constant that folding gives for an operation on constants."""
    for value in values:
        constant = ops.Constant(value=bool(value) if dtype == "bool" else value)
        constant.define(TileType(DTYPES[dtype]))
        op.operands.append(constant.result)
    op.define(result)
    found = folding.folded(op)
    return None if found is None else int(found.value)


@pytest.mark.parametrize(("kind", "dtype"), in_turn(INTEGER_KINDS, INTEGERS))
def test_integer_operations(kind: str, dtype: str) -> None:
    left, right = pairs(dtype)
    expected = [plain.integer_binary(kind, a, b, dtype) for a, b in zip(left, right, strict=True)]
    text = f'%r = binary %a, %b {{kind = "{kind}"}} : {dtype}[{len(left)}]'
    check(both(text, dtype, (dtype, left), (dtype, right)), expected, left, right)
    scalar = TileType(DTYPES[dtype])
    assert expected == [folded(ops.Binary(kind=kind), dtype, scalar, a, b) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["neg", "abs", "not"])
def test_integer_functions(kind: str, dtype: str) -> None:
    values = edges(dtype)
    expected = [plain.integer_unary(kind, a, dtype) for a in values]
    check(both(f'%r = unary %a {{kind = "{kind}"}} : {dtype}[{len(values)}]', dtype, (dtype, values)), expected, values)
    assert expected == [folded(ops.Unary(kind=kind), dtype, TileType(DTYPES[dtype]), a) for a in values]


@pytest.mark.parametrize("dtype", plain.FLOATS)
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "min", "max"])
def test_float_operations(kind: str, dtype: str) -> None:
    left, right = pairs(dtype)
    expected = [plain.float_binary(kind, a, b, dtype) for a, b in zip(left, right, strict=True)]
    text = f'%r = binary %a, %b {{kind = "{kind}"}} : {dtype}[{len(left)}]'
    check(both(text, dtype, (dtype, left), (dtype, right)), expected, left, right)


@pytest.mark.parametrize(("kind", "dtype"), in_turn(ops.COMPARE_KINDS, [*INTEGERS, *plain.FLOATS]))
def test_comparisons(kind: str, dtype: str) -> None:
    left, right = pairs(dtype)
    expected = [plain.compare(kind, a, b) for a, b in zip(left, right, strict=True)]
    text = f'%r = compare %a, %b {{kind = "{kind}"}} : bool[{len(left)}]'
    check(both(text, "bool", (dtype, left), (dtype, right)), expected, left, right)
    if dtype in plain.BITS:
        results = [folded(ops.Compare(kind=kind), dtype, TileType(boolean), a, b) for a, b in zip(left, right, strict=True)]
        assert [bool(x) for x in results] == expected


@pytest.mark.parametrize(("target", "source"), in_turn([*INTEGERS, *plain.FLOATS, "bool"], [*INTEGERS, *plain.FLOATS, "bool"]))
def test_casts(source: str, target: str) -> None:
    values = edges(source)
    expected = [plain.cast(value, target) for value in values]
    check(both(f"%r = cast %a : {target}[{len(values)}]", target, (source, values)), expected, values)
    if source not in plain.FLOATS and target not in plain.FLOATS and source != target:
        results = [folded(ops.Cast(), source, TileType(DTYPES[target]), value) for value in values]
        assert results == [int(x) for x in expected]


@pytest.mark.parametrize("target", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_casts_to_8_bit_floats_stay_finite(source: str, target: str) -> None:
    values, limit = edges(source), {"f8e4m3": 448.0, "f8e5m2": 57344.0}[target]
    expected = [float(np.float32(value).clip(-limit, limit).astype(NUMPY[target])) for value in values]
    assert max(expected[1:]) == limit and math.isnan(expected[0])
    check(both(f"%r = cast %a : {target}[{len(values)}]", target, (source, values)), expected, values)


OF_DATA = ("fast_sin", "fast_cos")
"""Approximations that are good near 0 only."""


@pytest.mark.parametrize("kind", sorted({*ops.FLOAT_UNARY, "abs", "neg"} - {*OF_DATA}))
def test_functions_are_total(kind: str) -> None:
    values = edges("f32")
    interpreted, executed = both(f'%r = unary %a {{kind = "{kind}"}} : f32[{len(values)}]', "f32", ("f32", values))
    assert math.isnan(interpreted[0]) and math.isnan(executed[0])
    if kind == "erf" or kind.startswith("fast_"):
        np.testing.assert_allclose(interpreted, executed, rtol=1e-5, atol=2.0**-126)
    else:
        check((interpreted, executed), interpreted, values)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_powers_are_those_of_the_c_library(dtype: str) -> None:
    left, right = pairs(dtype)
    numbers = (np.array(side, np.float32) for side in (left, right))
    with np.errstate(all="ignore"):
        exact = np.power(*(side.astype(np.float64) for side in numbers))
        expected = exact.astype(np.float32).astype(NUMPY[dtype]).astype(np.float64)
    found = both(f'%r = binary %a, %b {{kind = "pow"}} : {dtype}[{len(left)}]', dtype, (dtype, left), (dtype, right))
    check((found[0], found[1]), found[0], left, right)
    np.testing.assert_allclose(found[0], expected, rtol={"f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype])
    assert (np.signbit(found[0]) == np.signbit(expected))[~np.isnan(expected)].all()


def test_fast_powers_are_by_logarithms() -> None:
    left, right = [0.0, math.inf, -1.0, 2.0, 0.0, 1.0, math.nan], [0.0, 0.0, 2.0, 3.0, 2.0, math.inf, 0.0]
    expected = [math.nan, math.nan, math.nan, 8.0, 0.0, math.nan, math.nan]
    check(both(f'%r = binary %a, %b {{kind = "fast_pow"}} : f32[{len(left)}]', "f32", ("f32", left), ("f32", right)), expected)


SPECIAL_FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, SMALLEST["f32"]])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["argmax", "argmin", "max", "min"]))
def test_reductions_of_any_floats(data: st.DataObject, kind: str) -> None:
    extent = data.draw(st.sampled_from([1, 2, 7, 33, 64, 256, 512]))
    choices = data.draw(st.lists(SPECIAL_FLOATS, min_size=1, max_size=4))
    values = [data.draw(st.sampled_from(choices)) for _ in range(min(extent, 16))]
    values = (values * extent)[:extent]
    target = "i32" if kind.startswith("arg") else "f32"
    expected = plain.arg(kind, values) if target == "i32" else plain.extreme(kind, values)
    text = f'%s = reduce %a {{kind = "{kind}", axis = 0}} : {target}\n  %r = broadcast %s : {target}[64]'
    check(both(text, f"{target}[64]", ("f32", values)), [expected] * 64)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(INTEGERS), kind=st.sampled_from(["floordiv", "mod", "shl", "shr"]))
def test_divisions_and_shifts_of_any_integers(data: st.DataObject, dtype: str, kind: str) -> None:
    any_value = st.one_of(st.sampled_from(edges(dtype)), st.integers(*plain.limits(dtype)))
    left, right = (data.draw(st.lists(any_value, min_size=32, max_size=32)) for _ in range(2))
    expected = [plain.integer_binary(kind, a, b, dtype) for a, b in zip(left, right, strict=True)]
    check(
        both(f'%r = binary %a, %b {{kind = "{kind}"}} : {dtype}[32]', dtype, (dtype, left), (dtype, right)),
        expected,
        left,
        right,
    )


@pytest.mark.parametrize(("kind", "dtype"), in_turn(("floordiv", "mod", "shl", "shr"), ("i8", "i32", "i64", "u32"), 2))
def test_constants_on_the_right(kind: str, dtype: str) -> None:
    """The plain instruction is used if and only if ranges show that it is defined for the right operand."""
    values = edges(dtype)
    for right in [x for x in edges(dtype) if abs(x) < 100]:
        text = f"%c = constant {{value = {right}}} : {dtype}[{len(values)}]\n"
        text += f'  %r = binary %a, %c {{kind = "{kind}"}} : {dtype}[{len(values)}]'
        check(both(text, dtype, (dtype, values)), [plain.integer_binary(kind, a, right, dtype) for a in values], values)


def test_the_oracle_agrees_with_python() -> None:
    """For operands in range, the oracle is Python's own arithmetic."""
    for a, b in itertools.product(range(-9, 10), repeat=2):
        if b:
            assert plain.integer_binary("floordiv", a, b, "i8") == operator.floordiv(a, b)
            assert plain.integer_binary("mod", a, b, "i8") == operator.mod(a, b)
        if b >= 0:
            assert plain.integer_binary("shr", a, min(b, 7), "i8") == operator.rshift(a, min(b, 7))
