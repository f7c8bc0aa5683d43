"""Pingpong: consumer warpgroups process a persistent block's tiles round-robin, so one runs its MMAs while another stores.

In: a persistent kernel with one TMA pipeline, staged for one consumer. `order_consumers` puts each tile's MMAs between
`order_wait` and `order_arrive` (an order barrier), and advances the carried (stage, parity) past the stages of the other
consumers' tiles:

    for turn in range(turns):
        order_wait; wait for stages and multiply; order_arrive; wait for the last MMA, release
        (stage, parity) advanced past the stages of consumer_roles - 1 tiles

MMAs from registers (`mma.sync`) are not in flight after their loop, so `order_arrive` follows it.

`consumers` runs after the roles are known: consumer i of n gets a copy of the loop over `range(i, turns, n)`, which
starts at its first tile's ring position and has its own scratch. The producer still processes all tiles. All tiles use the same
number of stages, so the tile's number alone determines its stages, and consumers share no ring position. The loop variable
one step after a consumer's last iteration may exceed i32; it is only compared, and lowering compares it as unsigned.
"""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.layouts.shared_plan import scratch_offset
from tilec.ir.ops import BinaryInRange, Constant, For, If, Yield, prints
from tilec.ir.ops.staging_ops import SharedAlloc, WaitMma
from tilec.ir.ops.sync_ops import OrderArrive, OrderWait, Ring, Wait
from tilec.ir.types import ScratchType, TileType, i32
from tilec.passes.schedule.launch_overlap.dependency_wait import launch_values
from tilec.passes.schedule.pipelining.staged_products import Emitter, in_ring
from tilec.passes.schedule.specialization.persistent import tile_loop


def problem(function: Function, loop: For) -> str | None:
    """Why consumers cannot process a loop's tiles round-robin; None if they can. `persistent.wrap` has run on `function`."""
    bounds = [value.owner.value if isinstance(value.owner, Constant) else None for value in (loop.lower, loop.step)]
    if bounds != [0, 1]:
        return "its loop does not begin at 0 in steps of 1"
    if loop.upper not in launch_values(function):
        return "the iterations of its loop depend on the tile"
    if prints(function):
        return "it prints, and nothing orders the lines of two consumers"
    shared = [p.name for p in function.parameters if p.access not in (None, Access.IN, Access.OUT)]
    shared += [str(op.operands[0].name) for op in function.body.walk() if op.attributes().get("unsafe") is not None]
    return f"`{shared[0]}` is not written once alone, and nothing orders two consumers there" if shared else None


def order_consumers(function: Function, consumer_roles: int) -> Function:
    """Add the order barrier of `consumer_roles` consumers, in place; the function stays that of one consumer."""
    tiles = tile_loop(function)
    assert tiles is not None
    ring = next(op for op in function.body.ops if isinstance(op, Ring))
    body = tiles.regions[0]
    outer = next(op for op in body.ops if isinstance(op, If | For) and _waits(op))
    then = outer.regions[0] if isinstance(outer, If) else body
    loop = next(op for op in then.ops if isinstance(op, For) and _waits(op))
    ring.consumer_roles = consumer_roles
    before = Emitter()
    zero, rounds = before.number(0), 2 * ring.result.ring.stages
    iterations_modulo = _in_range(before, "mod", loop.upper, rounds)
    last = before.binary("sub", loop.upper, before.number(1)) if isinstance(outer, If) else None
    index = function.body.ops.index(tiles)
    function.body.ops[index:index] = before.ops
    tiles.operands.append(zero)
    tiles.results.append(Value(TileType(i32), "turn_parity", tiles))
    parity = body.add_argument(TileType(i32), "turn_parity")
    index = then.ops.index(loop)
    then.ops.insert(index, OrderWait(operands=[ring.result, parity]))
    if last is not None:
        last.fits = True  # it is used only inside the loop, which runs from 0, so the upper bound is at least 1 there
        _insert_order_arrive(loop, ring.result, last)
    else:
        then.ops.insert(index + 2, OrderArrive(operands=[ring.result]))
    at_end, yield_op = Emitter(), body.ops[-1]
    stage_parity = yield_op.operands[-2], yield_op.operands[-1]
    for _ in range(consumer_roles - 1):
        stage_parity = _advanced(at_end, *stage_parity, iterations_modulo, ring.result.ring.stages)
    yield_op.operands[-2:] = [*stage_parity, in_ring(at_end.binary("sub", at_end.number(1), parity))]
    body.ops[-1:] = [*at_end.ops, yield_op]
    return function


def _insert_order_arrive(loop: For, ring: Value, last: Value) -> None:
    """Insert `order_arrive` in the last iteration, right after its MMA is issued: after the loop, it would make ptxas serialize
    all MMAs."""
    body = loop.regions[0]
    wait = next(op for op in body.ops if isinstance(op, WaitMma))
    out = Emitter()
    condition = out.compare("eq", body.arguments[0], last)
    then = Block(ops=[OrderArrive(operands=[ring]), Yield()])
    out.add(If(operands=[condition], regions=[then, Block(ops=[Yield()])]))
    index = body.ops.index(wait) + 1
    body.ops[index:index] = out.ops


def consumers(consumer_block: Block, consumer_roles: int) -> list[Block]:
    """The region of each consumer, made from that of a single consumer of all tiles."""
    blocks = [consumer_block, *(Block(ops=clone(consumer_block.ops, {})) for _ in range(consumer_roles - 1))]
    bytes_ = scratch_bytes(consumer_block)
    for number, block in enumerate(blocks):
        _restrict_to_share(block, number, consumer_roles)
        for op in block.walk():
            if isinstance(op, SharedAlloc) and isinstance(op.result.type, ScratchType):
                op.offset += number * bytes_
            if isinstance(op, OrderWait | OrderArrive):
                op.consumer = number
    return blocks


def scratch_bytes(consumer_block: Block) -> int:
    """Distance in bytes from one consumer's scratch to the next one's."""
    scratch = [op for op in consumer_block.walk() if isinstance(op, SharedAlloc) and isinstance(op.result.type, ScratchType)]
    first = min((op.offset for op in scratch), default=0)
    size = scratch_offset(max((op.offset + op.bytes for op in scratch), default=0) - first)
    alignment = max((op.alignment for op in scratch), default=1)
    return -(-size // alignment) * alignment


def _restrict_to_share(block: Block, number: int, consumer_roles: int) -> None:
    """Restrict the tile loop to iterations `number`, `number + consumer_roles`, ..."""
    loop = next(op for op in block.ops if isinstance(op, For))
    (ring,) = {op.ring for op in loop.regions[0].walk() if isinstance(op, OrderWait)}
    *_, stage, parity, _ = loop.initial
    before = Emitter()
    if number:
        iterations = next(op for op in loop.regions[0].walk() if isinstance(op, For) and _waits(op)).upper
        iterations_modulo = _in_range(before, "mod", iterations, 2 * ring.ring.stages)
        for _ in range(number):
            stage, parity = _advanced(before, stage, parity, iterations_modulo, ring.ring.stages)
    loop.operands[0], loop.operands[2] = before.number(number), before.number(consumer_roles)
    loop.operands[-3:-1] = [stage, parity]
    index = block.ops.index(loop)
    block.ops[index:index] = before.ops


def _advanced(out: Emitter, stage: Value, parity: Value, steps: Value, stages: int) -> tuple[Value, Value]:
    """Stage and parity `steps` iterations later; `steps` is less than `2 * stages`."""
    position = in_ring(out.binary("add", stage, in_ring(out.binary("mul", parity, out.number(stages)))))
    position = in_ring(out.binary("add", position, steps))
    position = _in_range(out, "mod", position, 2 * stages)
    return _in_range(out, "mod", position, stages), _in_range(out, "floordiv", position, stages)


def _in_range(out: Emitter, kind: str, value: Value, divisor: int) -> Value:
    return out.add(BinaryInRange(kind=kind, operands=[value, out.number(divisor)]), TileType(i32))


def _waits(op: Op) -> bool:
    return any(isinstance(inner, Wait) for region in op.regions for inner in region.walk())
