"""Checks, independently of `pairs` and `tmem_staging`, that two blocks of a pair compute one tile together.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. The other checks follow one block; these rules
make what they show hold of both, which run one code in step:

- *Control.* Every loop and branch around an operation that the blocks share (on a ring, a product, a copy into a stage, a
  barrier of both) goes the same way in both, and these operations name the same stage and parity: what they depend on follows
  from launch values and the number of the tile alone, not from the rank, nor from what a block has loaded.
- *Rank.* The rank reaches offsets of accesses, by scalar arithmetic, and conditions of branches that share nothing. It enters
  an offset as `offset + rank * extent`, where `extent` is that of the tile, so that the blocks access adjacent halves. Each
  copy into a stage has it in its rows, and so has each store on one axis.
- *Rings.* Their mbarriers are those of a pair; copies of both blocks fill an operand's stage, and products of one block fill an
  accumulator.
- *Roles.* Products are in one role, of one thread, which the leader alone runs. It waits for operands, and accesses no tensor;
  the other roles copy operands and load accumulators, in both blocks.
- *Life.* A barrier of both blocks follows the rings and the allocation, before any role. Another one follows the roles, before
  the columns are freed: no block ends, or frees, what the other one may still use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tilec.ir.core import Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Cast, Constant, For, If, Load, Store
from tilec.ir.ops.pair_ops import ClusterRank, PairMma, PairRing
from tilec.ir.ops.signal_ops import SignalOp
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.ops.store_ops import TensorStore
from tilec.ir.ops.sync_ops import Acquire, Barrier, Release, Ring, RingOp, Roles, Wait
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, ThreadProduct, TmemAlloc, TmemFree, TmemLoad, TmemReserve
from tilec.ir.types import TileType
from tilec.passes.schedule.checks.op_location import at

_SHARED: Final = (RingOp, ThreadProduct, TensorCopy, TmemLoad)
"""Operations that both blocks execute in step, besides barriers of both."""
_PLACED: Final = (Load, Store, TensorCopy, TensorStore)


def check(function: Function) -> None:
    """Raise VerifyError at the first broken rule. Functions whose blocks form no pairs pass."""
    if function.cluster == 1:
        return
    ops = list(function.body.walk())
    _check_rings(ops)
    _check_roles(function)
    _check_life(function)
    ranked = _dependent(function.body, lambda op: isinstance(op, ClusterRank))
    own = _dependent(function.body, lambda op: isinstance(op, ClusterRank) or _has_memory(op))
    for op in ops:
        _check_control(op, own)
        _check_rank(op, ranked)


def _check_rings(ops: list[Op]) -> None:
    for op in ops:
        if isinstance(op, Ring) and not isinstance(op, PairRing):
            raise VerifyError(f"{at(op)}: blocks of a pair have rings in common")
        if isinstance(op, SignalOp) or (isinstance(op, ThreadProduct) and not isinstance(op, PairMma)):
            raise VerifyError(f"{at(op)} is of one block")
        ring = op.ring.owner if isinstance(op, Acquire | CommitMma | ReleaseMma | Release) else None
        if isinstance(ring, PairRing):
            by_copies = op.expected > 0 if isinstance(op, Acquire) else isinstance(op, ReleaseMma)
            if by_copies != (ring.producers > 1):
                raise VerifyError(f"{at(op)}: {ring.producers} blocks fill a stage of its ring")
        if isinstance(op, TensorCopy) and op.unfilled:
            raise VerifyError(f"{at(op)}: the leader counts the bytes of whole boxes")


def _check_roles(function: Function) -> None:
    roles = [op for op in function.body.ops if isinstance(op, Roles)]
    if len(roles) != 1:
        raise VerifyError(f"{function.name}: blocks of a pair have roles")
    starting = [region for region in roles[0].regions if any(isinstance(op, PairMma) for op in region.walk())]
    if len(starting) != 1:
        raise VerifyError(f"{at(roles[0])}: one role starts the products of a pair")
    for region, alone in zip(roles[0].regions, roles[0].alone, strict=True):
        leads = region is starting[0]
        if leads and not alone:
            raise VerifyError(f"{at(roles[0])}: one thread starts the products of a pair")
        for op in region.walk():
            ring = op.ring.owner if isinstance(op, RingOp) else None
            if leads and (isinstance(op, Barrier) or op.effect in (Effect.READ, Effect.WRITE, Effect.ATOMIC)):
                raise VerifyError(f"{at(op)}: the leader alone is here")
            if isinstance(op, Wait) and isinstance(ring, PairRing) and leads != (ring.producers > 1):
                raise VerifyError(f"{at(op)} waits in {'the leader alone' if leads else 'both blocks'} for what is not there")
            for_leader = isinstance(op, CommitMma | ReleaseMma) or (isinstance(op, Acquire) and not op.expected)
            for_both = isinstance(op, TensorCopy | TmemLoad | Release) or (isinstance(op, Acquire) and op.expected > 0)
            if (for_leader and not leads) or (for_both and leads):
                raise VerifyError(f"{at(op)} is for {'the leader' if for_leader else 'both blocks'}")


def _check_life(function: Function) -> None:
    ops = function.body.ops
    barriers = [index for index, op in enumerate(ops) if isinstance(op, Barrier) and op.scope == "cluster"]
    made = [index for index, op in enumerate(ops) if isinstance(op, Ring | TmemReserve)]
    (roles,) = [index for index, op in enumerate(ops) if isinstance(op, Roles)]
    freed = [index for index, op in enumerate(ops) if isinstance(op, TmemFree)]
    if not any(max(made) < index < roles for index in barriers):
        raise VerifyError(f"{at(ops[roles])}: the other block may not have made its mbarriers yet")
    if not all(any(roles < index < end for index in barriers) for end in (freed or [len(ops)])):
        raise VerifyError(f"{function.name}: a block frees or ends what the other one may still use")


def _check_control(op: Op, own: set[Value]) -> None:
    """Check that both blocks execute what they share equally often, on the same stages."""
    steering: Iterable[Value] = ()
    if isinstance(op, For | If) and any(_is_shared(inner) for region in op.regions for inner in region.walk()):
        steering = op.operands[:3] if isinstance(op, For) else op.operands
    elif isinstance(op, TensorCopy):
        steering = [op.stage]
    elif _is_shared(op):
        steering = op.operands
    if any(value in own for value in steering):
        raise VerifyError(f"{at(op)}: blocks of a pair may differ in what they do here")


def _check_rank(op: Op, ranked: set[Value]) -> None:
    """Check where the rank goes, and that it stands for adjacent halves there."""
    used = [value for value in op.operands if value in ranked]
    scalars = all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)
    arithmetic = op.effect is Effect.NONE and scalars and bool(op.results) and not op.regions
    if used and not arithmetic and not isinstance(op, (*_PLACED, If)):
        raise VerifyError(f"{at(op)} takes the rank of a block, which is for offsets")
    if not isinstance(op, _PLACED):
        return
    if any(value in ranked for value in op.operands if value not in op.offsets):
        raise VerifyError(f"{at(op)} takes the rank of a block, which is for offsets")
    axes = [axis for axis, offset in enumerate(op.offsets) if offset in ranked]
    if not isinstance(op, Load) and len(axes) != 1:
        raise VerifyError(f"{at(op)}: each block has its own rows, on one axis")
    for axis in axes:
        if not _is_own_half(op.offsets[axis], _extent(op, axis), ranked):
            raise VerifyError(f"{at(op)}: the two blocks do not access adjacent halves")


def _extent(op: Op, axis: int) -> int:
    """Extent of an access on an axis on which blocks have their own rows."""
    if isinstance(op, TensorCopy):  # rows of a single run, or whole runs of them
        whole = {op.row_axis: op.buffer.shared.shape[0] if op.sub_tiles == 1 else 0, op.sub_axis: op.sub_tiles}
        return whole.get(axis - len(op.offsets), 0)
    if isinstance(op, TensorStore):
        return op.rows if axis == 0 else 0
    assert isinstance(op, Load | Store)
    return op.tile.tile.shape[axis]


def _is_own_half(offset: Value, extent: int, ranked: set[Value]) -> bool:
    """Whether an offset is `x + rank * extent`, where x is the same in both blocks."""
    if not isinstance(offset.owner, Binary) or offset.owner.kind != "add":
        return False
    base, part = offset.owner.operands
    if base in ranked or part not in ranked:
        return False
    while isinstance(part.owner, Cast):
        part = part.owner.operands[0]
    if not isinstance(part.owner, Binary) or part.owner.kind != "mul":
        return False
    rank, size = part.owner.operands
    return isinstance(rank.owner, ClusterRank) and isinstance(size.owner, Constant) and size.owner.value == extent > 0


def _is_shared(op: Op) -> bool:
    return isinstance(op, _SHARED) or (isinstance(op, Barrier) and op.scope == "cluster")


def _dependent(body: Block, is_source: Callable[[Op], bool]) -> set[Value]:
    """Values that depend on the results of some operations, by data or by control."""
    found: set[Value] = set()
    while True:
        before = len(found)
        for op in body.walk():
            found.update(_reached(op, found) if not is_source(op) else op.results)
        if len(found) == before:
            return found


def _reached(op: Op, found: set[Value]) -> Iterator[Value]:
    if isinstance(op, For):
        arguments, yielded = op.regions[0].arguments, op.regions[0].ops[-1].operands
        if any(value in found for value in op.operands[:3]):
            yield from (*arguments, *op.results)
        for argument, result, initial, following in zip(arguments[1:], op.results, op.initial, yielded, strict=True):
            if not found.isdisjoint((argument, initial, following)):
                yield from (argument, result)
    elif isinstance(op, If):
        steered = op.operands[0] in found
        for result, *values in zip(op.results, *(region.ops[-1].operands for region in op.regions), strict=True):
            if steered or not found.isdisjoint(values):
                yield result
    elif op.effect is Effect.NONE and not found.isdisjoint(op.operands):  # what is read at an offset is no offset
        yield from op.results


def _has_memory(op: Op) -> bool:
    """Whether results are what a block has in some memory."""
    return op.effect not in (Effect.NONE, Effect.CONTROL) and not isinstance(op, Ring | TmemReserve | TmemAlloc)
