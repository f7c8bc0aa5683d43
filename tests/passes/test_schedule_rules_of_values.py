"""Rules on single values: which operand a result equals, which constant a value is, and which thread has an element."""

from __future__ import annotations

import pytest

from tests.passes.builder import Kernel
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import TileType, f32
from tilec.passes.schedule.simplify.folding import constant_of, folded, same_as
from tilec.passes.schedule.sync.barrier_insertion import thread_digits

# Folding


def float_constant(k: Kernel, value: float) -> Value:
    return k.emit(ops.Constant(value=value), TileType(f32)).result


@pytest.mark.parametrize(("kind", "neutral"), [("add", 0.0), ("sub", 0.0), ("mul", 1.0)])
def test_a_float_operation_on_a_neutral_operand_is_not_folded(kind: str, neutral: float) -> None:
    """-0.0 + 0.0 is 0.0, and any operation on a signalling NaN gives a quiet one."""
    k = Kernel(1)
    x, constant = float_constant(k, -0.0), float_constant(k, neutral)
    op = k.op(kind, x, constant).owner
    assert isinstance(op, ops.Binary)
    assert same_as(op) is None and folded(op) is None


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, float("inf"), float("nan")])
def test_a_float_is_no_integer_constant(value: float) -> None:
    k = Kernel(1)
    constant = float_constant(k, value)
    assert constant_of(constant) is None
    assert constant_of(k.spread(constant, (4,))) is None


def test_a_comparison_of_floats_is_not_folded_as_one_of_integers() -> None:
    k = Kernel(1)
    op = k.op("lt", float_constant(k, 0.25), float_constant(k, 0.5)).owner
    assert isinstance(op, ops.Compare)
    assert folded(op) is None


# Threads


def by_lanes(*digits: Digit) -> Layout:
    return Layout(2, (), digits, ())


def test_contiguous_digits_are_one_digit() -> None:
    """Two layouts that give each element to the same lane are the same map, however their digits are cut."""
    one_digit = thread_digits(by_lanes(Digit(32, 0, 1)))
    cuts = [(4, 8), (8, 4), (2, 16), (2, 4, 4), (16, 1, 2)]
    for extents in cuts:
        digits: list[Digit] = []
        stride = 1
        for extent in extents:
            digits.append(Digit(extent, 0, stride))
            stride *= extent
        assert thread_digits(by_lanes(*digits)) == one_digit, extents


@pytest.mark.parametrize(
    "digits",
    [
        (Digit(2, 0, 1), Digit(16, 0, 3)),  # 3 = 1 + 2, but two steps of 1 end at 2
        (Digit(4, 0, 1), Digit(8, 0, 5)),
        (Digit(4, 0, 1), Digit(8, 1, 4)),
        (Digit(4, 0, 8), Digit(8, 0, 1)),
    ],
)
def test_noncontiguous_digits_stay_separate(digits: tuple[Digit, ...]) -> None:
    """Lane 2 has another element than under one digit of 32 lanes."""
    found = thread_digits(by_lanes(*digits))
    assert found is not None
    assert found[0] == digits
    assert found != thread_digits(by_lanes(Digit(32, 0, 1)))
