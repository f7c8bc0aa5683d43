"""Packed tensors, whose bytes have two elements each along the last axis: between what their authors count and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Value
from tilec.ir.expr import Expr, binary, const
from tilec.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Codes:
    """A tile of a packed dtype: `value` has its codes, 0 to 15, as u8."""

    value: Value
    dtype: DType


def halved(expr: Expr) -> tuple[Expr, bool]:
    """Bytes of a number of packed elements, and whether that number is written as an even one. `doubled` inverts it."""
    number = expr.constant
    if number is not None and number % 2 == 0:
        return const(number // 2), True
    if expr.op == "*":
        for factor, other in (expr.args, expr.args[::-1]):
            number = factor.constant
            if number is not None and number % 2 == 0 and not _is_half(rest := binary("*", const(number // 2), other)):
                return rest, True
    return binary("//", expr, const(2)), False


def doubled(expr: Expr) -> Expr:
    """Elements of a number of bytes, as the kernel's author wrote them."""
    return expr.args[0] if _is_half(expr) else binary("*", const(2), expr)


def _is_half(expr: Expr) -> bool:
    return expr.op == "//" and expr.args[1].constant == 2


def authored_dims(tensor: TensorType) -> tuple[Expr, ...]:
    """Extents in elements of the dtype that the author declared."""
    return tensor.dims if tensor.packed is None else (*tensor.dims[:-1], doubled(tensor.dims[-1]))


def elements_at(tensor: TensorType, axis: int) -> int:
    """Elements of the author's tensor in an element of the tensor, along an axis."""
    return 2 if tensor.packed is not None and axis == tensor.rank - 1 else 1


def authored_element(tensor: TensorType, element: Sequence[int]) -> tuple[int, ...]:
    """Index of the author's element, of a byte the first of two."""
    return tuple(one * elements_at(tensor, axis) for axis, one in enumerate(element))
