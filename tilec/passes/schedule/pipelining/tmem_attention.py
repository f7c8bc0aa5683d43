"""Pipelines a back-to-back GEMM loop (such as attention) whose products one thread starts into tensor memory: `staging` for
loops in which the second MMA's left operand is computed from the first MMA's result (Zadouri et al., FlashAttention-4, 2026).

In: a loop that `back_to_back` has found, whose second sums begin as a constant, and are only scaled by a factor for each row. A
*tile* is 128 rows, a row for each thread of four warps. With s stages of the first sums:

    multiplier:   the first s products 1 of each tile
                  each iteration: wait for operand A of each tile; start product 2
                                  wait for product 2; start product 1 of the iteration s later, into the same columns
    consumers:    each iteration: wait for the first sums; load them; compute operand A; store it over them
                                  wait for product 2 of the iteration before; scale its sums; signal that A is there
                  wait for the last product 2; load its sums

The producer fills the rings of all operands as for other families. The tensor core computes one tile's products while threads
compute on the other tile or, with two stages, on another stage. No product starts before those complete that use its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.atoms import tcgen05_rows
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Broadcast, Constant, For, If, Reshape, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.signal_ops import Await, Signal, SignalMma, Signals
from tilec.ir.ops.sync_ops import Barrier, ProxyFence, Wait
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemFill, TmemOperandMma, TmemScale, TmemStore, TmemTileMma
from tilec.ir.ops.tmem_ops import ReleaseMma, TmemAlloc, TmemFree, TmemReserve, allocated_columns
from tilec.ir.types import TMEM_COLUMNS, TMEM_LANES, RingType, TileType, TmemSpaceType, TmemType, boolean, f32, i32
from tilec.passes.schedule.pipelining import back_to_back_staging, kept_maximum, tensor_staging, tmem_staging
from tilec.passes.schedule.pipelining.back_to_back import BackToBack, RingPosition, Rings, becomes
from tilec.passes.schedule.pipelining.staged_loads import without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter, in_ring

MOST_SUM_STAGES: Final = 2
"""Stages of the first sums: threads compute on one while the tensor core computes the other."""
GROUP: Final = 4
"""Warps of a tile."""


def fits(pair: BackToBack, warps: int) -> bool:
    """Whether instructions compute both products with a row for each thread of `warps` warps, and the columns suffice."""
    first, second = pair.first.mma, pair.second.mma
    rows, columns = first.result.tile.shape
    depth, width = first.operands[0].tile.shape[1], second.result.tile.shape[1]
    left = second.operands[0].tile.dtype
    return (
        pair.first.transposed[1]
        and not pair.second.transposed[1]
        and second.result.tile.shape[0] == rows
        and tcgen05_rows.fits(rows, columns, warps)
        and tcgen05_rows.fits(rows, width, warps)
        and sum_stages(pair) > 0
        and all(extent * 2 % pair.family.row_bytes == 0 for extent in (depth, width))
        and left == second.operands[1].tile.dtype
        and left.bits == 16
        and first.result.tile.dtype == second.result.tile.dtype == f32
        and _constant(first.operands[2]) == 0
        and _constant(pair.loop.initial[pair.carried]) is not None
        and factor_of(pair) is not None
    )


def sum_stages(pair: BackToBack) -> int:
    """Stages of the first sums that fit tensor memory next to the second sums; 0 if none does."""
    rows, columns = pair.first.mma.result.tile.shape
    tiles, width = rows // TMEM_LANES, pair.second.mma.result.tile.shape[1]
    return min(MOST_SUM_STAGES, (TMEM_COLUMNS - tiles * width) // (tiles * columns))


def factor_of(pair: BackToBack) -> Value | None:
    """The factors, one for each row, by which an iteration multiplies the second sums before it adds to them; None if it does
    anything else with them."""
    _, dependent = pair.split()
    body, total = pair.loop.regions[0], pair.second.mma.operands[2].owner
    carried = body.arguments[1 + pair.carried]
    if dependent != [total] or not isinstance(total, Binary) or total.kind != "mul":
        return None
    others = [value for value in total.operands if value is not carried]
    if len(others) != 1 or not isinstance(others[0].owner, Broadcast):
        return None
    column = others[0].owner.operands[0]
    rows = column.tile.shape[0] if column.tile.rank else 0
    if column.tile.shape != (rows, 1) or not isinstance(column.owner, Reshape):
        return None
    factors = column.owner.operands[0]
    return factors if factors.type == TileType(f32, (rows,)) else None


def _constant(value: Value) -> float | None:
    """The value of all elements of a constant; None for any other value."""
    return value.owner.value if isinstance(value.owner, Constant) else None


@dataclass(eq=False, slots=True)
class _Chain:
    """What the roles share. `sums` and `results`: buffers in tensor memory of the first and second sums. Signals: `summed`, the
    first sums are complete; `stored`, operand A is there and the second sums are scaled; `added`, product 2 is complete."""

    pair: BackToBack
    rings: Rings
    sums: Value
    results: Value
    summed: Value
    stored: Value
    added: Value

    @property
    def tiles(self) -> range:
        return range(self.sums.tmem.row_tiles)

    @property
    def stages(self) -> int:
        return self.sums.tmem.stages


def pipeline(function: Function, block: Block, pair: BackToBack, stages: int) -> None:
    """Replace the loop in `block`; the function's warps are the consumers, a row for each of their threads."""
    setup, before, loop = Emitter(), Emitter(), pair.loop
    factors = factor_of(pair)
    assert factors is not None
    kept_maximum.keep(function, pair, factors)
    chain, space = _resources(setup, pair, stages, before.number(0))
    start = next((index + 1 for index, op in enumerate(block.ops) if isinstance(op, DependencyWait)), 0)
    block.ops[start:start] = setup.ops
    rings = chain.rings
    first, invariant = (rings.zero, rings.zero), pair.invariant
    has_iteration = before.compare("lt", loop.lower, loop.upper)
    back_to_back_staging.fill_stage(before, invariant, rings.rings[0], rings.buffers[0], first, invariant.load.offsets)
    filled = list(zip(pair.streamed, rings.rings[1:], rings.buffers[1:], strict=True))
    before.ops.append(back_to_back_staging.producer_loop(pair.loop, filled, (rings.zero, rings.zero)))
    products = Emitter()
    products.add(Wait(operands=[rings.rings[0], *first]))
    position = _first_products(products, chain)
    products.ops.append(_multiplier_loop(chain, position))
    products.add(Yield())
    otherwise: list[Op] = [Wait(operands=[rings.rings[0], *first]), Yield()]  # the copy ends before the block
    before.add(If(operands=[has_iteration], regions=[Block(ops=products.ops), Block(ops=otherwise)]))
    after = _consumers(chain, function.num_warps, has_iteration, before.number(1))
    index = block.ops.index(loop)
    block.ops[index : index + 1] = [*before.ops, loop, after]
    block.ops = without_dead(block.ops)
    function.body.ops.append(TmemFree(operands=[space]))


def _resources(out: Emitter, pair: BackToBack, stages: int, zero: Value) -> tuple[_Chain, Value]:
    """Rings, signals and buffers, and the space in tensor memory."""
    (rows, columns), width = pair.first.mma.result.tile.shape, pair.second.mma.result.tile.shape[1]
    sums, results = TmemType(f32, (rows, columns), sum_stages(pair)), TmemType(f32, (rows, width), 1)
    rings, offset = back_to_back_staging.operand_rings(out, pair, stages, 1, zero)
    signals: list[Value] = []
    for arrivals, count in ((1, sums.stages), (GROUP, sums.stages), (1, 1)):
        op = Signals(arrivals=arrivals, parts=sums.row_tiles, offset=offset)
        signals.append(out.add(op, RingType(count)))
        offset += op.bytes
    space_type = TmemSpaceType(allocated_columns(sums.columns + results.columns))
    space = out.add(TmemReserve(offset=tmem_staging.ADDRESS_OFFSET), space_type)
    out.add(ProxyFence())
    out.add(Barrier())
    buffers = (
        out.add(TmemAlloc(operands=[space, signals[0]]), sums),
        out.add(TmemAlloc(operands=[space, signals[2]], column=sums.columns), results),
    )
    return _Chain(pair, rings, *buffers, *signals), space


def _start(out: Emitter, mma: TileProduct, done: Value, stage: Value) -> None:
    """Start a product, and signal its completion."""
    out.add(mma)
    out.add(SignalMma(operands=[done, stage], part=mma.tile))


def _start_first(out: Emitter, chain: _Chain, tile: int, stage: Value, key_stage: Value) -> None:
    """Start product 1 of a tile into a stage of the first sums; `key_stage` has its right operand."""
    rings, pair = chain.rings, chain.pair
    fresh = out.add(Constant(value=False), TileType(boolean))
    operands = [rings.buffers[0], rings.zero, rings.buffers[1], key_stage, chain.sums, stage, fresh]
    mma = TmemTileMma(operands=operands, family=pair.family.name, tile=tile, loc=pair.first.mma.loc)
    _start(out, mma, chain.summed, stage)


def _first_products(out: Emitter, chain: _Chain) -> RingPosition:
    """The first products of the first iterations, one for each stage; the position after them in the ring of their operand."""
    loop, ring = chain.pair.loop, chain.rings.rings[1]
    depth = ring.ring.stages
    for ahead in range(chain.stages):
        then = Emitter() if ahead else out
        key_stage = then.number(ahead % depth)
        then.add(Wait(operands=[ring, key_stage, then.number(ahead // depth % 2)]))
        stage = then.number(ahead)
        for tile in chain.tiles:
            _start_first(then, chain, tile, stage, key_stage)
        then.add(ReleaseMma(operands=[ring, key_stage]))
        if ahead:
            then.add(Yield())
            condition = _is_ahead(out, loop, loop.lower, ahead)
            out.add(If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))
    return out.number(chain.stages % depth), out.number(chain.stages // depth % 2)


def _is_ahead(out: Emitter, loop: For, position: Value, ahead: int) -> Value:
    """Whether the loop has the iteration `ahead` steps after `position`; in i64, because their sum may leave i32 otherwise."""
    distance = out.binary("mul", out.widen(loop.step), out.number(ahead, wide=True))
    return out.compare("lt", out.binary("add", out.widen(position), distance), out.widen(loop.upper))


def _multiplier_loop(chain: _Chain, key_position: RingPosition) -> For:
    """The loop of the thread that starts the products; `key_position` is where it goes on in the first operand's ring."""
    loop, rings, body, out = chain.pair.loop, chain.rings, Block(), Emitter()
    zero = rings.zero
    initial = [*key_position, *[zero] * 5]
    result = For(operands=[*loop.operands[:3], *initial], regions=[body], variable=loop.variable, loc=loop.loc)
    variable = body.add_argument(TileType(i32), loop.regions[0].arguments[0].name)
    names = ("key_stage", "key_parity", "value_stage", "value_parity", "stage", "parity", "added")
    key_stage, key_parity, value_stage, value_parity, stage, parity, added = (
        body.add_argument(TileType(i32), name) for name in names
    )
    out.add(Wait(operands=[rings.rings[2], value_stage, value_parity]))
    accumulate = out.add(Constant(value=True), TileType(boolean))
    goes_on = _is_ahead(out, loop, variable, chain.stages)
    # With one stage a tile's next sums are started right after its product 2, so that the tiles alternate.
    each = [[tile] for tile in chain.tiles] if chain.stages == 1 else [list(chain.tiles)]
    for tiles in each:
        for tile in tiles:
            out.add(Await(operands=[chain.stored, stage, parity], part=tile))
            operands = [chain.sums, stage, rings.buffers[2], value_stage, chain.results, zero, accumulate]
            mma = TmemOperandMma(operands=operands, family=rings.family.name, tile=tile, loc=chain.pair.second.mma.loc)
            _start(out, mma, chain.added, zero)
        if tiles is each[-1]:
            out.add(ReleaseMma(operands=[rings.rings[2], value_stage]))
        then = Emitter()
        if tiles is each[0]:
            then.add(Wait(operands=[rings.rings[1], key_stage, key_parity]))
        for tile in tiles:
            then.add(Await(operands=[chain.added, zero, added], part=tile))
            _start_first(then, chain, tile, stage, key_stage)
        if tiles is each[-1]:
            then.add(ReleaseMma(operands=[rings.rings[1], key_stage]))
        then.add(Yield())
        out.add(If(operands=[goes_on], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))
    following = [
        *tensor_staging.following(out, key_stage, key_parity, rings.stages),
        *tensor_staging.following(out, value_stage, value_parity, rings.stages),
        *tensor_staging.following(out, stage, parity, chain.stages),
        _other(out, added),
    ]
    out.add(Yield(operands=following))
    body.ops = out.ops
    result.define(*[TileType(i32)] * len(names), names=names)
    return result


def _other(out: Emitter, parity: Value) -> Value:
    """The other parity."""
    return in_ring(out.binary("sub", out.number(1), parity))


def _consumers(chain: _Chain, warps: int, has_iteration: Value, one: Value) -> If:
    """Turn the loop into the consumers' loop; the operation after it, which makes the loop's second sums. `one`: the parity of
    the signal before the first one."""
    pair, loop, body, zero = chain.pair, chain.pair.loop, chain.pair.loop.regions[0], chain.rings.zero
    carried, factors = pair.carried, factor_of(pair)
    assert factors is not None
    independent, _ = pair.split()
    initial, result = loop.operands.pop(3 + carried), loop.results.pop(carried)
    last = body.ops[-1]
    names = ("stage", "parity", "added")
    loop.operands += [zero, zero, one]
    stage, parity, added = (body.add_argument(TileType(i32), name) for name in names)
    out = Emitter()
    for op in independent:
        if op is pair.first.mma:
            out.add(Await(operands=[chain.summed, stage, parity]))
            becomes(_loaded(out, chain.sums, stage, warps, op), op.result)
        else:
            out.ops.append(op)
    out.add(TmemStore(operands=[chain.sums, stage, pair.second.mma.operands[0]], loc=pair.second.mma.loc))
    out.add(_scaled(out, chain, initial, added, factors))
    out.add(Signal(operands=[chain.stored, stage]))
    del body.arguments[1 + carried], last.operands[carried]
    last.operands += [*tensor_staging.following(out, stage, parity, chain.stages), _other(out, added)]
    body.ops = without_dead([*out.ops, last])
    loop.results += [Value(TileType(i32), name, loop) for name in names]
    return _taken(chain, warps, has_iteration, initial, result)


def _loaded(out: Emitter, buffer: Value, stage: Value, warps: int, product: Op) -> Value:
    return tmem_staging.loaded(out, buffer, stage, tcgen05_rows.layout(buffer.tmem.shape[1], warps), product)


def _scaled(out: Emitter, chain: _Chain, initial: Value, added: Value, factors: Value) -> If:
    """Scale the second sums: those of product 2 of the iteration before, or the initial ones, the same in all columns."""
    loop, then, otherwise, zero = chain.pair.loop, Emitter(), Emitter(), chain.rings.zero
    later = out.compare("lt", loop.lower, loop.regions[0].arguments[0])
    then.add(Await(operands=[chain.added, zero, added]))
    then.add(TmemScale(operands=[chain.results, zero, factors], loc=chain.pair.second.mma.loc))
    then.add(Yield())
    assert isinstance(initial.owner, Constant)
    column = otherwise.add(Constant(value=initial.owner.value), factors.tile)
    scaled = otherwise.binary("mul", column, factors)
    otherwise.add(TmemFill(operands=[chain.results, zero, scaled], loc=chain.pair.second.mma.loc))
    otherwise.add(Yield())
    return If(operands=[later], regions=[Block(ops=then.ops), Block(ops=otherwise.ops)])


def _taken(chain: _Chain, warps: int, has_iteration: Value, initial: Value, result: Value) -> If:
    """The second sums in registers; the initial ones if the loop has no iteration."""
    then, zero = Emitter(), chain.rings.zero
    then.add(Await(operands=[chain.added, zero, chain.pair.loop.results[-1]]))
    loaded = _loaded(then, chain.results, zero, warps, chain.pair.second.mma)
    return tmem_staging.in_place_of(result, has_iteration, then, loaded, initial)
