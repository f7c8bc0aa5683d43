"""A launch is run before it is shown to leave an element unwritten, and computes what the enumeration does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.passes.builder import Kernel
from tests.passes.texts import verdict_of
from tests.soundness.arithmetic import evaluate
from tilec.ir import ops
from tilec.ir.core import Access
from tilec.ir.types import TileType, boolean, f32, i32, u8
from tilec.passes.prover.replayed_floats import (
    INFINITE,
    LARGEST,
    NAN,
    as_number,
    compared,
    float_best,
    float_binary,
    float_cast,
    float_sum,
    float_unary,
)
from tilec.passes.prover.tensor_contents import fillings

HEAD = '''"""Writes that depend on what memory holds."""

from tilec import Dim, In, InOut, Out, arange, argsort, bid, cdiv, f32, flip, grid, i32, kernel, load, requires, scatter, store
from tilec import values, where, zeros


class N(Dim):
    """rows"""


@kernel
'''
RIGHT = {
    "the element of a neighbour": """def k(x: In[i32, N], out: Out[f32, N]):
    grid(N)
    b = bid(0)
    if load(x, b) > 0:
        store(out, b, 1.0)
    if load(x, N - 1 - b) <= 0:
        store(out, N - 1 - b, 2.0)
""",
    "two loops of one block": """def k(x: In[i32, N], out: Out[f32, N]):
    requires(N <= 1000)
    grid(N)
    if bid(0) == 0:
        for j in range(N):
            if load(x, j) > 0:
                store(out, j, 1.0)
    if bid(0) == 0:
        for j in range(N):
            if load(x, j) <= 0:
                store(out, j, 1.0)
""",
    "lanes the other way round": """def k(x: In[i32, N], out: Out[f32, N]):
    requires(N <= 1000)
    grid(cdiv(N, 4))
    v = load(x, bid(0), shape=4, pad=0)
    i = bid(0) * 4 + arange(4)
    scatter(out, (where(v > 0, i, N),), zeros((4,), f32), mask=True)
    scatter(out, (flip(where(v > 0, N, i), 0),), zeros((4,), f32), mask=True)
""",
    "the first positions of a sort": """def k(x: In[f32, N, 16], out: Out[f32, N, 8]):
    grid(N)
    v = load(x, (bid(0), 0), shape=(1, 16))
    a = argsort(v, 1)
    scatter(out, (bid(0), where(a < 8, a, 99)), v, mask=True)
""",
    "one site of two blocks": """def k(x: In[i32, 1], out: Out[f32, 1]):
    grid(2)
    values(x, 0, 10)
    if (load(x, 0) + bid(0)) % 2 == 0:
        store(out, 0, 1.0)
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_shown_no_unwritten_element(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + RIGHT[name], 1)
    assert "E0403" not in verdict.codes and not verdict.wrong_examples, verdict
    assert verdict.kind in ("accepted", "refused_harmless"), verdict


WRONG = {
    "the other element of a neighbour": RIGHT["the element of a neighbour"].replace("load(x, N - 1 - b)", "load(x, b)"),
    "two loops that leave a number out": RIGHT["two loops of one block"].replace("<= 0", "< 0"),
    "the first positions but one": RIGHT["the first positions of a sort"].replace("a < 8, a", "a < 7, a"),
    "one site of three blocks": RIGHT["one site of two blocks"].replace("% 2", "% 3"),
    "a float that is NaN": """def k(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    if load(x, bid(0)) > 0:
        store(out, bid(0), 1.0)
    if load(x, bid(0)) <= 0:
        store(out, bid(0), 2.0)
""",
    "what a declared tensor selects": """def k(x: In[i32, N], out: Out[f32, N]):
    grid(N)
    values(x, 0, N + 1, distinct=True)
    if load(x, bid(0)) < N:
        store(out, bid(0), 1.0)
""",
    "what an earlier store left": """def k(x: InOut[i32, N], out: Out[f32, N]):
    grid(N)
    store(x, bid(0), load(x, bid(0)) + 1)
    if load(x, bid(0)) > 1:
        store(out, bid(0), 1.0)
""",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_unwritten_element_is_shown_with_what_memory_holds(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + WRONG[name], 1)
    shown = [one.counterexample for one in verdict.diagnostics if one.code == "E0403"]
    assert shown and not verdict.wrong_examples, verdict
    assert all(one is not None and (one.values or "every element of" in one.note) for one in shown), shown


def test_contents_are_as_declared() -> None:
    k = Kernel(1)
    tensors = [k.tensor(name, Access.IN, 5, dtype=u8) for name in "abcd"]
    k.values("a", 3, 9)
    k.values("b", 3, 9, distinct=True)
    k.values("c", 3, 7, distinct=True)
    seen: dict[str, set[tuple[int | None, ...]]] = {}
    for filling in fillings(k.function, {}):
        for tensor, parameter in zip(tensors, k.function.parameters, strict=True):
            assert parameter.value is tensor
            numbers = tuple(filling.element(parameter, (at,), (5,)) for at in range(5))
            seen.setdefault(parameter.name, set()).add(numbers)
        assert not filling.possible(dict.fromkeys("abcd", (5,)))
    assert seen["c"] == {(None,) * 5}, "four numbers are not five"
    assert len(seen["b"]) > 1 and all(len(set(numbers)) == 5 and set(numbers) <= {*range(3, 9)} for numbers in seen["b"])
    assert all(set(numbers) <= {*range(3, 9)} for numbers in seen["a"])
    assert all(set(numbers) <= {*range(256)} for numbers in seen["d"])


NUMBERS = (-INFINITE, -8, -3, -1, 0, 1, 2, 5, 8, INFINITE, NAN)


def as_float(number: int) -> float:
    return math.nan if number == NAN else math.copysign(math.inf, number) if abs(number) == INFINITE else float(number)


def same(found: int | None, expected: float) -> bool:
    """Whether a known number is the float; one that is not known may be any."""
    return found is None or as_float(found) == expected or (found == NAN and math.isnan(expected))


def emitted(op: ops.Binary | ops.Unary | ops.Cast | ops.Compare | ops.Reduce, result: TileType) -> list[float]:
    op.define(result)
    return [float(one) for one in evaluate(op, [values_of[operand] for operand in op.operands])]


values_of: dict[object, list[int | float]] = {}


def operand(k: Kernel, numbers: list[int]) -> object:
    found = k.zeros((len(numbers),))
    values_of[found] = [as_float(number) for number in numbers]
    return found


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "min", "max", "div"])
def test_arithmetic_of_floats_is_that_of_the_enumeration(kind: str) -> None:
    k, known = Kernel(1), 0
    for left in NUMBERS:
        for right in NUMBERS:
            op = ops.Binary(kind=kind, operands=[operand(k, [left]), operand(k, [right])])  # pyright: ignore
            found = float_binary(kind, left, right)
            (expected,) = emitted(op, TileType(f32, (1,)))
            assert same(found, expected), (kind, left, right, found, expected)
            assert found != 0 or math.copysign(1, expected) > 0 or kind in ("min", "max")
            known += found is not None
    assert known > 7 or kind == "div"


@pytest.mark.parametrize("kind", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_of_floats_are_those_of_the_enumeration(kind: str) -> None:
    k = Kernel(1)
    for left in NUMBERS:
        for right in NUMBERS:
            op = ops.Compare(kind=kind, operands=[operand(k, [left]), operand(k, [right])])  # pyright: ignore
            assert [compared(kind, left, right)] == emitted(op, TileType(boolean, (1,))), (kind, left, right)


def test_functions_and_conversions_of_floats_are_those_of_the_enumeration() -> None:
    k = Kernel(1)
    for number in NUMBERS:
        for kind in ("neg", "abs", "floor"):
            op = ops.Unary(kind=kind, operands=[operand(k, [number])])  # pyright: ignore
            assert same(float_unary(kind, number), emitted(op, TileType(f32, (1,)))[0]), (kind, number)
        for dtype in (i32, u8, boolean):
            op = ops.Cast(operands=[operand(k, [number])])  # pyright: ignore
            assert [float_cast(number, f32, dtype)] == emitted(op, TileType(dtype, (1,))), (dtype, number)
    assert as_number(-0.0) is None and as_number(0.5) is None and as_number(LARGEST + 1.0) is None and as_number(2.0) == 2


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum"])
def test_reductions_of_floats_are_those_of_the_enumeration(kind: str) -> None:
    k = Kernel(1)
    for row in ([1, 2, 2, -1], [NAN, 2, NAN, 5], [NAN] * 4, [-INFINITE, 0, INFINITE, 0], [8, 8, 0, 0], [3, 3, -8, 1]):
        result = TileType(i32 if kind.startswith("arg") else f32, ())
        op = ops.Reduce(kind=kind, axis=0, operands=[operand(k, row)])  # pyright: ignore
        (expected,) = emitted(op, result)
        found = float_sum(op, [*row]) if kind == "sum" else float_best(op, [*row])
        assert same(found[0], expected), (kind, row, found, expected)
        assert found[0] is not None or kind == "sum"
