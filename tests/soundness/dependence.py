"""Which values of a kernel the oracle computes: those that determine what it accesses, and where they come from."""

from __future__ import annotations

from functools import lru_cache

from tilec.ir import ops
from tilec.ir.core import Function, Op, Value


@lru_cache(maxsize=2)  # every launch of a kernel asks
def deciding_values(function: Function) -> frozenset[Value]:
    """Every value that determines an index, a loop bound, a condition or what a promise is about (not through memory). The
    function does not change between calls."""
    found: set[Value] = set()
    promised = {function.parameter(promise.tensor).value for promise in function.promises}
    for op in function.body.walk():
        if isinstance(op, ops.WriteOp) and op.target in promised:
            found.add(op.tile)
        if isinstance(op, ops.For):
            found.update(op.operands[:3])
        elif isinstance(op, ops.If):
            found.add(op.operands[0])
        elif isinstance(op, ops.Take):
            found.add(op.operands[1])
        elif isinstance(op, ops.Invariant | ops.Decreases):
            found.add(op.operands[0])
        elif getattr(op, "unsafe", None) is None:
            found.update(_index_operands(op))
    return frozenset(_sources(function, found))


@lru_cache(maxsize=2)
def needed_values(function: Function) -> frozenset[Value]:
    """The values that must be computed to run the accesses: deciding values, indices of unsafe accesses, and their sources in
    memory. The function does not change between calls."""
    found = set(deciding_values(function))
    for op in function.body.walk():
        found.update(_index_operands(op))
    size = -1
    while size != len(found):
        size = len(found)
        found = _sources(function, found)
        read = {op.source for op in function.body.walk() if isinstance(op, ops.Load | ops.Gather) and op.result in found}
        for op in function.body.walk():
            if isinstance(op, ops.WriteOp) and op.target in read:
                found.add(op.tile)
    return frozenset(found)


def _index_operands(op: Op) -> list[Value]:
    """The indices or offsets of an access."""
    if isinstance(op, ops.Load | ops.Gather):
        return op.operands[1:]
    return op.indices if isinstance(op, ops.WriteOp) else []


def _sources(function: Function, values: set[Value]) -> set[Value]:
    """`values` and every value that it depends on, not through memory."""
    reached = set(values)
    size = -1
    while size != len(reached):
        size = len(reached)
        for op in function.body.walk():
            if isinstance(op, ops.For):
                body = op.regions[0]
                for index, result in enumerate(op.results):
                    inner = body.arguments[index + 1]
                    if result in reached or inner in reached:
                        reached.update((op.initial[index], body.ops[-1].operands[index], inner))
            elif isinstance(op, ops.If):
                for index, result in enumerate(op.results):
                    if result in reached:
                        reached.update(region.ops[-1].operands[index] for region in op.regions)
            elif not isinstance(op, ops.Load | ops.Gather) and any(result in reached for result in op.results):
                reached.update(op.operands)
    return reached
