"""Checks, independently of `bounds_fill`, that no stored element depends on rows that copies without out-of-bounds fill skip.

In: a function whose copies are marked, before it is split into roles. Out: nothing, or a VerifyError that names the copy. The
pass works forwards from copies; this is a demand analysis backwards from stores, for all copies at once. On each axis of a
value, either all elements are demanded, or only those at offset + i below an extent. Operands of any operation unknown here are
demanded whole.

Offsets and extents are compared by identity and never added. The element at offset + i is the same one in the copy and in the
store, in wrapping and in unbounded arithmetic. The prover shows that offset + i fits, up to the end of a masked box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from tilec.ir.core import Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Broadcast, Butterfly, Cast, For, If, Mma, Permute, Reduce, Reshape, Select, Store, Unary, Yield
from tilec.ir.ops.staging_ops import GroupMma, Relayout, SharedLoad, TensorCopy, WaitMma
from tilec.ir.ops.tmem_ops import TmemLoad, TmemMma
from tilec.ir.types import SharedType, TileType, TmemType

Bound = tuple[Value, Any]
"""Offset and extent: only elements at offset + i below the extent are demanded."""
Demand = tuple[Bound | None, ...]
"""A bound for each axis of a value; None if all elements are demanded."""

_KNOWN: Final = (
    Unary, Binary, Select, Cast, Broadcast, Butterfly, Relayout, Permute, Reshape, Reduce, WaitMma, GroupMma, Mma, SharedLoad,
    TmemLoad,
)  # fmt: skip


def check(function: Function) -> None:
    """Raise VerifyError if a copy without out-of-bounds fill skips rows that are demanded."""
    copies = [op for op in function.body.walk() if isinstance(op, TensorCopy) and op.unfilled]
    if not copies:
        return
    demanded = _demands(function)
    for copy in copies:
        rows = (copy.offsets[copy.row_axis], copy.source.tensor.dims[copy.row_axis])
        if demanded.get(copy.buffer, (rows,))[0] != rows:
            name = function.parameter_of(copy.source).name
            raise VerifyError(f"{copy.opcode} of `{name}` leaves out rows that are asked for")


def _demands(function: Function) -> dict[Value, Demand]:
    """The demand on each value that has any: the least fixpoint of all operations' demands."""
    found: dict[Value, Demand] = {}
    ops = list(function.body.walk())[::-1]
    while True:
        changed = False
        for op in ops:
            for value, bounds in _demanded_by(op, found):
                known = found.get(value, bounds)
                joined = tuple([bound if bound == other else None for bound, other in zip(known, bounds, strict=True)])
                changed |= found.get(value) != joined
                found[value] = joined
        if not changed:
            return found


def _demanded_by(op: Op, demanded: dict[Value, Demand]) -> Iterator[tuple[Value, Demand]]:
    """Operands of an operation, and values that its regions yield, with the demand on each."""
    match op:
        case Yield():
            pass  # its parent propagates the demand on its results
        case Store(mask=True):
            dims = op.target.tensor.dims
            yield op.tile, tuple(zip(op.offsets, dims, strict=True))
            yield from map(_fully_demanded, op.offsets)
        case For():
            yield from map(_fully_demanded, op.operands[:3])
            (body,) = op.regions
            defined = set(_defined_values(body))
            for initial, argument, yielded, result in zip(
                op.initial, body.arguments[1:], body.ops[-1].operands, op.results, strict=True
            ):
                for bounds in [
                    demanded[value] for value in (argument, result) if value in demanded
                ]:  # offsets made in the loop: all
                    kept = tuple([None if bound is None or bound[0] in defined else bound for bound in bounds])
                    yield from ((initial, kept), (yielded, kept))
        case TmemMma():
            if bounds := demanded.get(op.accumulator):
                yield from ((op.operands[0], (bounds[0], None)), (op.operands[2], (bounds[1], None)))
            yield from map(_fully_demanded, (value for value in op.operands if isinstance(value.type, TileType)))
        case If():
            yield from map(_fully_demanded, op.operands)
            for region in op.regions:
                yielded = zip(region.ops[-1].operands, op.results, strict=True)
                yield from ((value, demanded[result]) for value, result in yielded if result in demanded)
        case _ if len(op.results) == 1 and isinstance(op, _KNOWN):
            if op.result in demanded:
                yield from _demanded_of_operands(op, demanded[op.result])
        case _:  # buffers only if it reads them: copies write theirs
            read = [value for value, effect in op.touched() if effect is Effect.READ]
            yield from map(
                _fully_demanded,
                (value for value in op.operands if not isinstance(value.type, SharedType | TmemType) or value in read),
            )


def _demanded_of_operands(op: Op, bounds: Demand) -> Iterator[tuple[Value, Demand]]:
    """Demand on the operands of an operation, given the demand on its result."""
    match op:
        case GroupMma():
            left, _, right, _, acc = op.operands
            of_right = (None, bounds[1]) if op.mn_major else (bounds[1], None)
            yield from ((left, (bounds[0], None)), (right, of_right), (acc, bounds))
        case Mma() if len(bounds) == 2:
            left, right, acc = op.operands
            yield from ((left, (bounds[0], None)), (right, (None, bounds[1])), (acc, bounds))
        case SharedLoad():
            # Row i of the buffer is row i of the result, or column i if transposed, only if the result begins at row 0.
            first, rows = (op.column, bounds[1]) if op.transposed else (op.row, bounds[0])
            yield op.buffer, (None if first else rows, None)
            yield _fully_demanded(op.stage)
        case Mma():
            yield from map(_fully_demanded, op.operands)
        case WaitMma() | TmemLoad():
            result, *others = op.operands
            yield result, bounds
            yield from map(_fully_demanded, others)
        case Permute():
            yield op.operands[0], tuple(bounds[op.axes.index(axis)] for axis in range(len(bounds)))
        case Butterfly():
            yield op.operands[0], tuple(None if axis == op.axis else bound for axis, bound in enumerate(bounds))
        case Reduce():
            yield op.operands[0], (*bounds[: op.axis], None, *bounds[op.axis :])
        case Reshape():
            result = dict(zip(_runs(op.result.tile.shape), bounds, strict=True))
            yield op.operands[0], tuple(result.get(run) for run in _runs(op.operands[0].tile.shape))
        case _:
            shape = op.result.tile.shape
            for value in op.operands:
                extents = zip(value.tile.shape, shape, bounds, strict=True) if value.tile.rank else ()
                yield value, tuple(bound if extent == other else None for extent, other, bound in extents)


def _defined_values(block: Block) -> Iterator[Value]:
    """Values that are defined anew each time a block runs."""
    yield from block.arguments
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from _defined_values(region)


def _runs(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Each axis' extent, with the element count of the axes before it."""
    return [(extent, prod(shape[:axis])) for axis, extent in enumerate(shape)]


def _fully_demanded(value: Value) -> tuple[Value, Demand]:
    """A value with all elements demanded."""
    match value.type:
        case TileType() | SharedType() | TmemType() as kind:
            return value, (None,) * len(kind.shape)
        case _:
            return value, ()
