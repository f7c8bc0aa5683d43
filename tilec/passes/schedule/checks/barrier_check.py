"""Race check for the barriers that `barrier_insertion` inserted, by an independent algorithm.

In: a prepared function. Out: nothing, or a VerifyError that names two conflicting accesses with a barrier-free path between
them. The pass and this check share only the description of accesses (`tilec.ir.facts.touches`). Here every path is followed
from each access to the next barrier, back edges included, and the threads of every element are enumerated.

It also refuses an asynchronous copy that runs ahead of its iteration if the kernel writes its source before the copy is
complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.facts.touches import Touch, Touches, may_conflict, touches
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import AsyncCopy, StageCopy
from tilec.ir.ops.sync_ops import Barrier, Drain, Roles
from tilec.passes.schedule.checks.op_location import at


def check(function: Function) -> None:
    """Raise VerifyError if a barrier is missing, or a copy is started too early."""
    accesses = touches(function)
    _refuse_early_copies(function)
    if not any(touch.kind is not Effect.READ for touched in accesses.values() for touch in touched.made):
        return
    graph = _Graph()
    graph.close(graph.block(function.body, []))
    for op, touched in accesses.items():
        for touch in touched.made:
            _follow(op, touch, graph, accesses)


def _refuse_early_copies(function: Function) -> None:
    """Only `cp.async` may copy from a tensor that the kernel writes, and a `Drain` and a barrier must precede every write to
    it. Checked for each top-level statement as a whole, so that no loop iteration copies after a write in an earlier one."""
    statements = [list(Block(ops=[op]).walk()) for op in function.body.ops]
    written = [_written(ops) for ops in statements]
    changed: set[Value] = set()
    in_flight: dict[Value, bool] = {}  # tensors that copies may still read; True: drained, but no barrier yet
    for ops, written_here in zip(statements, written, strict=True):
        changed |= written_here
        for op in ops:
            if isinstance(op, StageCopy) and (op.source in changed or not isinstance(op, AsyncCopy)):
                if any(op.source in other for other in written):
                    raise VerifyError(f"{at(op)} is started ahead of writes to `{op.source.name}`")
            elif isinstance(op, StageCopy):
                in_flight[op.source] = False
        if isinstance(ops[0], Drain):
            in_flight = dict.fromkeys(in_flight, True)
        elif isinstance(ops[0], Barrier):
            in_flight = {tensor: drained for tensor, drained in in_flight.items() if not drained}
        if overwritten := written_here & in_flight.keys():
            (tensor,) = sorted(overwritten, key=lambda value: value.name or "")[:1]
            raise VerifyError(f"`{tensor.name}` is written while copies that were started ahead may still read it")


def _written(ops: Iterable[Op]) -> set[Value]:
    return {op.operands[0] for op in ops if op.effect in (Effect.WRITE, Effect.ATOMIC)}


@dataclass(frozen=True, slots=True)
class _Edge:
    """To the next operation; `loop` is set on back edges, which lead to that loop's next iteration or its end."""

    target: Op | None
    loop: For | None = None


@dataclass(eq=False, slots=True)
class _Graph:
    """Control flow graph of operations. The node of a loop is its head, that of a branch its condition. `inside`: the loops in
    which each value is defined."""

    following: dict[Op, list[_Edge]] = field(default_factory=dict[Op, list[_Edge]])
    inside: dict[Value, frozenset[For]] = field(default_factory=dict[Value, frozenset[For]])
    role: dict[Op, Block | None] = field(default_factory=dict[Op, "Block | None"])

    def block(self, block: Block, ends: list[Op], loops: tuple[For, ...] = (), role: Block | None = None) -> list[Op]:
        """Add a block that is entered from `ends`; returns its last operations. `role` is the region of the role that runs
        it."""
        for op in block.ops:
            for end in ends:
                self.following[end].append(_Edge(op))
            self.following[op] = []
            self.role[op] = role
            ends = [op]
            self.inside |= dict.fromkeys(op.results, frozenset(loops))
            if isinstance(op, For):
                (body,) = op.regions
                self.inside |= dict.fromkeys(body.arguments, frozenset((*loops, op)))
                for end in self.block(body, [op], (*loops, op), role):
                    if end is not op:
                        self.following[end].append(_Edge(op, op))
            elif op.regions:
                inner = [region if isinstance(op, Roles) else role for region in op.regions]
                pairs = zip(op.regions, inner, strict=True)
                ends = [end for region, inner_role in pairs for end in self.block(region, [op], loops, inner_role)]
        return ends

    def is_barrier_between(self, op: Op, start: Op) -> bool:
        """Whether barrier `op` synchronizes all threads that executed `start`; a role's barrier covers its own threads only."""
        return getattr(op, "scope", "block") == "block" or self.role[op] is self.role[start]

    def close(self, ends: list[Op]) -> None:
        """Connect `ends` to the end of the kernel."""
        for end in ends:
            self.following[end].append(_Edge(None))


def _follow(start: Op, touch: Touch, graph: _Graph, accesses: dict[Op, Touches]) -> None:
    """Walk from an access along all paths up to the next barrier; visits each operation once per set of traversed back
    edges."""
    pending: list[tuple[_Edge, frozenset[For]]] = [(edge, frozenset()) for edge in graph.following[start]]
    seen: set[tuple[Op, frozenset[For]]] = set()
    while pending:
        edge, back_edges = pending.pop()
        if edge.loop is not None:
            back_edges |= {edge.loop}
        op = edge.target
        if op is None or (op, back_edges) in seen:
            continue
        seen.add((op, back_edges))
        touched = accesses.get(op, Touches())
        for later in touched.made:
            if may_conflict(touch, later) and not _is_ordered(touch, later, back_edges, graph):
                raise VerifyError(f"no barrier of the block's threads between {at(start)} and {at(op)}")
        if not (touched.is_barrier and graph.is_barrier_between(op, start)):
            pending += [(following, back_edges) for following in graph.following[op]]


def _is_ordered(earlier: Touch, later: Touch, back_edges: frozenset[For], graph: _Graph) -> bool:
    """Whether each element of both boxes is accessed by one thread alone, the same both times."""
    if earlier.is_shared or earlier.offsets is None or later.offsets is None:
        return False
    if not all(_equal(a, b, back_edges, graph) for a, b in zip(earlier.offsets, later.offsets, strict=True)):
        return False
    common = tuple(min(a, b) for a, b in zip(_shape(earlier), _shape(later), strict=True))
    if earlier.layout is None or later.layout is None or not earlier.layout.lanes or not later.layout.lanes:
        return earlier.layout == later.layout and Effect.READ not in (earlier.kind, later.kind)
    first, second = (
        _threads(touch.layout, _shape(touch), common, touch.kind is Effect.READ) for touch in (earlier, later) if touch.layout
    )
    return first is not None and second is not None and bool((first == second).all())


def _shape(touch: Touch) -> tuple[int, ...]:
    op = touch.op
    return op.result.tile.shape if op.effect is Effect.READ else op.operands[1].tile.shape


def _equal(left: Value, right: Value, back_edges: frozenset[For], graph: _Graph) -> bool:
    """Whether two scalars are equal although the loops `back_edges` started another iteration in between: they are the same
    expression over values defined outside of those loops."""
    pairs, visited = [(left, right)], set[tuple[Value, Value]]()
    while pairs:
        a, b = pairs.pop()
        if (a, b) in visited:
            continue
        visited.add((a, b))
        left_owner, right_owner = a.owner, b.owner
        both_pure = (
            isinstance(left_owner, Op) and isinstance(right_owner, Op) and _is_pure(left_owner) and _is_pure(right_owner)
        )
        if not both_pure:
            if a is not b or graph.inside.get(a, frozenset()) & back_edges:
                return False
            continue
        assert isinstance(left_owner, Op) and isinstance(right_owner, Op)
        same_kind = (
            type(left_owner) is type(right_owner) and left_owner.attributes() == right_owner.attributes() and a.type == b.type
        )
        if (
            not same_kind
            or len(left_owner.operands) != len(right_owner.operands)
            or repr(left_owner.attributes()) != repr(right_owner.attributes())
        ):
            return False
        pairs += zip(left_owner.operands, right_owner.operands, strict=True)
    return True


def _is_pure(op: Op) -> bool:
    return op.effect is Effect.NONE and not op.regions


@cache
def _threads(layout: Layout, shape: tuple[int, ...], common: tuple[int, ...], every: bool) -> NDArray[np.int64] | None:
    """The first thread of each element in the corner `common` of a box of `shape`, by enumeration. With `every`, replicas past
    the end of an axis count too, and the result is None if some element has several threads."""
    registers, lanes, warps = (_steps(digits, layout.rank) for digits in (layout.registers, layout.lanes, layout.warps))
    coordinates = registers[:, None, None] + lanes[None, :, None] + warps[None, None, :]
    threads = np.broadcast_to(np.arange(len(lanes))[:, None] + 32 * np.arange(len(warps)), coordinates.shape[:3])
    coordinates = coordinates % np.array(shape) if every else coordinates
    inside = (coordinates < np.array(common)).all(-1)
    first = np.full(common, np.iinfo(np.int64).max)
    last = np.full(common, -1)
    index = tuple(coordinates[inside].T)
    np.minimum.at(first, index, threads[inside])
    np.maximum.at(last, index, threads[inside])
    return None if every and (first != last).any() else first


def _steps(digits: tuple[Digit, ...], rank: int) -> NDArray[np.int64]:
    """Coordinate offsets (index x axis) for each value of one hardware index."""
    out = np.zeros((1, rank), np.int64)
    for digit in digits:
        step = np.zeros(rank, np.int64)
        if digit.axis is not None:
            step[digit.axis] = digit.stride
        out = (np.arange(digit.extent)[:, None, None] * step + out).reshape(-1, rank)
    return out
