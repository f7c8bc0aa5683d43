"""The launch contract: which tensors must not overlap, and the launcher's checks of sizes and strides."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.artifact.records import LaunchCheck, ValueCheck, value_check
from tilec.ir.core import Access, Function, Parameter
from tilec.ir.expr import Expr, binary, const, sym
from tilec.ir.types import MAX_DIM
from tilec.passes.analysis.ranges import GRID_LIMITS, expr_range, symbol_ranges
from tilec.passes.prover.extents import extent_checks


def no_alias_pairs(function: Function) -> tuple[tuple[str, str], ...]:
    """Pairs of tensors whose memory must not overlap: every written tensor with every other tensor."""
    tensors = [parameter for parameter in function.parameters if parameter.access is not None]
    return tuple(
        (left.name, right.name)
        for index, left in enumerate(tensors)
        for right in tensors[index + 1 :]
        if left.access is not Access.IN or right.access is not Access.IN
    )


def launch_checks(function: Function) -> tuple[LaunchCheck, ...]:
    """Checks of sizes, preconditions, grid and strides, in the order in which the launcher should report them."""
    found: list[LaunchCheck] = []
    for name in function.dims:
        if name not in function.strides:
            found.append(_check(binary(">=", sym(name), const(1)), f"{name} is at least 1"))
            found.append(_check(binary("<=", sym(name), const(MAX_DIM)), f"{name} is at most {MAX_DIM}"))
    found.extend(extent_checks(function))
    for precondition in function.requires:
        found.append(_check(precondition.condition, f"requires({precondition.condition})"))
    symbols = symbol_ranges(function)
    for axis, extent in enumerate(function.grid):
        bounds = expr_range(extent, symbols)
        if bounds.low < 1:
            found.append(_check(binary(">=", extent, const(1)), f"grid axis {axis} has at least one block: {extent} >= 1"))
        if bounds.high > GRID_LIMITS[axis]:
            limit = GRID_LIMITS[axis]
            found.append(_check(binary("<=", extent, const(limit)), f"grid axis {axis} has at most {limit} blocks: {extent}"))
    for parameter in function.parameters:
        if parameter.access is not None:
            found.extend(_stride_checks(parameter))
    return tuple(check for check in found if check.condition.constant != 1)


def _check(condition: Expr, text: str) -> LaunchCheck:
    return LaunchCheck(condition, text)


def _stride_checks(parameter: Parameter) -> Iterator[LaunchCheck]:
    """Each declared stride is at least the size of the axes inside it, so that different indices have different addresses."""
    tensor = parameter.value.tensor
    if tensor.strides is None:
        return
    inner: Expr = const(1)
    for axis in reversed(range(tensor.rank)):
        stride = tensor.strides[axis]
        text = f"stride {axis} of {parameter.name} steps over the axes inside it: {stride} >= {inner}"
        yield _check(binary(">=", stride, inner), text)
        inner = binary("*", tensor.dims[axis], stride)


def value_checks(function: Function) -> tuple[ValueCheck, ...]:
    """The declared contents of tensors."""
    return tuple(map(value_check, function.values))
