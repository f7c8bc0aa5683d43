"""Backward slices: the operations that an index, a loop bound or a branch condition is computed from.

These have obligations (no wrap, positive divisors), except those that only `unsafe` accesses use. In scheduled functions the
slice also has operations that copy coordinates and ring positions are computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.ops import AtomicScatter, Decreases, For, If, Invariant, MemoryOp, ReadOp, Take
from tilec.ir.ops.staging_ops import StageCopy
from tilec.ir.types import ScratchType, TileType


def deciding_ops(function: Function, also: Iterable[Value] = ()) -> list[Op]:
    """The slice of all indices, bounds and conditions, and of the values `also`, with all loops; in program order."""
    return _deciding(function, [*also, *(value for op in function.body.walk() for value in _roots(op))])


def steering_ops(function: Function) -> list[Op]:
    """The slice of a prepared function, which includes copy coordinates, stages and parities."""
    return _deciding(function, [value for op in function.body.walk() for value in (*_roots(op), *_shared_operands(op))])


def _deciding(function: Function, roots: list[Value]) -> list[Op]:
    found = _sources_of(function, roots) | {op for op in function.body.walk() if isinstance(op, For)}
    return [op for op in function.body.walk() if op in found]


def trusted_ops(function: Function) -> set[Op]:
    """Operations that an index in an `unsafe` block is computed from: nothing proves that these do not wrap."""
    accesses = (op for op in function.body.walk() if isinstance(op, MemoryOp | StageCopy))
    return _sources_of(function, [value for op in accesses if op.unsafe is not None for value in _index_operands(op)])


def _index_operands(op: MemoryOp | StageCopy) -> list[Value]:
    return op.indices if isinstance(op, MemoryOp) else op.offsets


def _sources_of(function: Function, roots: list[Value]) -> set[Op]:
    """Every operation that `roots` are computed from."""
    found: set[Op] = set()
    pending = list(roots)
    loops = {op.regions[0]: op for op in function.body.walk() if isinstance(op, For)}
    scratch = _scratch(function)
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending += scratch[value] if value in scratch else _sources(loops, value)
        if isinstance(value.owner, Op):
            found.add(value.owner)
    return found


def _roots(op: Op) -> list[Value]:
    match op:
        case MemoryOp():
            return [] if op.unsafe is not None else op.indices
        case Take():
            return op.operands[1:]
        case Invariant() | Decreases():
            return op.operands
        case For():
            return op.operands[:3]
        case If():
            return op.operands[:1]
        case _:
            return []


def _scratch(function: Function) -> dict[Value, list[Value]]:
    """Integer tiles stored to each scratch buffer."""
    found: dict[Value, list[Value]] = {}
    for op in function.body.walk():
        if not op.results and op.operands and isinstance(op.operands[0].type, ScratchType):
            found.setdefault(op.operands[0], []).extend(value for value in op.operands[1:] if _is_integer(value))
    return found


def _is_integer(value: Value) -> bool:
    """Whether a value is a tile of integers or booleans, or scratch, which may contain such a tile."""
    return isinstance(value.type, ScratchType) or (isinstance(value.type, TileType) and not value.type.dtype.is_float)


def _shared_operands(op: Op) -> list[Value]:
    """Scalar operands that determine which shared memory an operation accesses, and which tensor elements it copies."""
    shares_nothing = isinstance(op, MemoryOp) or op.effect in (Effect.NONE, Effect.CONTROL, Effect.PRINT)
    if shares_nothing or op.attributes().get("unsafe") is not None:
        return []
    return [value for value in op.operands if isinstance(value.type, TileType) and not value.type.rank]


def _sources(loops: dict[Block, For], value: Value) -> Iterator[Value]:
    """Values that this one is computed from. A loaded value, or the old one of an atomic, ends the slice: its
    index is a root of its own unless `unsafe`."""
    owner = value.owner
    if isinstance(owner, For):
        index = owner.results.index(value)
        yield from (owner.initial[index], owner.regions[0].ops[-1].operands[index])
    elif isinstance(owner, If):
        yield owner.operands[0]
        yield from (region.ops[-1].operands[owner.results.index(value)] for region in owner.regions)
    elif isinstance(owner, Op):
        if not isinstance(owner, ReadOp | AtomicScatter):
            yield from (operand for operand in owner.operands if _is_integer(operand))
    elif owner is not None and owner in loops:
        loop = loops[owner]
        index = owner.arguments.index(value)
        if index:
            yield from (loop.initial[index - 1], owner.ops[-1].operands[index - 1])
