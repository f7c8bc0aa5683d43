"""Values that are the same: results of the same operation on the same operands, of which one is computed wherever the other is.

The prover does not know what some operations give, such as a shift by a variable amount or a comparison of floats. An author
who writes one twice means one unknown, not two. A tensor that is only read holds the same throughout a launch, so two loads of
the same elements of it are the same too. The first stands for both: it comes before the other one, in the same block of
operations or in one around it. So whatever is known of it, or has been proven where it is computed, holds for the other too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import (
    Binary,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    Gather,
    Iota,
    Load,
    NumBlocks,
    Permute,
    Reshape,
    Select,
    Unary,
)

PURE: Final = (
    Binary, BlockId, Broadcast, Cast, Compare, Constant, DimValue, Iota, NumBlocks, Permute, Reshape, Select, Unary,
)  # fmt: skip
"""Operations whose result in one block follows from their operands and attributes alone."""


def same_values(function: Function) -> dict[Value, Value]:
    """The first of those that are the same, for each later one."""
    found: dict[Value, Value] = {}
    _find(function, function.body, {}, found)
    return found


def _find(function: Function, block: Block, around: Mapping[Hashable, Value], found: dict[Value, Value]) -> None:
    first = dict(around)
    for op in block.ops:
        if isinstance(op, PURE) or _reads_what_stays(function, op):
            one = first.setdefault(_definition(op, found), op.result)
            if one is not op.result:
                found[op.result] = one
        for region in op.regions:
            _find(function, region, first, found)


def _reads_what_stays(function: Function, op: Op) -> bool:
    """Whether an operation reads elements inside a tensor that nothing writes during the launch."""
    return isinstance(op, Load | Gather) and op.unsafe is None and function.parameter_of(op.source).access is Access.IN


def _definition(op: Op, found: Mapping[Value, Value]) -> Hashable:
    """Equal for operations that give the same. Text tells 0.0 from -0.0, and lets NaN be equal to itself."""
    attributes = repr(sorted(op.attributes().items()))
    return (op.opcode, op.result.type, attributes, *(found.get(value, value) for value in op.operands))
