"""Pipelines a back-to-back GEMM loop (such as attention) with TMA: `staging` for loops in which the second MMA's left operand
is computed from the first MMA's result.

With s stages, such a loop becomes two, one for each role (`roles`):

    rings of mbarriers; fence; barrier                                        at the start of the kernel
    producer:   acquire, copy, commit the first MMA's left operand            once
                each iteration: acquire, copy, commit both right operands     up to s iterations ahead
    consumers:  wait for the first MMA's left operand
                each iteration, for each of the two MMAs:
                    wait; start the MMA; wait for it, and release its stage

Each right operand has its own ring, so the first MMA may start before the second's operand arrives. Warps that load operands
into registers (`mma.sync`) read the left one of the first MMA anew in each iteration, and release a stage once it is loaded.
Within a warpgroup, other
computation of an iteration does not overlap its MMAs; it may overlap those of another warpgroup of the block. If the register
budget allows, `overlapped_products` adds intra-warpgroup overlap to the consumer loop.
"""

from __future__ import annotations

from tilec.atoms import tma
from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import For, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import SharedAlloc, TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, ProxyFence, Ring, SharedFree, Wait
from tilec.ir.types import RingType, TileType, i32
from tilec.passes.schedule.pipelining import overlapped_products, tensor_staging
from tilec.passes.schedule.pipelining.back_to_back import BackToBack, RingPosition, Rings, becomes
from tilec.passes.schedule.pipelining.staged_loads import Operand, without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter, sliced


def pipeline(block: Block, pair: BackToBack, stages: int, warps: int, registers: int) -> None:
    """Replace the loop in `block`; `warps` consumer warps run the MMAs, with `registers` per thread."""
    setup, before = Emitter(), Emitter()
    rings, _ = operand_rings(setup, pair, stages, warps, before.number(0))
    setup.add(ProxyFence())
    setup.add(Barrier())
    # Allocated at the start: the producer fills the rings early, so scratch used before the loop must not share their bytes.
    start = next((index + 1 for index, op in enumerate(block.ops) if isinstance(op, DependencyWait)), 0)
    block.ops[start:start] = setup.ops
    first = (rings.zero, rings.zero)
    fill_stage(before, pair.invariant, rings.rings[0], rings.buffers[0], first, pair.invariant.load.offsets)
    filled = zip(pair.streamed, rings.rings[1:], rings.buffers[1:], strict=True)
    before.ops.append(producer_loop(pair.loop, list(filled), (rings.zero, rings.zero)))
    before.add(Wait(operands=[rings.rings[0], *first]))
    loop_index = block.ops.index(pair.loop)
    consumer_loop = _reading_loop
    if pair.family.runs_ahead:
        consumer_loop = overlapped_products.overlap if overlapped_products.fits(pair, warps, registers) else _consumer_loop
    block.ops[loop_index : loop_index + 1] = [*before.ops, *consumer_loop(pair, rings), SharedFree(operands=rings.buffers)]
    block.ops = without_dead(block.ops)


def operand_rings(out: Emitter, pair: BackToBack, stages: int, warps: int, zero: Value) -> tuple[Rings, int]:
    """A ring and a buffer for each operand, which `warps` warps read; the byte after their mbarriers."""
    result = Rings(pair.family, [], [], zero, warps)
    offset, end = 0, tensor_staging.HEAD_BYTES
    for operand, count in ((pair.invariant, 1), *((streamed, stages) for streamed in pair.streamed)):
        ring, type_ = Ring(sync="mbarriers", readers=warps, offset=offset), tensor_staging.staged_type(operand, count)
        result.rings.append(out.add(ring, RingType(count)))
        alloc = SharedAlloc(operands=[result.rings[-1]], offset=end, alignment=tma.ALIGNMENT)
        result.buffers.append(out.add(alloc, type_))
        offset, end = offset + ring.bytes, end + type_.bytes
    return result, offset


def fill_stage(
    out: Emitter, operand: Operand, ring: Value, buffer: Value, position: RingPosition, offsets: list[Value]
) -> None:
    """Fill one stage, in the producer thread."""
    out.add(Acquire(operands=[ring, *position], expected=tma.copied_bytes(buffer.shared)))
    load = operand.load
    copied = [load.source, buffer, position[0], *offsets]
    out.add(
        TensorCopy(
            operands=copied, row_axis=operand.row_axis, sub_tiles=operand.sub_tiles, gap=operand.gap,
            unsafe=load.unsafe, loc=load.loc,
        )
    )  # fmt: skip
    out.add(Commit(operands=[ring]))


def producer_loop(loop: For, filled: list[tuple[Operand, Value, Value]], first: RingPosition) -> For:
    """The producer's loop, which issues the copies of each iteration; `filled`: each operand with its ring and buffer;
    `first`: the initial stage and parity."""
    producer_body, out = Block(), Emitter()
    result = For(operands=[*loop.operands[:3], *first], regions=[producer_body], variable=loop.variable, loc=loop.loc)
    mapping = {loop.regions[0].arguments[0]: producer_body.add_argument(TileType(i32), loop.regions[0].arguments[0].name)}
    position = producer_body.add_argument(TileType(i32), "stage"), producer_body.add_argument(TileType(i32), "parity")
    tensor_staging.repeat_offsets(out, loop.regions[0], [operand for operand, _, _ in filled], mapping)
    for operand, ring, buffer in filled:
        fill_stage(out, operand, ring, buffer, position, [mapping.get(value, value) for value in operand.load.offsets])
    out.add(Yield(operands=list(tensor_staging.following(out, *position, filled[0][1].ring.stages))))
    producer_body.ops = out.ops
    result.define(TileType(i32), TileType(i32), names=("stage", "parity"))
    return result


def _consumer_loop(pair: BackToBack, rings: Rings) -> list[Op]:
    """Turn the loop into the consumers' loop, which reads the stages that the producer fills."""
    loop, body, out = pair.loop, pair.loop.regions[0], Emitter()
    loop.operands += [rings.zero, rings.zero]
    position = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
    for op in body.ops[:-1]:
        if op is pair.first.mma:
            started = rings.start_first(out, pair, op.operands[2], position)
            becomes(rings.finish(out, started, 0, position, 1), op.result)
        elif op is pair.second.mma:
            left = rings.pack(out, pair, op.operands[0])
            started = rings.start_second(out, pair, left, op.operands[2], position)
            becomes(rings.finish(out, started, 0, position, 2), op.result)
        else:
            out.ops.append(op)
    body.ops[-1].operands += tensor_staging.following(out, *position, rings.stages)
    body.ops = without_dead([*out.ops, body.ops[-1]])
    loop.results += [Value(TileType(i32), name, loop) for name in ("stage", "parity")]
    return [loop]


def _reading_loop(pair: BackToBack, rings: Rings) -> list[Op]:
    """Turn the loop into that of consumers whose threads load operands from the stages."""
    loop, body, out = pair.loop, pair.loop.regions[0], Emitter()
    for operand, buffer in zip((pair.invariant, *pair.streamed), rings.buffers, strict=True):
        operand.buffer = buffer
    pair.first.left = pair.invariant
    loop.operands += [rings.zero, rings.zero]
    position = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
    for op in body.ops[:-1]:
        products = [product for product in (pair.first, pair.second) if product.mma is op]
        for product in products:
            ring = rings.rings[1 if product is pair.first else 2]
            out.add(Wait(operands=[ring, *position]))
            out.ops += sliced(product, position[0], rings.zero if product is pair.first else None)
            tensor_staging.release_read(out, ring, position[0])
        if not products:
            out.ops.append(op)
    body.ops[-1].operands += tensor_staging.following(out, *position, rings.stages)
    body.ops = without_dead([*out.ops, body.ops[-1]])
    loop.results += [Value(TileType(i32), name, loop) for name in ("stage", "parity")]
    return [loop]
