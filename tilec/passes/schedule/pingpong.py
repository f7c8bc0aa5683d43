"""Consumers that take a block's tiles in turns: while one multiplies, the other stores the tile before.

In: a function whose blocks take tile after tile, of one pipeline by `tma`, staged for the warps of one consumer. Out of
`take_turns`: the same, in which each tile's multiplication stands between the consumer's turn and the next one's, and what is
carried from tile to tile goes past the stages of the tiles that others take:

    for turn in range(turns):
        take turn; wait for stages and multiply; pass turn; wait for the last product, release
        (stage, parity) behind those of takers - 1 other tiles

Out of `consumers`, once there are roles: for each of n consumers the same over `range(place, turns, n)`, from where the tiles
before leave the ring, with scratch of its own. The producer goes through all tiles as ever. Which stages a tile has follows
from its number alone, so that nobody need be told: each tile takes as many as the one before. The turn behind a consumer's last
may be past i32; it is compared alone, and lowered without a sign for that.
"""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import BinaryInRange, Constant, For, If, Yield
from tilec.ir.ops_staging import SharedAlloc, WaitMma
from tilec.ir.ops_sync import PassTurn, Ring, TakeTurn, Wait
from tilec.ir.shared_plan import scratch_offset
from tilec.ir.types import ScratchType, TileType, i32
from tilec.passes.schedule.persistent import tile_loop
from tilec.passes.schedule.staged_products import Emitter, in_ring
from tilec.passes.schedule.wait_prior import launch_values


def problem(function: Function, loop: For) -> str | None:
    """Why consumers cannot take the tiles of a loop in turns; None where they can. `function` is wrapped (`persistent`)."""
    bounds = [value.owner.value if isinstance(value.owner, Constant) else None for value in (loop.lower, loop.step)]
    if bounds != [0, 1]:
        return "its loop does not begin at 0 in steps of 1"
    if loop.upper not in launch_values(function):
        return "the turns of its loop follow from the tile"
    shared = [p.name for p in function.parameters if p.access not in (None, Access.IN, Access.OUT)]
    shared += [str(op.operands[0].name) for op in function.body.walk() if op.attributes().get("unsafe") is not None]
    return f"`{shared[0]}` is not written once alone, and nothing orders two consumers there" if shared else None


def take_turns(function: Function, takers: int) -> Function:
    """Let one of `takers` multiply, in place."""
    tiles = tile_loop(function)
    assert tiles is not None
    ring = next(op for op in function.body.ops if isinstance(op, Ring))
    body = tiles.regions[0]
    branch = next(op for op in body.ops if isinstance(op, If) and _reads(op))
    then = branch.regions[0]
    loop = next(op for op in then.ops if isinstance(op, For) and _reads(op))
    ring.takers = takers
    before = Emitter()
    zero, rounds = before.number(0), 2 * ring.result.ring.stages
    each = _in_range(before, "mod", loop.upper, rounds)
    last = before.binary("sub", loop.upper, before.number(1))
    last.fits = True  # it is asked for in the loop alone, which begins at 0
    place = function.body.ops.index(tiles)
    function.body.ops[place:place] = before.ops
    tiles.operands.append(zero)
    tiles.results.append(Value(TileType(i32), "turn_parity", tiles))
    parity = body.add_argument(TileType(i32), "turn_parity")
    place = then.ops.index(loop)
    then.ops.insert(place, TakeTurn(operands=[ring.result, parity]))
    _pass_last(loop, ring.result, last)
    behind, given = Emitter(), body.ops[-1]
    stage_parity = given.operands[-2], given.operands[-1]
    for _ in range(takers - 1):
        stage_parity = _past(behind, *stage_parity, each, ring.result.ring.stages)
    given.operands[-2:] = [*stage_parity, in_ring(behind.binary("sub", behind.number(1), parity))]
    body.ops[-1:] = [*behind.ops, given]
    return function


def _pass_last(loop: For, ring: Value, last: Value) -> None:
    """Pass the turn on in the last iteration, as soon as its product is started: behind the loop ptxas would run all products
    one by one."""
    body = loop.regions[0]
    wait = next(op for op in body.ops if isinstance(op, WaitMma))
    out = Emitter()
    condition = out.compare("eq", body.arguments[0], last)
    then = Block(ops=[PassTurn(operands=[ring]), Yield()])
    out.add(If(operands=[condition], regions=[then, Block(ops=[Yield()])]))
    place = body.ops.index(wait) + 1
    body.ops[place:place] = out.ops


def consumers(reading: Block, takers: int) -> list[Block]:
    """What each of the consumers does, given what one does that takes all tiles."""
    made = [reading, *(Block(ops=clone(reading.ops, {})) for _ in range(takers - 1))]
    bytes_ = scratch_bytes(reading)
    for place, block in enumerate(made):
        _take_own(block, place, takers)
        for op in block.walk():
            if isinstance(op, SharedAlloc) and isinstance(op.result.type, ScratchType):
                op.offset += place * bytes_
            if isinstance(op, TakeTurn | PassTurn):
                op.place = place
    return made


def scratch_bytes(reading: Block) -> int:
    """From the scratch of one consumer to that of the next."""
    scratch = [op for op in reading.walk() if isinstance(op, SharedAlloc) and isinstance(op.result.type, ScratchType)]
    first = min((op.offset for op in scratch), default=0)
    size = scratch_offset(max((op.offset + op.bytes for op in scratch), default=0) - first)
    alignment = max((op.alignment for op in scratch), default=1)
    return -(-size // alignment) * alignment


def _take_own(block: Block, place: int, takers: int) -> None:
    """Every tile of so many, from that of a number on."""
    loop = next(op for op in block.ops if isinstance(op, For))
    (ring,) = {op.ring for op in loop.regions[0].walk() if isinstance(op, TakeTurn)}
    *_, stage, parity, _ = loop.initial
    before = Emitter()
    if place:
        iterations = next(op for op in loop.regions[0].walk() if isinstance(op, For) and _reads(op)).upper
        each = _in_range(before, "mod", iterations, 2 * ring.ring.stages)
        for _ in range(place):
            stage, parity = _past(before, stage, parity, each, ring.ring.stages)
    loop.operands[0], loop.operands[2] = before.number(place), before.number(takers)
    loop.operands[-3:-1] = [stage, parity]
    position = block.ops.index(loop)
    block.ops[position:position] = before.ops


def _past(out: Emitter, stage: Value, parity: Value, steps: Value, stages: int) -> tuple[Value, Value]:
    """Stage and parity so many iterations later, fewer than two rounds."""
    place = in_ring(out.binary("add", stage, in_ring(out.binary("mul", parity, out.number(stages)))))
    place = in_ring(out.binary("add", place, steps))
    place = _in_range(out, "mod", place, 2 * stages)
    return _in_range(out, "mod", place, stages), _in_range(out, "floordiv", place, stages)


def _in_range(out: Emitter, kind: str, value: Value, divisor: int) -> Value:
    return out.add(BinaryInRange(kind=kind, operands=[value, out.number(divisor)]), TileType(i32))


def _reads(op: Op) -> bool:
    return any(isinstance(one, Wait) for region in op.regions for one in region.walk())
