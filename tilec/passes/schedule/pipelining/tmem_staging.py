"""Pipelines a loop whose products are started by one thread and accumulate in tensor memory: `staging` for such a family.

With s stages of operands and a of accumulators, a loop of one MMA becomes two, and an epilogue that reads the result:

    rings of mbarriers; columns of tensor memory; fence; barrier         at the start of the kernel
    producer:     each iteration: acquire, copy, commit                  up to s iterations ahead
    multiplier:   acquire an accumulator
                  each iteration: wait; start the MMA; release the stage when it is complete
                  commit the accumulator when all MMAs are complete
    consumers:    wait for an accumulator; load it; release it

A persistent block has two accumulators if they fit: the consumers load and store one tile while the multiplier computes the
next. All ring positions are then carried by the tile loop.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms.products import ATOMS
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import For, If, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.pair_ops import PairMma, PairRing
from tilec.ir.ops.signal_ops import SignalMma
from tilec.ir.ops.sync_ops import Acquire, Barrier, ProxyFence, Release, Ring, Wait, WarpBarrier
from tilec.ir.ops.tmem_ops import (
    CommitMma,
    ReleaseMma,
    ThreadProduct,
    TmemAlloc,
    TmemFree,
    TmemLoad,
    TmemMma,
    TmemReserve,
    allocated_columns,
)
from tilec.ir.types import TMEM_COLUMNS, RingType, TileType, TmemSpaceType, TmemType, i32
from tilec.passes.schedule.pipelining.staged_loads import Operand
from tilec.passes.schedule.pipelining.staged_products import Emitter, Product
from tilec.passes.schedule.pipelining.tensor_staging import (
    HEAD_BYTES,
    POSITION_NAMES,
    carried_position,
    following,
    operand_ring,
    producer_loop,
)
from tilec.passes.schedule.specialization.pairs import rank_of
from tilec.passes.schedule.specialization.persistent import tile_loop
from tilec.target.families import Family
from tilec.target.schedule import PAIR

ACCUMULATOR_STAGES: Final = 2
"""Accumulators of a persistent block: one is loaded and stored while the other one is computed."""
ADDRESS_OFFSET: Final = HEAD_BYTES - 16
"""Byte offset of the address of the allocated columns."""
RING_OFFSET: Final = HEAD_BYTES // 2
"""Byte offset of the mbarriers of the accumulators' ring."""


def pipeline(
    family: Family, function: Function, block: Block, loop: For, product: Product, operands: list[Operand], stages: int
) -> None:  # fmt: skip
    """Replace the loop in `block`; the function's warps are the consumers."""
    setup, warps, tiles = Emitter(), function.num_warps, tile_loop(function)
    tile = product.mma.result.tile
    pair = function.cluster > 1
    ring = operand_ring(setup, operands, stages, 1, pair=pair)
    buffer_type = _accumulators(tile, 1 if tiles is None else ACCUMULATOR_STAGES)
    results = setup.add(_ring_of_results(warps, pair), RingType(buffer_type.stages))
    space_type = TmemSpaceType(allocated_columns(buffer_type.columns))
    space = setup.add(TmemReserve(offset=ADDRESS_OFFSET), space_type)
    setup.add(ProxyFence())
    setup.add(Barrier(scope="cluster" if pair else "block"))
    accumulators = setup.add(TmemAlloc(operands=[space, results]), buffer_type)
    ops, before = function.body.ops, Emitter()
    zero = (before if tiles is None else setup).number(0)
    names = [f"{role}_{part}" for role in ("fill", "read", "start", "take") for part in POSITION_NAMES]
    positions = [zero] * 8 if tiles is None else [carried_position(tiles, zero, name) for name in names]
    start = next((index + 1 for index, op in enumerate(ops) if isinstance(op, DependencyWait)), 0)
    ops[start:start] = setup.ops
    filled = producer_loop(loop, operands, ring, positions[:2], rank_of(function) if pair else None)
    multiplier = Emitter()
    multiplier.add(Acquire(operands=[results, *positions[4:6]]))
    products = _multiplier_loop(family, loop, product, ring, positions[2:4], accumulators, positions[4])
    multiplier.ops.append(products)
    multiplier.add(CommitMma(operands=[results, positions[4]]))
    consumer = Emitter()
    has_iteration = consumer.compare("lt", loop.lower, loop.upper)
    consumer.add(Wait(operands=[results, *positions[6:]]))
    consumer.ops.append(_taken(family, loop, product, has_iteration, accumulators, positions[6], warps))
    consumer.add(WarpBarrier())
    consumer.add(Release(operands=[results, positions[6]]))
    if tiles is not None:
        (start_stage, start_parity), (take_stage, take_parity) = positions[4:6], positions[6:]
        started = following(multiplier, start_stage, start_parity, buffer_type.stages)
        taken = following(consumer, take_stage, take_parity, buffer_type.stages)
        tiles.regions[0].ops[-1].operands += [*filled.results, *products.results, *started, *taken]
    index = block.ops.index(loop)
    block.ops[index : index + 1] = [*before.ops, filled, *multiplier.ops, *consumer.ops]
    if pair:  # a block's shared and tensor memory is used until the other one has ended its roles too
        function.body.ops.append(Barrier(scope="cluster"))
    function.body.ops.append(TmemFree(operands=[space]))


def _ring_of_results(warps: int, pair: bool) -> Ring:
    """The ring of accumulators, which `warps` warps of each block load."""
    if pair:
        return PairRing(sync="mbarriers", readers=PAIR * warps, producers=1, offset=RING_OFFSET)
    return Ring(sync="mbarriers", readers=warps, offset=RING_OFFSET)


def _accumulators(tile: TileType, stages: int) -> TmemType:
    """The ring of accumulators of a tile: `stages`, or one if tensor memory has no more."""
    rows, columns = tile.shape
    wanted = TmemType(tile.dtype, (rows, columns), stages)
    return wanted if wanted.columns <= TMEM_COLUMNS else TmemType(tile.dtype, (rows, columns), 1)


def _multiplier_loop(
    family: Family, loop: For, product: Product, ring: Value, position: list[Value], accumulators: Value, target: Value
) -> For:  # fmt: skip
    """The loop of the thread that starts the MMAs; `position` is its initial stage and parity, `target` the accumulator's
    stage."""
    body = Block()
    result = For(operands=[*loop.operands[:3], *position], regions=[body], variable=loop.variable, loc=loop.loc)
    variable = body.add_argument(TileType(i32), loop.regions[0].arguments[0].name)
    stage, parity = (body.add_argument(TileType(i32), name) for name in POSITION_NAMES)
    left, right = product.left, product.right
    assert left is not None and right is not None and left.buffer is not None and right.buffer is not None
    out = Emitter()
    out.add(Wait(operands=[ring, stage, parity]))
    accumulate = out.compare("lt", loop.lower, variable)
    operands = [left.buffer, stage, right.buffer, stage, accumulators, target, accumulate]
    kind = PairMma if isinstance(ring.owner, PairRing) else TmemMma
    out.add(kind(operands=operands, family=family.name, loc=product.mma.loc))
    out.add(ReleaseMma(operands=[ring, stage]))
    out.add(Yield(operands=list(following(out, stage, parity, ring.ring.stages))))
    body.ops = out.ops
    result.define(TileType(i32), TileType(i32), names=POSITION_NAMES)
    return result


def _taken(
    family: Family, loop: For, product: Product, has_iteration: Value, accumulators: Value, stage: Value, warps: int
) -> If:  # fmt: skip
    """The accumulator in registers; zero if the loop has no iteration, and nothing was computed."""
    (result,) = loop.results
    rows, columns = result.tile.shape
    then = Emitter()
    value = loaded(then, accumulators, stage, ATOMS[family.name].accumulator(rows, columns, warps), product.mma)
    return in_place_of(result, has_iteration, then, value, loop.initial[0])


def loaded(out: Emitter, buffer: Value, stage: Value, layout: Layout, product: Op) -> Value:
    """A stage of a buffer, which a product wrote, in registers."""
    value = out.add(TmemLoad(operands=[buffer, stage], loc=product.loc), TileType(buffer.tmem.dtype, buffer.tmem.shape))
    value.layout = layout
    return value


def in_place_of(result: Value, condition: Value, then: Emitter, value: Value, otherwise: Value) -> If:
    """A branch that takes over `result`, that of a loop: `value`, made by `then`, if the loop had an iteration."""
    then.add(Yield(operands=[value]))
    branch = If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield(operands=[otherwise])])])
    branch.results = [result]
    result.owner, result.layout = branch, value.layout
    return branch


def multiplies(op: Op) -> bool:
    """Whether an operation is work of the thread that starts the MMAs."""
    is_acquire = isinstance(op, Acquire) and len(op.operands) > 1 and op.expected == 0
    return is_acquire or isinstance(op, ThreadProduct | CommitMma | ReleaseMma | SignalMma)
