"""Finds the values that depend on the block index: takes a function, returns a set of values.

Data loaded at an offset that depends on the block index is most likely used by no other block, so it is read once. The result
only selects cache hints: a value that is missing or superfluous affects speed, never correctness.
"""

from __future__ import annotations

from tilec.ir.core import Function, Value
from tilec.ir.ops import BlockId, For


def block_dependent_values(function: Function) -> set[Value]:
    """Block indices and everything computed from them, including loop variables and loop results."""
    found: set[Value] = set()
    for op in function.body.walk():
        if isinstance(op, BlockId) or not found.isdisjoint(op.operands):
            found.update(op.results)
            if isinstance(op, For):
                loop_variable, *carried = op.regions[0].arguments
                found |= {loop_variable} if not found.isdisjoint(op.operands[:3]) else set()
                found |= {argument for argument, value in zip(carried, op.initial, strict=True) if value in found}
    return found
