"""Launch expressions: every operator against Python's own, exact at any size, and the order in which parts are evaluated."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.ir.expr import Expr, binary, const, sym

MEANING: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
}  # fmt: skip
numbers = st.one_of(st.integers(-3, 3), st.integers(-(1 << 80), 1 << 80))


@settings(deadline=None, max_examples=300)
@given(kind=st.sampled_from(sorted(MEANING)), left=numbers, right=numbers)
def test_every_operator_agrees_with_python_on_integers_of_any_size(kind: str, left: int, right: int) -> None:
    expression = Expr(kind, (sym("A"), sym("B")))
    if kind in ("//", "%") and right == 0:
        with pytest.raises(ZeroDivisionError):
            expression.evaluate({"A": left, "B": right})
        return
    expected = int(MEANING[kind](left, right))
    assert expression.evaluate({"A": left, "B": right}) == expected
    assert binary(kind, const(left), const(right)).evaluate({}) == expected
    assert binary(kind, sym("A"), const(right)).evaluate({"A": left}) == expected
    assert binary(kind, const(left), sym("B")).evaluate({"B": right}) == expected


@pytest.mark.parametrize(("kind", "left", "expected"), [("and", 0, 0), ("or", 1, 1)])
def test_a_left_operand_that_decides_leaves_the_right_unevaluated(kind: str, left: int, expected: int) -> None:
    """For example, `N == 0 or M

    N > 1` is defined for any N.
    """
    undefined = Expr("//", (const(1), sym("N")))
    assert Expr(kind, (sym("A"), undefined)).evaluate({"A": left, "N": 0}) == expected
    with pytest.raises(ZeroDivisionError):
        Expr(kind, (sym("A"), undefined)).evaluate({"A": 1 - left, "N": 0})
