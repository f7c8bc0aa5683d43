"""Choices of lowering between equivalent forms: words instead of elements, unrolling of small loops, exact bounds."""

from __future__ import annotations

from itertools import product

import pytest

from tests import shipped
from tests.passes.builder import Kernel
from tilec.ir import ops
from tilec.ir.expr import binary, const, sym
from tilec.ir.types import i32
from tilec.lowering import lower
from tilec.lowering.control import _unrolling  # pyright: ignore[reportPrivateUsage]
from tilec.lowering.launch_terms import Leaf, bounds
from tilec.target.targets import SM_90A


@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%", "min", "max"])
def test_bounds_of_a_launch_value_hold_and_are_reached(op: str) -> None:
    leaves = {"A": Leaf(None, i32, -7, 9), "B": Leaf(None, i32, 2, 5)}  # type: ignore[arg-type]
    expr = binary(op, sym("A"), sym("B"))
    values = [expr.evaluate({"A": a, "B": b}) for a, b in product(range(-7, 10), range(2, 6))]
    assert bounds(expr, leaves) == (min(values), max(values))
    assert bounds(const(4), leaves) == (4, 4)


def test_only_loops_of_arithmetic_alone_are_unrolled() -> None:
    k = Kernel(1)
    with k.loop(0, 8):
        k.add(1, 2)
    with k.loop(0, 8), k.loop(0, 8):
        k.add(1, 2)
    plain, nested = (op for op in k.body.ops if isinstance(op, ops.For))
    factor, step, remainder = _unrolling(plain)
    assert factor > 1 and step == 1 and len(remainder) + (8 - len(remainder)) // factor * factor == 8
    assert _unrolling(nested) == (1, 1, [])


def test_narrow_elements_are_stored_as_whole_words() -> None:
    """Eight bf16 are four words in one access, whatever their element type."""
    text = str(lower(shipped.prepared("rms_norm", SM_90A), SM_90A).mlir)
    stores = [line for line in text.splitlines() if "llvm.store" in line and "vector<" in line]
    assert stores and all("xi32>" in line for line in stores)
