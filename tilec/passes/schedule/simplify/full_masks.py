"""Masks that are true in the version of a block whose boxes lie inside.

In: the operations of that version, and the tests that it has passed: boxes `offset .. offset + extent` that lie within dims.
Out: the same, in which a comparison that these tests decide is the constant true: of `arange(n) < N`, where a box shows that N
is at least n, and of `offset + arange(n) < N`, where the box of the offset has n elements or more. LLVM then drops selections
by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import Binary, Broadcast, Compare, Constant, DimValue, Reshape
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import Range

Box = tuple[Value, int, str]
"""An offset, the elements from there on, and the dim that they lie within."""


def drop(block: Block, boxes: Iterable[Box], facts: Mapping[Value, Range]) -> None:
    """Replace comparisons, in place."""
    kept = list(boxes)
    for index, op in enumerate(block.ops):
        for region in op.regions:
            drop(region, kept, facts)
        if isinstance(op, Compare) and _is_true(op, kept, facts):
            constant = Constant(value=True, loc=op.loc)
            constant.results = op.results
            constant.result.owner = constant
            block.ops[index] = constant


def _is_true(op: Compare, boxes: list[Box], facts: Mapping[Value, Range]) -> bool:
    """Whether a comparison is of a position with the dim that a box shows to be larger."""
    if op.kind not in ("lt", "gt"):
        return False
    position, limit = op.operands if op.kind == "lt" else op.operands[::-1]
    dim = _single(limit).owner
    if position.tile.dtype != i32 or not isinstance(dim, DimValue):
        return False
    return any(name == dim.symbol and _is_within(position, offset, extent, facts) for offset, extent, name in boxes)


def _is_within(position: Value, offset: Value, extent: int, facts: Mapping[Value, Range]) -> bool:
    """Whether no element of a tile is `offset + extent` or larger, where `0 <= offset` and that sum does not wrap."""
    if _highest(position, facts) < extent:
        return True
    op = _single(position).owner
    if not isinstance(op, Binary) or op.kind != "add":
        return False
    pairs = (op.operands, op.operands[::-1])
    return any(_single(base) is offset and _lowest(step, facts) >= 0 and _highest(step, facts) < extent for base, step in pairs)


def _single(value: Value) -> Value:
    """What a tile repeats."""
    op: Op | Block | None = value.owner
    while isinstance(op, Broadcast | Reshape):
        value = op.operands[0]
        op = value.owner
    return value


def _highest(value: Value, facts: Mapping[Value, Range]) -> int:
    fact = facts.get(value)
    return fact.high if fact is not None else value.tile.dtype.integer_range()[1]


def _lowest(value: Value, facts: Mapping[Value, Range]) -> int:
    fact = facts.get(value)
    return fact.low if fact is not None else value.tile.dtype.integer_range()[0]
