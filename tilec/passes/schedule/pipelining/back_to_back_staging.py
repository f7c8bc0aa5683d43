"""Pipelines a back-to-back GEMM loop (such as attention) with TMA: `staging` for loops in which the second MMA's left operand
is computed from the first MMA's result.

With s stages, such a loop becomes two, one for each role (`roles`):

    rings of mbarriers; fence; barrier                                        at the start of the kernel
    producer:   acquire, copy, commit the first MMA's left operand            once
                each iteration: acquire, copy, commit both right operands     up to s iterations ahead
    consumers:  wait for the first MMA's left operand
                each iteration, for each of the two MMAs:
                    wait; start the MMA; wait for it, and release its stage

Each right operand has its own ring, so the first MMA may start before the second's operand arrives. Within a warpgroup, other
computation of an iteration does not overlap its MMAs; it may overlap those of another warpgroup of the block. If the register
budget allows, `overlapped_products` adds intra-warpgroup overlap to the consumer loop.
"""

from __future__ import annotations

from tilec.atoms import tma
from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import For, Yield
from tilec.ir.ops.launch_ops import WaitPrior
from tilec.ir.ops.staging_ops import SharedAlloc, TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, ProxyFence, Ring, SharedFree, Wait
from tilec.ir.types import RingType, TileType, i32
from tilec.passes.schedule.pipelining import overlapped_products, tensor_staging
from tilec.passes.schedule.pipelining.back_to_back import Chain, Place, Rings, becomes
from tilec.passes.schedule.pipelining.staged_loads import Operand, without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter


def pipeline(block: Block, chain: Chain, stages: int, warps: int, registers: int) -> None:
    """Replace the loop in `block`; `warps` consumer warps run the MMAs, with `registers` per thread."""
    setup, before = Emitter(), Emitter()
    rings = _rings(setup, chain, stages, warps, before.number(0))
    # Allocated at the start: the producer fills the rings early, so scratch used before the loop must not share their bytes.
    start = next((place + 1 for place, op in enumerate(block.ops) if isinstance(op, WaitPrior)), 0)
    block.ops[start:start] = setup.ops
    first = (rings.zero, rings.zero)
    _fill(before, chain.held, rings.rings[0], rings.buffers[0], first, chain.held.load.offsets)
    before.ops.append(_filling(chain, rings))
    before.add(Wait(operands=[rings.rings[0], *first]))
    position = block.ops.index(chain.loop)
    reading = overlapped_products.delay if overlapped_products.fits(chain, warps, registers) else _read
    block.ops[position : position + 1] = [*before.ops, *reading(chain, rings), SharedFree(operands=rings.buffers)]
    block.ops = without_dead(block.ops)


def _rings(out: Emitter, chain: Chain, stages: int, warps: int, zero: Value) -> Rings:
    found = Rings([], [], zero, warps)
    offset, end = 0, tensor_staging.HEAD_BYTES
    for operand, count in ((chain.held, 1), *((one, stages) for one in chain.streamed)):
        ring, type_ = Ring(sync="mbarriers", readers=warps, offset=offset), tensor_staging.staged_type(operand, count)
        found.rings.append(out.add(ring, RingType(count)))
        alloc = SharedAlloc(operands=[found.rings[-1]], offset=end, alignment=tma.ALIGNMENT)
        found.buffers.append(out.add(alloc, type_))
        offset, end = offset + ring.bytes, end + type_.bytes
    out.add(ProxyFence())
    out.add(Barrier())
    return found


def _fill(out: Emitter, operand: Operand, ring: Value, buffer: Value, place: Place, offsets: list[Value]) -> None:
    """Fill one stage, in the producer thread."""
    out.add(Acquire(operands=[ring, *place], expected=tma.copied_bytes(buffer.shared)))
    load = operand.load
    copied = [load.source, buffer, place[0], *offsets]
    out.add(TensorCopy(operands=copied, row_axis=operand.row_axis, slabs=operand.slabs, unsafe=load.unsafe, loc=load.loc))
    out.add(Commit(operands=[ring]))


def _filling(chain: Chain, rings: Rings) -> For:
    """The producer's loop, which issues the copies of each iteration."""
    loop, body, filled, out = chain.loop, chain.loop.regions[0], Block(), Emitter()
    filling = For(operands=[*loop.operands[:3], rings.zero, rings.zero], regions=[filled], variable=loop.variable, loc=loop.loc)
    mapping = {body.arguments[0]: filled.add_argument(TileType(i32), body.arguments[0].name)}
    place = filled.add_argument(TileType(i32), "stage"), filled.add_argument(TileType(i32), "parity")
    tensor_staging.repeat_offsets(out, body, list(chain.streamed), mapping)
    for operand, ring, buffer in zip(chain.streamed, rings.rings[1:], rings.buffers[1:], strict=True):
        _fill(out, operand, ring, buffer, place, [mapping.get(value, value) for value in operand.load.offsets])
    out.add(Yield(operands=list(tensor_staging.following(out, *place, rings.stages))))
    filled.ops = out.ops
    filling.define(TileType(i32), TileType(i32), names=("stage", "parity"))
    return filling


def _read(chain: Chain, rings: Rings) -> list[Op]:
    """Turn the loop into the consumers' loop, which reads the stages that the producer fills."""
    loop, body, out = chain.loop, chain.loop.regions[0], Emitter()
    loop.operands += [rings.zero, rings.zero]
    place = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
    for op in body.ops[:-1]:
        if op is chain.first.mma:
            started = rings.start_first(out, chain, op.operands[2], place)
            becomes(rings.finish(out, started, 0, place, 1), op.result)
        elif op is chain.second.mma:
            left = rings.pack(out, chain, op.operands[0])
            started = rings.start_second(out, chain, left, op.operands[2], place)
            becomes(rings.finish(out, started, 0, place, 2), op.result)
        else:
            out.ops.append(op)
    body.ops[-1].operands += tensor_staging.following(out, *place, rings.stages)
    body.ops = without_dead([*out.ops, body.ops[-1]])
    loop.results += [Value(TileType(i32), name, loop) for name in ("stage", "parity")]
    return [loop]
