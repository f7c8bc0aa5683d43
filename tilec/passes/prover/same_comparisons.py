"""Comparisons of floats that are the same: of the same operands, in one block of operations.

The prover does not know what a comparison of floats gives. An author who writes `x > 0` twice means one unknown, not two.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from tilec.ir.core import Block, Function, Value
from tilec.ir.ops import Broadcast, Compare, Constant, Reshape


def same_comparisons(function: Function) -> dict[Value, Value]:
    """The first comparison of the same operands in its block, for each later one."""
    found: dict[Value, Value] = {}
    for block in _blocks(function.body):
        first: dict[Hashable, Value] = {}
        for op in block.ops:
            if isinstance(op, Compare) and op.operands[0].tile.dtype.is_float:
                one = first.setdefault((op.kind, *map(_definition, op.operands)), op.result)
                if one is not op.result:
                    found[op.result] = one
    return found


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from _blocks(region)


def _definition(value: Value) -> Hashable:
    """Equal for operands that are equal: one value, or one number, in the same shapes."""
    shapes: list[Hashable] = []
    while isinstance(value.owner, Broadcast | Reshape):
        shapes.append((value.owner.opcode, value.type))
        value = value.owner.operands[0]
    return (*shapes, (value.type, value.owner.value) if isinstance(value.owner, Constant) else value)
