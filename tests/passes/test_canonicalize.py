"""Canonicalization keeps the results of a program and folds everything that is known at compile time."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from builder import Kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import shipped
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir import ops
from tilec.ir.core import Access, Function, Op, Parameter, Value
from tilec.ir.text.printer import print_function
from tilec.ir.types import DTYPES, DType, TileType, boolean, i32
from tilec.ir.verifier import verify
from tilec.passes.schedule.simplify import folding
from tilec.passes.schedule.simplify.canonicalize import canonicalize

COMPUTE: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "min": min, "max": max, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def wrapped(value: int, dtype: DType) -> int:
    """Two's complement, by NumPy."""
    if dtype == boolean:
        return int(bool(value))
    return int(np.array([value % 2**64], np.uint64).astype({"i": "int", "u": "uint"}[dtype.kind] + str(dtype.bits))[0])


def value_of(value: Value, env: dict[Value, int]) -> int:
    """An independent interpreter of scalar operations."""
    op = value.owner
    if value in env or not isinstance(op, Op):
        return env[value]
    of = [value_of(operand, env) for operand in op.operands]
    match op:
        case ops.Constant():
            return int(op.value)
        case ops.Binary() | ops.Compare():
            bits = op.operands[0].tile.dtype.bits
            if op.kind in ("floordiv", "mod") and of[1] == 0:
                return 0
            if op.kind in ("shl", "shr") and not 0 <= of[1] < bits:
                return -1 if op.kind == "shr" and of[0] < 0 else 0
            return wrapped(COMPUTE[op.kind](*of), value.tile.dtype)
        case ops.Unary():
            return wrapped(-of[0] if op.kind == "neg" else abs(of[0]), value.tile.dtype)
        case ops.Select():
            return of[1] if of[0] else of[2]
        case _:
            return wrapped(of[0], value.tile.dtype)


NAMES = ("i8", "u8", "i16", "i32", "u32", "i64")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Function, dict[str, int]]:
    """A block of scalar operations on parameters and constants, all stored, and values of the parameters."""
    k = Kernel(1)
    values: list[Value] = []
    env: dict[str, int] = {}
    for position in range(draw(st.integers(0, 2))):
        dtype = DTYPES[draw(st.sampled_from(NAMES))]
        parameter = k.body.add_argument(TileType(dtype), f"p{position}")
        k.function.parameters.append(Parameter(parameter.name, parameter))
        values.append(parameter)
        env[parameter.name] = draw(st.integers(*dtype.integer_range()) | st.integers(0, 3))
    for _ in range(draw(st.integers(2, 14))):
        dtype = DTYPES[draw(st.sampled_from(NAMES))]
        alike = [value for value in values if value.tile.dtype == dtype]
        kind = draw(st.sampled_from(["constant", "binary", "compare", "cast", "unary", "select", "reshape"]))
        op: Op
        if kind == "constant" or len(alike) < 1:
            low, high = dtype.integer_range()
            op = ops.Constant(value=draw(st.sampled_from([0, 1, 2, low, high]) | st.integers(low, high)))
        elif kind == "cast":
            op = ops.Cast(operands=[draw(st.sampled_from([v for v in values if v.tile.dtype != boolean] or alike))])
        elif kind == "unary":
            op = ops.Unary(kind=draw(st.sampled_from(["neg", "abs"])), operands=[draw(st.sampled_from(alike))])
        elif kind == "reshape":
            op = draw(st.sampled_from([ops.Reshape, ops.Broadcast]))(operands=[draw(st.sampled_from(alike))])
        else:
            pair = [draw(st.sampled_from(alike)), draw(st.sampled_from(alike))]
            conditions = [value for value in values if value.tile.dtype == boolean]
            if kind == "compare":
                op, dtype = ops.Compare(kind=draw(st.sampled_from(ops.COMPARE_KINDS)), operands=pair), boolean
            elif kind == "select" and conditions:
                op = ops.Select(operands=[draw(st.sampled_from(conditions)), *pair])
            else:
                kinds = sorted(COMPUTE.keys() - set(ops.COMPARE_KINDS))
                op = ops.Binary(kind=draw(st.sampled_from(kinds)), operands=pair)
        values.append(k.emit(op, TileType(dtype)).result)
    zero = k.c(0)
    for value in values:
        tensor = k.tensor(f"out{len(k.function.parameters)}", Access.OUT, 1, dtype=value.tile.dtype)
        tile = k.emit(ops.Reshape(operands=[value]), TileType(value.tile.dtype, (1,))).result
        k.emit(ops.Store(operands=[tensor, tile, zero]))
    return k.function, env


def results(function: Function, arguments: dict[str, int]) -> list[int]:
    """What each store writes, in order."""
    env = {p.value: arguments[p.name] for p in function.parameters if p.access is None}
    return [value_of(op.tile, env) for op in function.body.walk() if isinstance(op, ops.Store)]


def scalar(dtype: DType, value: int | None) -> Value:
    if value is None:
        return Value(TileType(dtype))
    constant = ops.Constant(value=value)
    constant.define(TileType(dtype))
    return constant.result


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", sorted(COMPUTE))
def test_constants_fold_to_their_value(kind: str, name: str) -> None:
    dtype = DTYPES[name]
    low, high = dtype.integer_range()
    edges = sorted({low, low + 1, 0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, high - 1, high, *({-1, -2, -7} if low else ())})
    for a in edges:
        for b in edges:
            op: Op = ops.Compare(kind=kind) if kind in ops.COMPARE_KINDS else ops.Binary(kind=kind)
            op.operands = [scalar(dtype, a), scalar(dtype, b)]
            op.define(TileType(boolean if kind in ops.COMPARE_KINDS else dtype))
            constant = folding.folded(op)
            expected = value_of(op.result, {})
            assert constant is not None
            constant.verify()
            assert constant.value == expected and constant.result.type == op.result.type


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", sorted(COMPUTE.keys() - set(ops.COMPARE_KINDS)))
def test_neutral_operands_are_neutral(kind: str, name: str) -> None:
    dtype = DTYPES[name]
    low, high = dtype.integer_range()
    dropped = 0
    for neutral in (0, 1, 2, low, high):
        for left in (True, False):
            other, known = scalar(dtype, None), scalar(dtype, neutral)
            op = ops.Binary(kind=kind, operands=[known, other] if left else [other, known])
            op.define(TileType(dtype))
            if folding.same_as(op) is None:
                continue
            dropped += 1
            assert folding.same_as(op) is other
            for value in (low, 0, 1, 5, high):
                assert value_of(op.result, {other: value}) == value
    assert (dropped > 0) == (kind in ("add", "sub", "mul", "floordiv", "or", "xor", "shl", "shr"))


@settings(max_examples=300, deadline=None)
@given(programs())
def test_stored_values_stay(program: tuple[Function, dict[str, int]]) -> None:
    function, env = program
    verify(function)
    before = results(function, env)
    canonicalize(function)
    verify(function)
    after = results(function, env)
    assert before == after


@settings(max_examples=100, deadline=None)
@given(programs())
def test_no_known_value_remains(program: tuple[Function, dict[str, int]]) -> None:
    function, _ = program
    canonicalize(function)
    assert not [op for op in function.body.walk() if folding.folded(op) or folding.same_as(op)]
    text = print_function(function)
    canonicalize(function)
    assert print_function(function) == text


@pytest.mark.parametrize("looped", [False, True])
def test_equal_arms_fold_in_one_run(looped: bool) -> None:
    """The arms of a `select` are two constants until constants are shared: what uses the `select` folds in the same run, and
    what does not depend on the loop then leaves it."""
    k = Kernel(1)
    out, n = k.tensor("out", Access.OUT, "n", dtype=i32), k.dim("n")
    with k.loop(0, 2) if looped else nullcontext(n) as varying:
        chosen = k.emit(ops.Select(operands=[k.op("lt", varying, 1), k.c(5), k.c(5)]), TileType(i32)).result
        stored = k.add(k.mul(k.add(chosen, 2), n), k.c(7))
        tile = k.emit(ops.Reshape(operands=[stored]), TileType(i32, (1,))).result
        k.emit(ops.Store(operands=[out, tile, k.c(0)]))
    canonicalize(k.function)
    verify(k.function)
    found = list(k.function.body.walk())
    assert not [op for op in found if folding.folded(op) or folding.same_as(op) or isinstance(op, ops.Select)]
    constants = [op.value for op in found if isinstance(op, ops.Constant)]
    assert sorted(constants) == ([0, 1, 2, 7] if looped else [0, 7])
    text = print_function(k.function)
    assert print_function(canonicalize(k.function)) == text


@pytest.mark.parametrize("name", shipped.NAMES)
def test_shipped_kernels_are_canonical_after_one_iteration(name: str) -> None:
    function = canonicalize(shipped.load(name))
    verify(function)
    text = print_function(function)
    assert print_function(canonicalize(function)) == text
    assert len(list(function.body.walk())) <= len(list(shipped.load(name).body.walk()))


def test_a_division_is_hoisted_from_a_loop_that_may_have_no_iteration() -> None:
    k = Kernel(1)
    n = k.body.add_argument(TileType(i32), "n")
    k.function.parameters.append(Parameter("n", n))
    out = k.tensor("out", Access.OUT, 64, dtype=i32)
    with k.loop(0, n):
        by_parameter, moved = k.div(64, n), k.mul(n, 3)
        halved = k.div(n, 2)
        tile = k.emit(ops.Reshape(operands=[k.add(by_parameter, k.add(moved, halved))]), TileType(i32, (1,))).result
        k.emit(ops.Store(operands=[out, tile, k.c(0)]))
    canonicalize(k.function)
    verify(k.function)
    (loop,) = [op for op in k.function.body.ops if isinstance(op, ops.For)]
    # A division has a value for every divisor, including zero.
    assert not [op for op in loop.regions[0].ops if isinstance(op, ops.Binary)]
    outside = [op for op in k.function.body.ops if isinstance(op, ops.Binary)]
    assert by_parameter.owner in outside and moved.owner in outside and halved.owner in outside


CARRIED = '''"""Values of loops."""

from typing import Literal

import tilec as tl


@tl.kernel
def carried(out: tl.Out[tl.i32, Literal[4]], n: tl.i32, *, FLAG: tl.Const):
    tl.grid(1)
    kept, x, y, total = n, tl.i32(1), tl.i32(2), tl.i32(0)
    for i in range(n):
        for j in range(n):
            if FLAG:
                kept = kept + 1
            total = total + kept + j
        x, y = y, x
    tl.store(out, 0, kept)
    tl.store(out, 1, x)
    tl.store(out, 2, y)
    tl.store(out, 3, total)
'''


@pytest.mark.parametrize(("flag", "outer", "inner"), [(0, 3, 1), (1, 4, 2)])
def test_values_that_no_iteration_changes_are_not_carried(flag: int, outer: int, inner: int, tmp_path: Path) -> None:
    """A name that only a dropped branch sets, through an inner loop as well; names that change places stay."""
    (tmp_path / "carried.py").write_text(CARRIED)
    function = load_kernel(tmp_path / "carried.py", {"FLAG": flag}, root=tmp_path)
    found: list[list[int]] = []
    for _ in range(2):
        for n in (0, 1, 3):
            arrays = {"out": np.zeros(4, np.int32)}
            run(function, arrays, {"n": n})
            found.append(arrays["out"].tolist())
        canonicalize(function)
        verify(function)
    assert found[:3] == found[3:] and found[2][0] == (12 if flag else 3)
    loops = [op for op in function.body.walk() if isinstance(op, ops.For)]
    assert [len(loop.results) for loop in loops] == [outer, inner]


def test_unused_reads_are_removed_and_writes_stay() -> None:
    k = Kernel(1)
    x, out = k.tensor("x", Access.IN, 8), k.tensor("out", Access.OUT, 8)
    k.load(x, 0, shape=(8,))
    k.store(out, 0, shape=(8,))
    canonicalize(k.function)
    kinds = [type(op) for op in k.function.body.walk()]
    assert ops.Load not in kinds and kinds.count(ops.Store) == 1
    assert kinds.count(ops.Constant) == 2  # the offset and the tile, once each
