"""Each operation of the tile IR against plain NumPy or Python integers."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilec.interpreter import InterpreterError, run
from tilec.interpreter.arithmetic import PURE
from tilec.interpreter.memory import ACCESSES
from tilec.ir import ops
from tilec.ir.core import OPS, Op
from tilec.ir.ops import BINARY_KINDS, FLOAT_UNARY
from tilec.ir.ops.overlapping_ops import OverlappingLoad
from tilec.ir.text.parser import parse_function

Array = NDArray[Any]
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32}
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "bool": np.bool_} | {
    name: np.dtype(("int" if name[0] == "i" else "uint") + name[1:]) for name in BITS
}
EPSILON = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def evaluate(line: str, result: str, *inputs: tuple[str, Array]) -> Array:
    """The result of `line` on whole arrays; `%a`, `%b` ... are the inputs with their types, `%r` is the result."""
    letters = "abcd"[: len(inputs)]
    dtype, _, shape = result.rstrip("]").partition("[")
    shape = shape or "1"
    tensors = {f"%p{letter}: in": type_ for letter, (type_, _) in zip(letters, inputs, strict=True)}
    tensors["%out: out"] = f"{dtype}[{shape}]"
    parameters = [f"{name} tensor<{type_.replace('[', ', [')}, align 16>" for name, type_ in tensors.items()]
    text = f"kernel @k({', '.join(parameters)}) {{\n"
    text += "  constants {}\n  dims []\n  strides []\n  grid [1]\n  %z = constant {value = 0} : i32\n"
    for letter, (type_, array) in zip(letters, inputs, strict=True):
        offsets = ", ".join(["%z"] * array.ndim)
        text += f"  %{letter} = load %p{letter}, {offsets} {{pad = none, unsafe = none, vector = 0}} : {type_}\n"
    text += f"  %r = {line} : {result}\n"
    text += f"  store %out, %r, {', '.join(['%z'] * (shape.count(',') + 1))} {{mask = false, unsafe = none, vector = 0}}\n}}\n"
    out = np.zeros([int(extent) for extent in shape.split(",")], NUMPY[dtype])
    run(parse_function(text), {f"p{n}": a for n, (_, a) in zip(letters, inputs, strict=True)} | {"out": out})
    return out


def typed(dtype: str, values: Any) -> tuple[str, Array]:
    array = np.asarray(values).astype(NUMPY[dtype])
    return f"{dtype}[{', '.join(map(str, array.shape))}]", array


def wrapped(value: int, dtype: str) -> int:
    value &= (1 << BITS[dtype]) - 1
    return value - (1 << BITS[dtype]) if dtype[0] == "i" and value >> (BITS[dtype] - 1) else value


def integers(dtype: str) -> st.SearchStrategy[int]:
    low, high = (-(1 << BITS[dtype] - 1), (1 << BITS[dtype] - 1) - 1) if dtype[0] == "i" else (0, (1 << BITS[dtype]) - 1)
    return st.one_of(st.sampled_from([low, high, low + 1, high - 1, 0, 1]), st.integers(low, high))


INTEGER_MEANING: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(sorted(BITS)), kind=st.sampled_from(sorted(INTEGER_MEANING)))
def test_integers_wrap_and_divide_downward(data: st.DataObject, dtype: str, kind: str) -> None:
    left = data.draw(integers(dtype))
    right = data.draw(st.integers(0, BITS[dtype] - 1) if kind in ("shl", "shr") else integers(dtype))
    if kind in ("floordiv", "mod") and right == 0:
        right = 1
    found = evaluate(f'binary %a, %b {{kind = "{kind}"}}', f"{dtype}[1]", typed(dtype, [left]), typed(dtype, [right]))
    assert int(found[0]) == wrapped(INTEGER_MEANING[kind](left, right), dtype)


@pytest.mark.parametrize("kind", ["floordiv", "mod"])
def test_division_by_zero_gives_zero(kind: str) -> None:
    found = evaluate(f'binary %a, %b {{kind = "{kind}"}}', "i32[2]", typed("i32", [7, 2]), typed("i32", [7, 0]))
    assert found.tolist() == [1 if kind == "floordiv" else 0, 0]


FLOAT_MEANING: dict[str, Any] = {
    "exp2": lambda x: 2.0**x, "exp": math.exp, "log2": math.log2, "log": math.log, "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x), "tanh": math.tanh, "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "sin": math.sin,
    "cos": math.cos, "floor": math.floor, "ceil": math.ceil, "round": round, "erf": math.erf,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", sorted(FLOAT_UNARY))
def test_float_functions(kind: str, dtype: str) -> None:
    type_, x = typed(dtype, np.linspace(0.25, 6, 37))
    found = evaluate(f'unary %a {{kind = "{kind}"}}', type_, (type_, x)).astype(np.float64)
    expected = np.array([FLOAT_MEANING[kind.removeprefix("fast_")](float(v)) for v in x])
    np.testing.assert_allclose(found, expected, rtol=EPSILON[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "min", "max", "pow", "fast_pow"])
def test_float_arithmetic_rounds_once(kind: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    (type_, a), (_, b) = typed(dtype, random.uniform(0.5, 3, 64)), typed(dtype, random.uniform(0.5, 3, 64))
    found = evaluate(f'binary %a, %b {{kind = "{kind}"}}', type_, (type_, a), (type_, b))
    meaning = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "min": np.minimum,
        "max": np.maximum,
        "pow": np.power,
        "fast_pow": np.power,
    }
    exact = meaning[kind](a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=EPSILON[dtype])


def test_minimum_and_maximum_prefer_numbers() -> None:
    one, nan = typed("f32", [1.0, np.nan]), typed("f32", [np.nan, 2.0])
    assert evaluate('binary %a, %b {kind = "max"}', "f32[2]", one, nan).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("kind", "wanted"), [("neg", [-3, 4, 0]), ("abs", [3, 4, 0]), ("not", [-4, 3, -1])])
def test_integer_functions(kind: str, wanted: list[int]) -> None:
    assert evaluate(f'unary %a {{kind = "{kind}"}}', "i32[3]", typed("i32", [3, -4, 0])).tolist() == wanted


@pytest.mark.parametrize("kind", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_and_nan(kind: str) -> None:
    values = [(1.0, 2.0), (2.0, 2.0), (np.nan, 2.0)]
    left, right = typed("f32", [a for a, _ in values]), typed("f32", [b for _, b in values])
    found = evaluate(f'compare %a, %b {{kind = "{kind}"}}', "bool[3]", left, right)
    meaning = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    assert found.tolist() == [eval(f"a {meaning[kind]} b", {"a": a, "b": b}) for a, b in values]


def test_select() -> None:
    condition = typed("bool", [True, False])
    assert evaluate("select %a, %b, %c", "i32[2]", condition, typed("i32", [1, 2]), typed("i32", [3, 4])).tolist() == [1, 4]


@settings(max_examples=200, deadline=None)
@given(value=st.floats(width=32, allow_nan=False), target=st.sampled_from(["f16", "bf16"]))
def test_narrowing_rounds_to_nearest_even(value: float, target: str) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(value).astype(NUMPY[target])
    assert evaluate("cast %a", f"{target}[1]", typed("f32", [value]))[0].tobytes() == expected.tobytes()


def test_bf16_ties_go_to_the_even_neighbour() -> None:
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8]
    assert evaluate("cast %a", "bf16[2]", typed("f32", ties)).astype(float).tolist() == [1.0, 1 + 2.0**-6]


@pytest.mark.parametrize(
    ("source", "target", "values", "wanted"),
    [
        ("f32", "i32", [1.9, -1.9, 3e9, -3e9, np.nan], [1, -1, 2**31 - 1, -(2**31), 0]),
        ("f32", "u8", [-1.0, 255.9, 300.0], [0, 255, 255]),
        ("f32", "i64", [1e19, -1e19, 2.0**40], [2**63 - 1, -(2**63), 2**40]),
        ("i32", "i8", [128, -129, 5], [-128, 127, 5]),
        ("i32", "bool", [0, -3], [False, True]),
        ("bool", "i32", [True, False], [1, 0]),
        ("i64", "i32", [2**31, 7], [-(2**31), 7]),
        ("u8", "i32", [255], [255]),
        ("i32", "f32", [7], [7.0]),
    ],
)
def test_casts(source: str, target: str, values: list[float], wanted: list[float]) -> None:
    assert evaluate("cast %a", f"{target}[{len(values)}]", typed(source, values)).tolist() == wanted


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(kind: str, axis: int) -> None:
    x = np.random.default_rng(2).integers(-9, 9, (3, 5)).astype(np.float32)
    result = ("i32" if kind.startswith("arg") else "f32") + f"[{x.shape[1 - axis]}]"
    found = evaluate(f'reduce %a {{kind = "{kind}", axis = {axis}}}', result, typed("f32", x))
    assert found.tolist() == getattr(x, kind)(axis).tolist()


def test_argmax_takes_the_first_of_equals() -> None:
    found = evaluate('reduce %a {kind = "argmax", axis = 1}', "i32[2]", typed("bf16", [[1, 3, 3], [2, 2, 1]]))
    assert found.tolist() == [1, 0]


def test_sums_of_16_bit_floats_accumulate_in_f32() -> None:
    ones = np.ones((1, 4096))
    assert evaluate('reduce %a {kind = "sum", axis = 1}', "bf16[1]", typed("bf16", ones))[0] == 4096
    assert evaluate('reduce %a {kind = "sum", axis = 1}', "i8[1]", typed("i8", ones))[0] == 0  # wraps


def test_products_accumulate_in_f32() -> None:
    random = np.random.default_rng(3)
    a, b, c = (
        typed("f16", random.normal(size=(4, 32))),
        typed("f16", random.normal(size=(32, 8))),
        typed("f32", random.normal(size=(4, 8))),
    )
    expected = a[1].astype(np.float64) @ b[1].astype(np.float64) + c[1]
    np.testing.assert_allclose(evaluate("mma %a, %b, %c", "f32[4, 8]", a, b, c), expected, rtol=1e-5, atol=1e-5)


def test_shapes() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (evaluate("permute %a {axes = [1, 0]}", "f32[3, 2]", typed("f32", x)) == x.T).all()
    assert (evaluate("reshape %a", "f32[6]", typed("f32", x)) == x.ravel()).all()
    assert (evaluate("broadcast %a", "f32[2, 3]", typed("f32", x[:, :1])) == x[:, :1]).all()
    assert evaluate("iota", "i32[4]").tolist() == [0, 1, 2, 3]
    assert evaluate("constant {value = 0x1.8p+0}", "bf16[2]").astype(float).tolist() == [1.5, 1.5]


def test_every_operation_of_kernels_has_one_rule() -> None:
    structured: set[type[Op]] = {ops.For, ops.If, ops.Sort, ops.Yield, ops.BlockId, ops.NumBlocks, ops.DimValue}
    structured |= {ops.Invariant, ops.Decreases, ops.Print}
    authored = {kind for kind in OPS.values() if not kind.__module__.endswith("_ops")}
    made_by_schedules = {OverlappingLoad}  # one load for several of a program, which the interpreter runs too
    assert PURE.keys() | ACCESSES.keys() | structured == authored | made_by_schedules
    assert not PURE.keys() & ACCESSES.keys()
    assert set(INTEGER_MEANING) | {"div", "pow", "fast_pow", "mulhi"} == set(BINARY_KINDS)


def test_operations_of_later_stages_are_refused() -> None:
    text = (
        "kernel @k(%x: in tensor<f32, [4], align 16>) {\n  constants {}\n  dims []\n  strides []\n  grid [1]\n  wait_prior\n}\n"
    )
    with pytest.raises(InterpreterError, match="later stages"):
        run(parse_function(text), {"x": np.zeros(4, np.float32)})


@pytest.mark.parametrize("kind", ["min", "max"])
def test_a_number_wins_over_a_signalling_nan(kind: str) -> None:
    """As `min.f32` and `max.f32` have it (PTX ISA)."""
    signalling = np.array([0x7FA00000, 0xFFA00000], np.uint32).view(np.float32)
    numbers = np.array([-0.0, 2.0], np.float32)
    for left, right in ((signalling, numbers), (numbers, signalling)):
        found = evaluate(f'binary %a, %b {{kind = "{kind}"}}', "f32[2]", ("f32[2]", left), ("f32[2]", right))
        assert found.view(np.uint32).tolist() == numbers.view(np.uint32).tolist()
    pair = ("f32[2, 2]", np.stack([signalling, numbers]))
    assert evaluate(f'reduce %a {{kind = "{kind}", axis = 0}}', "f32[2]", pair).tolist() == numbers.tolist()
