"""Pipelines a loop of several asynchronous MMAs with TMA: `staging` for `fused_products`.

With s stages, such a loop becomes two, one for each role (`roles`):

    rings of mbarriers; fence; barrier                                        at the start of the kernel
    producer:   acquire, copy, commit each operand that stays                 once
                each iteration: acquire, copy, commit each other operand      up to s iterations ahead
    consumers:  wait for the operands that stay
                each iteration, in the order of the kernel:
                    an MMA: wait for the stages that it reads, unless that was done; start it
                    whatever uses an MMA's result: wait for it before; MMAs that started later go on
                    an operand's last MMA is complete: release its stage
                    at the end, wait for all MMAs

Each operand has its own ring. An MMA is complete once those before it are, so the wait for an MMA leaves as many unfinished as
started after it. In persistent blocks stage and parity continue across tiles, so the copies for the next tile start while this
one is stored. An operand that stays is then one of a tile, which threads load themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.atoms import tma
from tilec.atoms.products import ATOMS
from tilec.ir.core import Block, Function, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Mma
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import GroupMma, RegisterGroupMma, SharedAlloc, WaitMma
from tilec.ir.ops.sync_ops import Barrier, ProxyFence, Release, Ring, SharedFree, Wait
from tilec.ir.types import RingType, TileType, i32
from tilec.passes.schedule.pipelining import tensor_staging
from tilec.passes.schedule.pipelining.back_to_back import RingPosition, becomes
from tilec.passes.schedule.pipelining.back_to_back_staging import fill_stage, producer_loop
from tilec.passes.schedule.pipelining.flipped_products import from_instruction, to_instruction
from tilec.passes.schedule.pipelining.fused_products import FusedProducts
from tilec.passes.schedule.pipelining.packed_operands import packed
from tilec.passes.schedule.pipelining.staged_loads import Operand, without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter, Product
from tilec.passes.schedule.specialization.persistent import tile_loop


@dataclass(frozen=True, eq=False, slots=True)
class Staged:
    """Ring and buffer of an operand."""

    ring: Value
    buffer: Value


def pipeline(function: Function, block: Block, fused: FusedProducts, stages: int, warps: int) -> None:
    """Replace the loop in `block`, which is the function's, or that of its tile loop; `warps` consumer warps run the MMAs."""
    setup, before, tiles = Emitter(), Emitter(), tile_loop(function)
    staged = _rings(setup, fused, stages, warps)
    setup.add(ProxyFence())
    setup.add(Barrier())
    # Allocated at the start: the producer fills the rings early, so scratch used before the loop must not share their bytes.
    ops = function.body.ops
    start = next((index + 1 for index, op in enumerate(ops) if isinstance(op, DependencyWait)), 0)
    zero = (before if tiles is None else setup).number(0)
    ops[start:start] = setup.ops
    fill, read = (
        (zero, zero) if tiles is None else tensor_staging.carried_ring_position(tiles, zero, n) for n in ("fill", "read")
    )
    for operand in fused.invariants:
        fill_stage(before, operand, staged[operand].ring, staged[operand].buffer, (zero, zero), operand.load.offsets)
    filled = [(operand, staged[operand].ring, staged[operand].buffer) for operand in fused.streamed]
    producer = producer_loop(fused.loop, filled, fill)
    before.ops.append(producer)
    for operand in fused.invariants:
        before.add(Wait(operands=[staged[operand].ring, zero, zero]))
    index, after = block.ops.index(fused.loop), Emitter()
    _Consumers(fused, staged, zero, warps).rewrite(read)
    if tiles is None:
        after.add(SharedFree(operands=[one.buffer for one in staged.values()]))
    else:
        tiles.regions[0].ops[-1].operands += [*producer.results, *fused.loop.results[-2:]]
    block.ops[index : index + 1] = [*before.ops, fused.loop, *after.ops]
    block.ops = without_dead(block.ops)


def _rings(out: Emitter, fused: FusedProducts, stages: int, warps: int) -> dict[Operand, Staged]:
    """A ring and a buffer for each operand, which `warps` warps read."""
    offset, end, result = 0, tensor_staging.HEAD_BYTES, dict[Operand, Staged]()
    for operand in fused.copied:
        count = stages if operand in fused.streamed else 1
        ring, type_ = Ring(sync="mbarriers", readers=warps, offset=offset), tensor_staging.staged_type(operand, count)
        value = out.add(ring, RingType(count))
        alloc = SharedAlloc(operands=[value], offset=end, alignment=tma.ALIGNMENT)
        result[operand] = Staged(value, out.add(alloc, type_))
        offset, end = offset + ring.bytes, end + type_.bytes
    assert offset <= tensor_staging.HEAD_BYTES
    return result


@dataclass(eq=False, slots=True)
class _Consumers:
    """Rewrites the loop to that of the consumers. `started`: MMAs of this iteration in the order in which they started, with
    what each will have computed; `waited`: how many of them are complete."""

    fused: FusedProducts
    staged: dict[Operand, Staged]
    zero: Value
    warps: int
    out: Emitter = field(default_factory=Emitter)
    ready: set[Operand] = field(default_factory=set[Operand])
    started: list[tuple[Product, Value]] = field(default_factory=list[tuple[Product, Value]])
    waited: int = 0

    def rewrite(self, first: RingPosition) -> None:
        """`first`: the initial stage and parity."""
        loop, body = self.fused.loop, self.fused.loop.regions[0]
        loop.operands += first
        position = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
        by_mma = {product.mma: product for product in self.fused.products}
        for op in body.ops[:-1]:
            self.wait_for({value for inner in Block(ops=[op]).walk() for value in inner.operands}, position)
            product = by_mma.get(op) if isinstance(op, Mma) else None
            if product is None:
                self.out.ops.append(op)
            else:
                self.start(product, position)
        self.wait_for({product.mma.result for product in self.fused.products}, position)
        stages = self.staged[self.fused.streamed[0]].ring.ring.stages
        body.ops[-1].operands += tensor_staging.following(self.out, *position, stages)
        body.ops = without_dead([*self.out.ops, body.ops[-1]])
        loop.results += [Value(TileType(i32), name, loop) for name in ("stage", "parity")]

    def start(self, product: Product, position: RingPosition) -> None:
        """Wait for the stages that the MMA reads, and issue it."""
        left, right = self.fused.lefts[self.fused.products.index(product)], self.fused.shared_right(product)
        mma, major = product.mma, self.fused.is_mn_major(product)
        shape = self.fused.shape(product)
        layout = ATOMS[self.fused.family.name].accumulator(*shape, self.warps)
        computed, total = mma.operands[0], mma.operands[2]
        if self.fused.is_flipped(product):  # packed before the wait for what is copied
            computed = self.pack(product, to_instruction(self.out, mma.operands[1], layout), layout)
            total = to_instruction(self.out, total, layout)
        for operand in self.fused.reads(product):
            if operand in self.fused.streamed and operand not in self.ready:
                self.out.add(Wait(operands=[self.staged[operand].ring, *position]))
                self.ready.add(operand)
        read = [self.staged[right].buffer, position[0]]
        if left is None:
            computed = computed if self.fused.is_flipped(product) else self.pack(product, computed, layout)
            operands = [computed, *read, total]
            op = RegisterGroupMma(operands=operands, family=self.fused.family.name, mn_major=major, loc=mma.loc)
        else:
            stage = position[0] if left in self.fused.streamed else self.zero
            operands = [self.staged[left].buffer, stage, *read, total]
            op = GroupMma(operands=operands, family=self.fused.family.name, mn_major=major, loc=mma.loc)
        result = self.out.add(op, TileType(mma.result.tile.dtype, shape))
        result.layout = layout
        self.started.append((product, result))

    def pack(self, product: Product, left: Value, accumulator: Layout) -> Value:
        """A computed left operand, packed."""
        return packed(self.out, self.fused.family, product, left, accumulator, self.fused.facts)

    def wait_for(self, values: set[Value], position: RingPosition) -> None:
        """Wait for the MMAs with these results and for those before them; release the stages that no other MMA reads."""
        last = max((index for index, (product, _) in enumerate(self.started) if product.mma.result in values), default=-1)
        for index in range(self.waited, last + 1):
            product, started = self.started[index]
            pending = len(self.started) - 1 - index
            wait = WaitMma(operands=[started], family=self.fused.family.name, pending=pending)
            finished = self.out.add(wait, started.tile)
            finished.layout = started.layout
            if self.fused.is_flipped(product):
                finished = from_instruction(self.out, finished)
            becomes(finished, product.mma.result)
            self.waited = index + 1
            for operand in self.fused.reads(product):
                if operand in self.fused.streamed and not any(operand in self.fused.reads(p) for p in self.unfinished()):
                    self.out.add(Release(operands=[self.staged[operand].ring, position[0]]))

    def unfinished(self) -> list[Product]:
        """The MMAs of the iteration that are not known to be complete."""
        complete = [product for product, _ in self.started[: self.waited]]
        return [product for product in self.fused.products if product not in complete]
