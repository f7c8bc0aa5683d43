"""Back-to-back GEMM loops (such as attention): two MMAs, the second of which reads a value computed from the first. Finds these
loops with their staged operands, and emits the start of and the wait for each MMA.

In: a loop and its MMAs (`staged_products`). Out: a `BackToBack`, or None if no family can compute it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import For, Load
from tilec.ir.ops.staging_ops import GroupMma, GroupProduct, RegisterGroupMma, WaitMma
from tilec.ir.ops.sync_ops import Release, Wait
from tilec.passes.schedule.pipelining import tensor_staging
from tilec.passes.schedule.pipelining.packed_operands import packed
from tilec.passes.schedule.pipelining.staged_loads import Operand
from tilec.passes.schedule.pipelining.staged_products import Emitter, Product
from tilec.passes.schedule.pipelining.warpgroups import accumulator
from tilec.target.families import TMA, Family, MemorySpace, fed_by

MAX_ACCUMULATORS = 160
"""Accumulator registers per thread of both MMAs: more leave too few of its 255 registers."""

RingPosition = tuple[Value, Value]
"""A ring position: stage index and mbarrier parity."""


@dataclass(eq=False, slots=True)
class BackToBack:
    """A loop of two back-to-back MMAs by `family` with their operands in shared memory: `invariant`, the loop-invariant left
    operand of the first MMA, and `streamed`, the right operands of both, copied in each iteration."""

    family: Family
    loop: For
    first: Product
    second: Product
    invariant: Operand
    streamed: tuple[Operand, Operand]

    @property
    def copied(self) -> list[Operand]:
        """The operands in shared memory."""
        return [self.invariant, *self.streamed]

    @property
    def unstaged_bytes(self) -> int:
        """Bytes of shared memory for the `invariant` operand."""
        return tensor_staging.staged_type(self.invariant, 1).bytes

    @property
    def carried(self) -> int:
        """Index of the second MMA's result among the values that the loop carries."""
        return self.loop.regions[0].ops[-1].operands.index(self.second.mma.result)

    def split(self) -> tuple[list[Op], list[Op]]:
        """The operations of an iteration other than the second MMA: those that do not depend on its carried accumulator, and
        those that do."""
        body = self.loop.regions[0]
        dependent: set[Value] = {body.arguments[1 + self.carried]}
        independent_ops: list[Op] = []
        dependent_ops: list[Op] = []
        for op in body.ops[:-1]:
            if op is self.second.mma:
                continue
            used = {value for inner in Block(ops=[op]).walk() for value in inner.operands}
            if dependent.isdisjoint(used):
                independent_ops.append(op)
            else:
                dependent.update(op.results)
                dependent_ops.append(op)
        return independent_ops, dependent_ops


@dataclass(eq=False, slots=True)
class Rings:
    """Ring and buffer of each operand of a chain, `invariant` first. `warps` run the MMAs, which are of `family`."""

    family: Family
    rings: list[Value]
    buffers: list[Value]
    zero: Value
    warps: int

    @property
    def stages(self) -> int:
        return self.rings[1].ring.stages

    def accumulator(self, value: Value) -> Layout:
        """Layout of an MMA's accumulator."""
        return accumulator(self.family, value, self.warps)

    def start_first(self, out: Emitter, pair: BackToBack, total: Value, position: RingPosition) -> Value:
        """Wait for the first MMA's right operand, then issue the MMA."""
        operands = [self.buffers[0], self.zero, self.buffers[1], position[0], total]
        mma = GroupMma(operands=operands, family=self.family.name, loc=pair.first.mma.loc)
        return self._start(out, mma, pair.first, position, 1)

    def pack(self, out: Emitter, pair: BackToBack, left: Value) -> Value:
        """The second MMA's left operand, packed into registers as the instruction reads it."""
        return packed(out, self.family, pair.second, left, self.accumulator(pair.second.mma.result))

    def start_second(self, out: Emitter, pair: BackToBack, left: Value, total: Value, position: RingPosition) -> Value:
        """Wait for the second MMA's right operand, then issue the MMA; `left` is packed."""
        operands = [left, self.buffers[2], position[0], total]
        mma = RegisterGroupMma(operands=operands, family=self.family.name, loc=pair.second.mma.loc)
        return self._start(out, mma, pair.second, position, 2)

    def _start(self, out: Emitter, op: GroupProduct, product: Product, position: RingPosition, ring: int) -> Value:
        out.add(Wait(operands=[self.rings[ring], *position]))
        result = out.add(op, product.mma.result.tile)
        result.layout = self.accumulator(result)
        return result

    def finish(
        self, out: Emitter, started: Value, pending: int, position: RingPosition, ring: int, overlapped: Value | None = None
    ) -> Value:
        """Wait for an MMA and release the stage that it read. `overlapped`: a value to compute before the wait, so that its
        computation overlaps the MMA."""
        operands = [started] if overlapped is None else [started, overlapped]
        result = out.add(WaitMma(operands=operands, family=self.family.name, pending=pending), started.tile)
        result.layout = started.layout
        out.add(Release(operands=[self.rings[ring], position[0]]))
        return result


def find(
    function: Function, loop: For, warps: int, products: list[Product], invariant: Operand | None
) -> tuple[BackToBack, ...]:  # fmt: skip
    """The loop as a chain of each family that `tma` feeds and that can compute its MMAs; for one with accumulators in tensor
    memory `tmem_attention.fits` decides. `invariant`: the left operand of the first MMA, if one copy before the loop can load
    it."""
    if loop not in function.body.ops or len(products) != 2 or invariant is None:
        return ()
    first, second = products
    if first.left is not None or second.left is not None or first.right is None or second.right is None:
        return ()
    streamed = first.right, second.right
    pairs = (BackToBack(family, loop, first, second, invariant, streamed) for family in fed_by(TMA))
    pairs = (pair for pair in pairs if _shares_no_operand(pair) and (pair.family.in_tensor_memory or _fits(pair, warps)))
    return tuple(pair for pair in pairs if not pair.family.runs_ahead or _is_back_to_back(pair))


def _fits(pair: BackToBack, warps: int) -> bool:
    """Whether the family supports both shapes: the first MMA's right operand is K-major in memory, the second's is MN-major,
    and what threads compute from accumulators in their registers is the second's left operand there. Warps that load their
    operands by themselves take any that was found, if each has whole rows of both results."""
    family, issuers = pair.family, pair.family.issuers(warps)
    if not family.runs_ahead:
        return all(product.grid.rows == warps for product in (pair.first, pair.second))
    rows, columns = pair.first.mma.result.tile.shape
    depth, width = pair.first.mma.operands[0].tile.shape[1], pair.second.mma.result.tile.shape[1]
    return (
        family.accumulators is MemorySpace.REGISTERS
        and issuers > 0
        and pair.first.transposed[1]
        and not pair.second.transposed[1]
        and pair.second.mma.result.tile.shape[0] == rows
        and rows % (family.shape.rows * issuers) == 0
        and max(columns, width) <= family.shape.most_columns
        and rows * (columns + width) <= MAX_ACCUMULATORS * 32 * warps
        and all(extent * 2 % family.row_bytes == 0 for extent in (depth, width))
    )


def _shares_no_operand(pair: BackToBack) -> bool:
    """Whether each product has copies of its own: one buffer would have to belong to two rings."""
    return pair.streamed[0] is not pair.streamed[1] and pair.invariant.load not in [operand.load for operand in pair.streamed]


def _is_back_to_back(pair: BackToBack) -> bool:
    """Whether the second MMA accumulates across iterations and nothing else uses its result, its left operand and the first MMA
    do not depend on that accumulator, and all other operations of the body are free of side effects."""
    body = pair.loop.regions[0]
    first, second = pair.first.mma, pair.second.mma
    inside = {result for op in body.ops for result in op.results}
    loads = [operand.load for operand in pair.streamed]
    pure = all(
        op.effect in (Effect.NONE, Effect.CONTROL) for op in body.walk() if not (isinstance(op, Load) and op in loads)
    )  # fmt: skip
    used = [op for op in body.walk() if second.result in op.operands]
    if not pure or used != [body.ops[-1]] or body.ops[-1].operands.count(second.result) != 1:
        return False
    _, dependent_ops = pair.split()
    total = second.operands[2]
    if total is not body.arguments[1 + pair.carried] and total.owner not in dependent_ops:
        return False  # each iteration starts a sum of its own
    return second.operands[0] in inside and first not in dependent_ops and second.operands[0].owner not in dependent_ops


def becomes(replacement: Value, result: Value) -> None:
    """Make the existing value `result`, which already has users, the result of `replacement`'s operation."""
    assert isinstance(replacement.owner, Op)
    replacement.owner.results = [result]
    result.owner, result.layout = replacement.owner, replacement.layout
