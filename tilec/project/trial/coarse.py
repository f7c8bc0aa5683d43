"""Least relative tolerances: the tile IR of a kernel goes in, those of results that products of f32 operands reach come out.

Such operands are rounded to tf32, a relative error of up to 2^-11 each, which the dtype of the result does not show. A
reference in float64 need not repeat that.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import For, Mma, WriteOp
from tilec.ir.types import f32

TF32_PRODUCT: Final = 2.0**-9
"""Both roundings of a product, each twice, as in `tilec.interpreter.error_rules`."""


def least_tolerances(function: Function) -> dict[str, float]:
    """The least relative tolerance of tensors that depend on a product of f32 operands, by name."""
    reached: set[int] = set()
    count = -1
    while len(reached) != count:  # through loops and memory, until nothing is added
        count = len(reached)
        for op in function.body.walk():
            reached |= {id(value) for value in _next(op, reached)}
    return {one.name: TF32_PRODUCT for one in function.parameters if id(one.value) in reached}


def _next(op: Op, reached: set[int]) -> list[Value]:
    """Values that depend on those that are reached, by this operation."""
    if isinstance(op, For):
        body = op.regions[0]
        carried = zip(op.initial, body.arguments[1:], body.ops[-1].operands, op.results, strict=True)
        return [value for values in carried if any(id(value) in reached for value in values) for value in values[1:]]
    inputs = [*op.operands, *(value for region in op.regions if region.ops for value in region.ops[-1].operands)]
    if not _is_coarse(op) and not any(id(value) in reached for value in inputs):
        return []
    arguments = [argument for region in op.regions for argument in region.arguments]
    return [*op.results, *arguments, *([op.tensor] if isinstance(op, WriteOp) else [])]


def _is_coarse(op: Op) -> bool:
    return isinstance(op, Mma) and op.operands[0].tile.dtype == f32
