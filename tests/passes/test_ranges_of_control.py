"""Ranges of launch values, loop variables, branch results and selections contain every value that occurs.

Checked against direct evaluation: `Expr.evaluate` for extents, Python's `range` for loops, and selection by condition. Rules of
single operations are tested in `test_range_rules`.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.passes.builder import Access, Kernel, as_expr
from tests.passes.range_cases import INTEGERS, edge_numbers, facts, inside, members
from tests.soundness.arithmetic import evaluate, wrapped
from tilec.ir import ops
from tilec.ir.core import Block, Parameter, Value
from tilec.ir.expr import Expr, binary, const, sym
from tilec.ir.facts.range_facts import Range, of_dtype
from tilec.ir.ops import launch_ops
from tilec.ir.types import MAX_DIM, DType, TileType, boolean, i32
from tilec.passes.analysis.declared_ranges import declared_ranges
from tilec.passes.analysis.divisibility import promised_symbols
from tilec.passes.analysis.ranges import GRID_LIMITS, RangeAnalysis, expr_range, symbol_ranges, value_ranges

HOST = ("+", "-", "*", "//", "%", "min", "max")


def scalar(k: Kernel, name: str, dtype: DType = i32) -> Value:
    value = k.body.add_argument(TileType(dtype), name)
    k.function.parameters.append(Parameter(name, value, None))
    return value


def some_expr(r: random.Random, depth: int) -> Expr:
    if depth == 0 or r.random() < 0.2:
        return sym(r.choice("ab")) if r.random() < 0.6 else const(r.choice((-3, 0, 1, 2, 7, 64, 2**31)))
    return binary(r.choice(HOST), some_expr(r, depth - 1), some_expr(r, depth - 1))


def test_host_expressions_stay_in_their_range() -> None:
    """Over unbounded integers; a launch that divides by zero is refused."""
    r = random.Random(3)
    for _ in range(400):
        expr = some_expr(r, 3)
        known = {name: facts(i32, r, 1)[0] for name in "ab"}
        found = expr_range(expr, known)
        for numbers in product(*(members(known[name], r, 3) for name in "ab")):
            try:
                value = expr.evaluate(dict(zip("ab", numbers, strict=True)))
            except ZeroDivisionError:
                continue
            assert inside(found, value), (expr, known, numbers, value, found)


def stepped(lower: int, upper: int, step: int) -> list[int]:
    """Some values of a loop's variable, including the first and the last; none if the counter overflows i32."""
    values = range(lower, upper, step)
    if not values or values[-1] + step > i32.integer_range()[1]:
        return []
    return sorted({*values[:3], *values[-3:]})


def test_a_loop_variable_stays_in_its_range() -> None:
    """Empty loops, negative bounds, steps of 2^30, congruences that no iteration satisfies."""
    r = random.Random(4)
    analysis = RangeAnalysis(Kernel(1).function, {})
    for lower, upper, step in zip(*(facts(i32, r, 3000) for _ in range(3)), strict=True):
        step = step if step.low >= 1 else Range(1, 1 + abs(step.high) % 2**30)
        found = analysis.induction(ops.For(), lower, upper, step)
        for bounds in product(members(lower, r, 2)[:4], members(upper, r, 2)[:4], members(step, r, 2)[:4]):
            for value in stepped(*bounds):
                assert inside(found, value), (lower, upper, step, bounds, value, found)


def test_the_variable_of_a_body_that_never_runs_has_the_lower_bound() -> None:
    analysis = RangeAnalysis(Kernel(1).function, {})
    lower = Range(8, 16, 8, 0)
    assert analysis.induction(ops.For(), lower, Range(-5, 3), Range(1, 1, 0, 1)) == lower


@pytest.mark.parametrize("axis", range(3))
def test_blocks_are_those_of_a_launch(axis: int) -> None:
    """An extent that is never within CUDA's grid limits has no launch, so nothing is concluded from it."""
    wide = binary("*", sym("N"), const(70000))
    for extent, low, high in ((as_expr("N"), 1, MAX_DIM), (wide, 70000, 2**50), (const(5), 5, 5)):
        grid = [const(1)] * axis + [extent]
        k = Kernel(*grid)
        block, count = k.bid(axis), k.num_blocks(axis)
        found = value_ranges(k.function)
        limit = GRID_LIMITS[axis]
        if low <= limit:
            last = min(high, limit) // low * low
            assert inside(found[block], 0) and inside(found[block], last - 1) and inside(found[count], last)
        else:
            assert inside(found[count], 1) and inside(found[count], limit) and found[block].low == 0


def test_values_of_launches_are_within_their_ranges() -> None:
    k = Kernel("N")
    dim = k.dim("N")
    running, extent = (k.emit(op, TileType(i32)).result for op in (launch_ops.LaunchedBlocks(), launch_ops.GridExtent(axis=0)))
    found = value_ranges(k.function)
    assert inside(found[dim], 1) and inside(found[dim], MAX_DIM)
    for value in (running, extent):
        assert inside(found[value], 1) and inside(found[value], GRID_LIMITS[0])


def conditions(r: random.Random, k: Kernel, values: list[Value], depth: int) -> Value:
    """A condition on two scalars, of comparisons and connectives."""
    if depth == 0 or r.random() < 0.4:
        kind = r.choice(ops.COMPARE_KINDS)
        return k.emit(ops.Compare(kind=kind, operands=[r.choice(values), r.choice(values)]), TileType(boolean)).result
    if r.random() < 0.3:
        return k.emit(ops.Unary(kind="not", operands=[conditions(r, k, values, depth - 1)]), TileType(boolean)).result
    parts = [conditions(r, k, values, depth - 1) for _ in range(2)]
    return k.emit(ops.Binary(kind=r.choice(("and", "or", "xor")), operands=parts), TileType(boolean)).result


def run(k: Kernel, state: dict[Value, int]) -> dict[Value, int]:
    for op in k.body.ops:
        raw = evaluate(op, [[state[value]] for value in op.operands])[0]
        state[op.result] = wrapped(int(raw), op.result.tile.dtype)
    return state


def test_a_selection_stays_in_the_range_of_its_arms() -> None:
    """`where(c, f(x), g(y))` for conditions on `x` and `y` at the edges of every dtype."""
    r = random.Random(6)
    for turn in range(400):
        dtype = INTEGERS[turn % len(INTEGERS)]
        k, scalar_type = Kernel(1), TileType(dtype)
        x, y = scalar(k, "x", dtype), scalar(k, "y", dtype)
        numbers = edge_numbers(dtype)
        constants = [k.emit(ops.Constant(value=r.choice(numbers)), scalar_type).result for _ in range(2)]
        values = [x, y, *constants]
        for _ in range(3):
            kind = r.choice([kind for kind in ops.BINARY_KINDS if kind not in ("div", "pow", "fast_pow")])
            values.append(k.emit(ops.Binary(kind=kind, operands=[r.choice(values), r.choice(values)]), scalar_type).result)
        chosen = ops.Select(operands=[conditions(r, k, values, 2), *r.choices(values, k=2)])
        values.append(k.emit(chosen, scalar_type).result)
        found = value_ranges(k.function)
        for _ in range(40):
            state = run(k, {x: r.choice(numbers), y: r.choice(numbers)})
            for value, number in state.items():
                assert inside(found[value], number), (turn, value.owner, number, found[value])


def test_an_arm_that_is_never_taken_adds_nothing() -> None:
    k = Kernel(1)
    n = scalar(k, "n")
    even = k.mul(k.op("and", n, 7), 2)
    chosen = k.emit(ops.Select(operands=[k.op("eq", even, 5), k.c(-100), even]), TileType(i32)).result
    assert value_ranges(k.function)[chosen].low == 0


def test_carried_values_stay_in_their_range() -> None:
    """A loop that adds, clamps and multiplies, run for all its iterations."""
    r = random.Random(8)
    for _ in range(150):
        k = Kernel(1)
        lower, upper, step = r.choice((-5, 0, 3)), r.choice((-7, 0, 4, 9)), r.choice((1, 2, 2**30))
        loop = ops.For(operands=[k.c(lower), k.c(upper), k.c(step), k.c(r.choice((0, 5, 2**31 - 2)))], regions=[Block()])
        variable = loop.regions[0].add_argument(TileType(i32), "i")
        carried = loop.regions[0].add_argument(TileType(i32), "c")
        k.emit_region(loop)
        outer, k.block = k.block, loop.regions[0]
        next_ = carried
        for _ in range(r.randint(1, 3)):
            other = r.choice((variable, k.c(r.choice((1, 3, 33)))))
            next_ = k.op(r.choice(("add", "mul", "min", "max", "xor", "shl")), next_, other)
        k.emit_yield(next_)
        k.block = outer
        loop.define(TileType(i32))
        found = value_ranges(k.function)
        state = {op.result: int(op.value) for op in k.body.ops if isinstance(op, ops.Constant)}
        number = state[loop.initial[0]]
        for turn in range(lower, upper, step):
            state |= {variable: turn, carried: number}
            for op in loop.regions[0].ops[:-1]:
                raw = evaluate(op, [[state[value]] for value in op.operands])[0]
                state[op.result] = wrapped(int(raw), i32)
            assert all(inside(found[value], element) for value, element in state.items() if value in found)
            number = state[next_]
        assert inside(found[loop.results[0]], number)


def test_declared_ranges_hold_of_launches_that_satisfy_them() -> None:
    """`requires` on single symbols, and `values` of tensors whose ends depend on symbols."""
    r = random.Random(9)
    for _ in range(200):
        k = Kernel("N")
        n, ids = scalar(k, "n"), k.tensor("ids", Access.IN, "N", dtype=i32)
        relation, number = r.choice((">=", ">", "<", "<=", "==")), r.choice((-5, 0, 1, 9, 2**31 - 1))
        k.requires(binary(relation, sym("n"), const(number)))
        k.values("ids", const(r.choice((-3, 0))), r.choice((sym("n"), const(50))))
        loaded = k.scalar_load(ids, 0)
        total = k.op(r.choice(("add", "mul", "shl", "floordiv", "mod", "sub")), loaded, n)
        found = declared_ranges(k.function)
        fact = k.function.values[0]
        for value in edge_numbers(i32):
            if not k.function.requires[0].condition.evaluate({"n": value}):
                continue
            low, high = fact.low.evaluate({"n": value}), fact.high.evaluate({"n": value})
            for element in {low, high - 1} if low < high and high <= 2**31 else ():
                raw = evaluate(total.owner, [[element], [value]])[0]  # type: ignore[arg-type]
                assert inside(found[n], value) and inside(found[loaded], element)
                assert inside(found[total], wrapped(int(raw), i32)), (k.function.requires, fact, value, element)


def test_promised_congruences_hold_of_launches_that_satisfy_them() -> None:
    r = random.Random(10)
    for dtype in INTEGERS:
        for _ in range(40):
            k = Kernel(1)
            scalar(k, "n", dtype)
            modulus, rest = r.choice((1, 3, 8, 1000)), r.choice((0, 1, 5, 500))
            clauses = [binary("==", binary("%", sym("n"), const(modulus)), const(rest))]
            clauses.append(binary("==", binary("%", sym("n"), const(4)), const(0)))
            k.requires(binary("and", *clauses))
            found = promised_symbols(k.function)["n"]
            for value in [number for n in edge_numbers(dtype) for number in range(n, n + 9)]:
                low, high = dtype.integer_range()
                if low <= value <= high and k.function.requires[0].condition.evaluate({"n": value}):
                    assert inside(found, value), (dtype, clauses, value, found)


def test_a_contract_without_launches_does_not_narrow_its_symbols() -> None:
    k = Kernel(1)
    scalar(k, "n", INTEGERS[0])
    k.requires(binary("==", binary("%", sym("n"), const(1000)), const(500)))
    assert promised_symbols(k.function) == symbol_ranges(k.function) == {"n": of_dtype(INTEGERS[0])}
