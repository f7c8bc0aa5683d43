"""Pipelines a loop with TMA copies by one producer thread and MMAs by consumers from shared memory: `staging` for `tma`.

With s stages, a loop becomes two, one for each role (`roles`):

    ring of mbarriers; fence; barrier                         at the start of the kernel
    producer:   each iteration: acquire, copy, commit         up to s iterations ahead
    consumers:  each iteration: wait; start the MMA; wait for the previous MMA, and release its stage
                wait for the last MMA, and release its stage if blocks are persistent

That is for one MMA of a family that reads shared memory. Of a family that reads registers (`mma.sync`) there may be several,
and operands other than the copied ones are in registers:

    consumers:  each iteration: wait; per 16 of K: load both operands from the stage, multiply
                once all is loaded: barrier of the warp; release the stage

Both loops carry stage and parity; in persistent blocks these continue across tiles, so the copies for the next tile start while
this one is stored. Copied operands need no bounds checks: out-of-bounds elements arrive as zero, which equals the loads' pad
value, or are skipped if never observed (`bounds_fill`).
"""

from __future__ import annotations

from typing import Final

from tilec.atoms import tma
from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import For, If, Mma, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.pair_ops import PairRing
from tilec.ir.ops.staging_ops import SharedAlloc, SharedLoad, TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, ProxyFence, Release, Ring, SharedFree, Wait, WarpBarrier
from tilec.ir.types import RingType, SharedType, TileType, i32
from tilec.passes.schedule.pipelining.staged_loads import Operand, without_dead
from tilec.passes.schedule.pipelining.staged_products import (
    Converted,
    Emitter,
    Product,
    hoist_constant_operands,
    in_ring,
    sliced,
)
from tilec.passes.schedule.pipelining.warpgroups import guarded, multiply
from tilec.passes.schedule.specialization.persistent import tile_loop, tile_values
from tilec.target.families import Family
from tilec.target.schedule import PAIR

VECTOR: Final = 16
"""Alignment in bytes of a tensor's base and strides that its tensor map requires."""
POSITION_NAMES: Final = ("stage", "parity")
"""Names of the carried ring position."""
HEAD_BYTES: Final = tma.ALIGNMENT
"""Bytes before the first stage, which contain the ring's mbarriers."""


def problem(function: Function, loop: For, operands: list[Operand]) -> str | None:
    """Why TMA copies cannot load a loop's operands; None if they can."""
    tiles = tile_loop(function)
    if loop not in (function.body if tiles is None else tiles.regions[0]).ops:
        return "its loop stands in another loop, or in a branch"
    known = tile_values(function)
    inside = {result for op in loop.regions[0].ops for result in op.results} | set(loop.regions[0].arguments)
    for operand in operands:
        name, type_ = operand.load.source.name, operand.load.source.tensor
        found = tma.problem(type_, staged_type(operand, 1), operand.sub_tiles)
        if function.parameter_of(operand.load.source).access is not Access.IN:
            found = "only a tensor that is declared `In` has a map"
        if found is None and operand.halved and not operand.has_halves:
            found = "the blocks of a pair cannot copy equal parts of its rows"
        if found is None and operand.vector < VECTOR:
            found = f"rows or the base are known to be multiples of {operand.vector} bytes, not {VECTOR}"
        if found is not None:
            return f"`{name}`: {found}"
        for value in (*(v for op in operand.chain for v in op.operands), *operand.load.offsets, *loop.operands[:3]):
            if value not in inside | known:
                others = "" if tiles is not None or function.residents else " and elements of `In` tensors"
                return f"`{name}`: where it is read follows from more than launch values{others}"
            if value in operand.load.offsets and value.type != TileType(i32):
                return f"`{name}`: an index is no i32"
    return None


def staged_type(operand: Operand, stages: int) -> SharedType:
    """Type of the buffer that an operand's copies fill."""
    dtype = operand.load.source.tensor.dtype
    return SharedType(dtype, operand.shape, stages, tma.swizzle_atoms_of(operand.shape[1], dtype.bytes))


def pipeline(
    family: Family, function: Function, block: Block, loop: For, products: list[Product], operands: list[Operand],
    stages: int, known: Converted,
) -> None:  # fmt: skip
    """Replace the loop in `block`; the function's warps are the consumers. `known`: operands that were converted before."""
    setup, after, warps = Emitter(), Emitter(), function.num_warps
    ring = operand_ring(setup, operands, stages, warps)
    setup.add(ProxyFence())
    setup.add(Barrier())
    # Allocated at the start: the producer fills the ring early, so scratch used before the loop must not share its bytes.
    ops, tiles, before = function.body.ops, tile_loop(function), Emitter()
    zero = (before if tiles is None else setup).number(0)
    positions = (
        [zero] * 4 if tiles is None else [p for name in ("fill", "read") for p in carried_ring_position(tiles, zero, name)]
    )
    start = next((index + 1 for index, op in enumerate(ops) if isinstance(op, DependencyWait)), 0)
    ops[start:start] = setup.ops
    loop_index = block.ops.index(loop)
    if family.runs_ahead:
        condition = before.compare("lt", loop.lower, loop.upper)
        filled = producer_loop(loop, operands, ring, positions[:2])
        _consumer_loop(family, loop, products[0], ring, positions[2:], warps)
        # A block with one tile does not refill the last stage, and releasing it would make ptxas serialize all MMAs.
        consumer_loop = guarded(
            family, loop, products[0], condition, warps, after=None if tiles is None else lambda read: _release_last(read, ring)
        )
    else:
        filled = producer_loop(loop, operands, ring, positions[:2])
        hoist_constant_operands(before, loop, products, known)
        consumer_loop = _reading_loop(loop, products, ring, positions[2:])
    if tiles is None:
        after.add(SharedFree(operands=[operand.buffer for operand in operands if operand.buffer is not None]))
    else:
        tiles.regions[0].ops[-1].operands += [*filled.results, *consumer_loop.results[-2:]]
    block.ops[loop_index : loop_index + 1] = [*before.ops, filled, consumer_loop, *after.ops]


def operand_ring(out: Emitter, operands: list[Operand], stages: int, readers: int, *, pair: bool = False) -> Value:
    """The ring of all operands, which `readers` warps read, and the buffer of each. With `pair`, both blocks of one fill it."""
    made = PairRing(sync="mbarriers", readers=readers, producers=PAIR) if pair else Ring(sync="mbarriers", readers=readers)
    ring, offset = out.add(made, RingType(stages)), HEAD_BYTES
    for operand in operands:
        type_ = staged_type(operand, stages)
        operand.buffer = out.add(SharedAlloc(operands=[ring], offset=offset, alignment=tma.ALIGNMENT), type_)
        offset = tma.aligned(offset + type_.bytes)
    return ring


def carried_position(tiles: For, initial: Value, name: str) -> Value:
    """Add a value carried by the tile loop; the caller yields its next value."""
    tiles.operands.append(initial)
    tiles.results.append(Value(initial.type, name, tiles))
    return tiles.regions[0].add_argument(initial.tile, name)


def carried_ring_position(tiles: For, initial: Value, name: str) -> tuple[Value, Value]:
    """Add stage and parity, carried by the tile loop; the caller yields their next values."""
    stage, parity = (carried_position(tiles, initial, f"{name}_{part}") for part in POSITION_NAMES)
    return stage, parity


def producer_loop(loop: For, operands: list[Operand], ring: Value, position: list[Value], rank: Value | None = None) -> For:
    """The producer's loop, which issues the copies of each iteration; `position` is its initial stage and parity. `rank`: of
    the block in its pair, if operands are halved."""
    body, producer_body = loop.regions[0], Block()
    result = For(operands=[*loop.operands[:3], *position], regions=[producer_body], variable=loop.variable, loc=loop.loc)
    mapping = {body.arguments[0]: producer_body.add_argument(TileType(i32), body.arguments[0].name)}
    stage, parity = (producer_body.add_argument(TileType(i32), name) for name in POSITION_NAMES)
    out = Emitter()
    repeat_offsets(out, body, operands, mapping)
    expected = sum(tma.copied_bytes(operand.buffer.shared) for operand in operands if operand.buffer is not None)
    out.add(Acquire(operands=[ring, stage, parity], expected=expected))
    for operand in operands:
        assert operand.buffer is not None
        load = operand.load
        offsets = [mapping.get(value, value) for value in load.offsets]
        if operand.halved:
            assert rank is not None
            axis, distance = operand.own_part
            offsets[axis] = _own_part(out, offsets[axis], rank, distance)
        copied = [load.source, operand.buffer, stage, *offsets]
        out.add(
            TensorCopy(
                operands=copied,
                row_axis=operand.row_axis,
                sub_tiles=operand.sub_tiles,
                gap=operand.gap,
                unsafe=load.unsafe,
                loc=load.loc,
            )
        )
    out.add(Commit(operands=[ring]))
    out.add(Yield(operands=list(following(out, stage, parity, ring.ring.stages))))
    producer_body.ops = out.ops
    result.define(TileType(i32), TileType(i32), names=POSITION_NAMES)
    return result


def _own_part(out: Emitter, offset: Value, rank: Value, distance: int) -> Value:
    """Where the rows or sub-tiles begin that a block of a pair copies. If the sum wraps, all of them lie outside of the tensor,
    as they would if it did not: no tensor reaches to less than `distance` below 2^31."""
    moved = out.binary("add", offset, out.binary("mul", rank, out.number(distance)))
    moved.fits = True
    return moved


def repeat_offsets(out: Emitter, body: Block, operands: list[Operand], mapping: dict[Value, Value]) -> None:
    """Clone the offset computation of an iteration's copies into another loop; `mapping` maps values of `body` to those
    there."""
    needed = {op for operand in operands for op in operand.chain}
    out.ops += clone([op for op in body.ops if op in needed], mapping)


def _consumer_loop(
    family: Family, loop: For, product: Product, ring: Value, position: list[Value], warps: int
) -> None:  # fmt: skip
    """Turn the loop into the consumers' loop; `position` is its initial stage and parity."""
    body = loop.regions[0]
    loop.operands += position
    stage, parity = (body.add_argument(TileType(i32), name) for name in POSITION_NAMES)
    rewritten = Emitter()
    rewritten.add(Wait(operands=[ring, stage, parity]))
    for op in body.ops[:-1]:
        if op is product.mma:
            rewritten.ops += multiply(family, product, stage, [], warps)
            _release_before(rewritten, loop, ring, stage)
        else:
            rewritten.ops.append(op)
    body.ops[-1].operands += following(rewritten, stage, parity, ring.ring.stages)
    body.ops = without_dead([*rewritten.ops, body.ops[-1]])
    loop.results += [Value(TileType(i32), name, loop) for name in POSITION_NAMES]


def _reading_loop(loop: For, products: list[Product], ring: Value, position: list[Value]) -> For:
    """Turn the loop into that of consumers whose threads load operands from the stages; `position` is its initial stage and
    parity. The stage is released once the last operand is loaded, while products of it are still to come."""
    body, by_mma = loop.regions[0], {product.mma: product for product in products}
    loop.operands += position
    stage, parity = (body.add_argument(TileType(i32), name) for name in POSITION_NAMES)
    rewritten = Emitter()
    rewritten.add(Wait(operands=[ring, stage, parity]))
    for op in body.ops[:-1]:
        product = by_mma.get(op) if isinstance(op, Mma) else None
        rewritten.ops += [op] if product is None else sliced(product, stage)
    rewritten.ops = without_dead([*rewritten.ops, body.ops[-1]])[:-1]
    release_read(rewritten, ring, stage)
    body.ops[-1].operands += following(rewritten, stage, parity, ring.ring.stages)
    body.ops = [*rewritten.ops, body.ops[-1]]
    loop.results += [Value(TileType(i32), name, loop) for name in POSITION_NAMES]
    return loop


def release_read(out: Emitter, ring: Value, stage: Value) -> None:
    """Insert the release of a stage of `ring` after the last operation that loads from it."""
    last = max(i for i, op in enumerate(out.ops) if isinstance(op, SharedLoad) and op.is_of(ring))
    out.ops[last + 1 : last + 1] = [WarpBarrier(), Release(operands=[ring, stage])]


def _release_before(out: Emitter, loop: For, ring: Value, stage: Value) -> None:
    """Release the previous iteration's stage, whose MMA is complete, unless this is the first iteration."""
    then = Emitter()
    then.add(Release(operands=[ring, _preceding(then, stage, ring.ring.stages)], unreleased=1))
    then.add(Yield())
    later = out.compare("lt", loop.lower, loop.regions[0].arguments[0])
    out.add(If(operands=[later], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))


def _release_last(loop: For, ring: Value) -> list[Op]:
    """Release the last iteration's stage, whose MMA is complete."""
    out = Emitter()
    out.add(Release(operands=[ring, _preceding(out, loop.results[-2], ring.ring.stages)]))
    return out.ops


def _preceding(out: Emitter, stage: Value, stages: int) -> Value:
    """The stage of the previous iteration."""
    wrapped = out.compare("eq", stage, out.number(0))
    return out.select(wrapped, out.number(stages - 1), in_ring(out.binary("sub", stage, out.number(1))))


def following(out: Emitter, stage: Value, parity: Value, stages: int) -> tuple[Value, Value]:
    """Stage and parity of the next iteration."""
    wraps, one = out.compare("eq", stage, out.number(stages - 1)), out.number(1)
    flipped = out.select(wraps, in_ring(out.binary("sub", one, parity)), parity)
    return out.select(wraps, out.number(0), in_ring(out.binary("add", stage, one))), flipped


def copies(op: Op) -> bool:
    """Whether an operation is work of the thread that issues the copies."""
    return isinstance(op, TensorCopy | Commit) or (isinstance(op, Acquire) and (op.expected > 0 or len(op.operands) == 1))
