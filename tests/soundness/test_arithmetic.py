"""The enumerator's own arithmetic: every operation at its edges, and floats against NumPy's rounding."""

from __future__ import annotations

import math
import random

import ml_dtypes
import numpy as np
import pytest

from tests.soundness import floats
from tests.soundness.arithmetic import evaluate, sort, wrapped
from tilec.interpreter.arithmetic import sort as interpreted_sort
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.types import DTYPES, TileType

NAN, INF = math.nan, math.inf
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def result(op: Op, dtype: str, *operands: list[float], out: str | None = None) -> list[float]:
    shape = (len(operands[0]),)
    op.operands = [Value(TileType(DTYPES[dtype], shape)) for _ in operands]
    op.define(TileType(DTYPES[out or dtype], shape))
    found = evaluate(op, list(operands))
    kind = op.result.tile.dtype
    return [wrapped(int(v), kind) for v in found] if kind.is_integer else found


@pytest.mark.parametrize(
    ("kind", "dtype", "a", "b", "expected"),
    [
        ("add", "i8", 127, 1, -128),
        ("sub", "u8", 0, 1, 255),
        ("mul", "i16", 300, 300, 90000 - 65536),
        ("floordiv", "i32", -7, 2, -4),
        ("floordiv", "i32", 7, 0, 0),
        ("floordiv", "i32", -(2**31), -1, -(2**31)),
        ("mod", "i32", -7, 2, 1),
        ("mod", "i32", 7, 0, 0),
        ("mod", "i32", -(2**31), -1, 0),
        ("mod", "i32", 7, -2, -1),
        ("shl", "i32", 1, 31, -(2**31)),
        ("shl", "i32", 1, 32, 0),
        ("shl", "i32", 1, -1, 0),
        ("shr", "i32", -8, 1, -4),
        ("shr", "i32", -8, 40, -1),
        ("shr", "i32", 8, 40, 0),
        ("shr", "i32", -8, -1, -1),
        ("shr", "u32", 2**32 - 1, 32, 0),
        ("xor", "i8", -1, 5, -6),
    ],
)
def test_integers_at_their_edges(kind: str, dtype: str, a: int, b: int, expected: int) -> None:
    assert result(ops.Binary(kind=kind), dtype, [a], [b]) == [expected]


@pytest.mark.parametrize(
    ("kind", "dtype", "a", "expected"),
    [("neg", "i8", -128, -128), ("abs", "i8", -128, -128), ("abs", "u32", 2**31, 2**31), ("not", "u8", 1, 254),
     ("not", "bool", 1, 0), ("neg", "u8", 1, 255)],
)  # fmt: skip
def test_unary_integers_at_their_edges(kind: str, dtype: str, a: int, expected: int) -> None:
    assert result(ops.Unary(kind=kind), dtype, [a]) == [expected]


@pytest.mark.parametrize(
    ("source", "target", "a", "expected"),
    [("f32", "i32", NAN, 0), ("f32", "i8", 300.0, 127), ("f32", "u8", -3.5, 0), ("f32", "i64", INF, 2**63 - 1),
     ("f32", "i32", -2.9, -2), ("i32", "u8", -1, 255), ("i8", "i64", -1, -1), ("u8", "i32", 200, 200), ("i32", "bool", 2, 1),
     ("f32", "bool", NAN, 1), ("bool", "f32", 1, 1.0), ("i64", "f32", 2**24 + 1, 2.0**24), ("i32", "f16", 70000, INF)],
)  # fmt: skip
def test_conversions_at_their_edges(source: str, target: str, a: float, expected: float) -> None:
    assert result(ops.Cast(), source, [a], out=target) == [expected]


def test_nan_loses_and_zeros_are_ordered() -> None:
    assert floats.minimum_number(NAN, 3.0) == 3.0
    assert floats.maximum_number(3.0, NAN) == 3.0
    assert math.isnan(floats.maximum_number(NAN, NAN))
    assert math.copysign(1, floats.minimum_number(0.0, -0.0)) == -1
    assert math.copysign(1, floats.maximum_number(-0.0, 0.0)) == 1


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [("argmax", [NAN, 1.0, 2.0, 2.0], 2), ("argmin", [NAN, 0.0, -0.0], 1), ("argmax", [NAN, NAN], 0), ("argmin", [3, 1, 1], 1)],
)
def test_positions(kind: str, column: list[float], expected: int) -> None:
    dtype = "f32" if any(isinstance(v, float) for v in column) else "i32"
    op = ops.Reduce(kind=kind, axis=0, operands=[Value(TileType(DTYPES[dtype], (len(column),)))])
    op.define(TileType(DTYPES["i32"]))
    assert evaluate(op, [column]) == [expected]


def test_division_and_comparison_of_floats() -> None:
    assert result(ops.Binary(kind="div"), "f32", [1.0, -1.0], [0.0, 0.0]) == [INF, -INF]
    assert math.isnan(result(ops.Binary(kind="div"), "f32", [0.0], [0.0])[0])
    compare = ops.Compare(kind="ne")
    assert result(compare, "f32", [NAN], [NAN], out="bool") == [1]
    assert result(ops.Compare(kind="le"), "f32", [NAN], [1.0], out="bool") == [0]


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_rounding_is_numpys(name: str) -> None:
    r = random.Random(name)
    dtype = DTYPES[name]
    numbers = [r.uniform(-4, 4) * 2.0 ** r.randint(-150, 130) for _ in range(3000)] + [0.0, -0.0, INF, 65519.9, 65520.0, 1e-45]
    with np.errstate(all="ignore"):
        for number in numbers:
            expected = float(np.float32(number).astype(NUMPY[name]))
            assert floats.rounded(number, dtype) == expected, number
    for _ in range(2000):
        integer = r.getrandbits(63) >> r.randint(0, 62)
        assert floats.from_int(integer, DTYPES["f32"]) == float(np.int64(integer).astype(np.float32)), integer


@pytest.mark.parametrize(
    ("left", "right", "out", "a", "b", "acc", "expected"),
    [("i8", "u8", "i32", -128, 255, -(2**31), 2**31 - 128 * 255), ("i8", "i8", "i32", 127, 127, 5, 127 * 127 + 5),
     ("f32", "f32", "f32", 1 + 2.0**-11, 1.0, 0.0, 1 + 2.0**-10), ("f32", "f32", "f32", 1 + 2.0**-12, 1.0, 0.0, 1.0),
     ("f32", "f32", "f32", -(1 + 2.0**-11), 1.0, 0.0, -(1 + 2.0**-10)), ("f8e4m3", "f8e5m2", "f32", 448.0, 1.75, 1.0, 785.0)],
)  # fmt: skip
def test_products_at_their_edges(
    left: str, right: str, out: str, a: float, b: float, acc: float, expected: float
) -> None:  # fmt: skip
    """Integers wrap, and f32 is rounded to tf32, halves away from zero."""
    values = [Value(TileType(DTYPES[name], (1, 1))) for name in (left, right, out)]
    op = ops.Mma(operands=values)
    op.define(TileType(DTYPES[out], (1, 1)))
    op.verify()
    (found,) = evaluate(op, [[a], [b], [acc]])
    assert (wrapped(int(found), DTYPES[out]) if out == "i32" else found) == expected


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("dtype", "axis"), [("f32", 0), ("f32", 1), ("i32", 1)])
def test_sorts_are_those_of_the_interpreter(dtype: str, axis: int, descending: bool) -> None:
    r = random.Random(f"{dtype} {axis} {descending}")
    numbers = [NAN, -NAN, 0.0, -0.0, 1.0, -1.0, INF, -INF] if dtype == "f32" else [-1, 0, 1, 2]
    keys, positions = [r.choice(numbers) for _ in range(32)], list(range(32))
    op = ops.Sort(axis=axis, descending=descending)
    op.operands = [Value(TileType(DTYPES[name], (4, 8))) for name in (dtype, "i32")]
    op.results = [Value(TileType(DTYPES[name], (4, 8))) for name in (dtype, "i32")]
    arrays = [np.array(keys, DTYPES[dtype].numpy).reshape(4, 8), np.array(positions, np.int32).reshape(4, 8)]
    _, expected = interpreted_sort(op, *arrays)
    assert sort(op, [list(keys), list(positions)])[1] == expected.reshape(-1).tolist()
