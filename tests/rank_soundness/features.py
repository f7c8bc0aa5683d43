"""What a kernel of several ranks does with ranks, for the table of what random kernels cover."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rank_soundness.verdict import number_of_ranks, rank_name
from tests.soundness.dependence import deciding_values
from tests.soundness.features import features
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function, Value


def rank_features(function: Function) -> set[str]:
    """Names of the constructs of a kernel: those of `tests.soundness.features`, and those of ranks."""
    return features(function) | set(_of_ranks(function))


def _of_ranks(function: Function) -> Iterator[str]:
    met = next((k for k, op in enumerate(function.body.ops) if isinstance(op, ops.Meet)), None)
    yield f"{number_of_ranks(function)} ranks"
    yield "no meet in the body" if met is None else "meet"
    if met is not None:
        yield from _order(function, met)
    peers = [p for p in function.parameters if p.access is Access.PEER]
    yield from {f"part of {p.value.tensor.dtype}" for p in peers}
    yield from {f"part of {p.value.tensor.rank} axes" for p in peers}
    name = rank_name(function)
    rank = next((p.value for p in function.parameters if p.name == name), None)
    if rank is not None:
        yield from _uses(function, rank)


def _order(function: Function, met: int) -> Iterator[str]:
    before = Block(ops=function.body.ops[:met])
    for op in before.walk():
        for tensor, effect in op.touched():
            access = function.parameter_of(tensor).access if tensor.name else None
            if access is not None:
                yield f"{effect.value} of {access.value} before the meet"
        if isinstance(op, ops.For | ops.If):
            yield f"{'loop' if isinstance(op, ops.For) else 'branch'} before the meet"


def _uses(function: Function, rank: Value) -> Iterator[str]:
    """Where the number of the rank goes: into a condition, a bound of a loop, or the index of an access."""
    derived, deciding = {rank}, deciding_values(function)
    for op in function.body.walk():
        if not op.regions and any(operand in derived for operand in op.operands):
            derived.update(op.results)
    for op in function.body.walk():
        if isinstance(op, ops.If) and op.operands[0] in derived:
            yield "branch by rank"
        elif isinstance(op, ops.For) and any(operand in derived for operand in op.operands[:3]):
            yield "loop by rank"
        elif isinstance(op, ops.Load | ops.Gather) and any(operand in derived for operand in op.operands[1:]):
            yield "read at a place by rank"
        elif isinstance(op, ops.WriteOp) and any(index in derived for index in op.indices):
            yield "write at a place by rank"
    if rank in deciding:
        yield "rank decides"
