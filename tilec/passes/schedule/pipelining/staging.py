"""Multistage software pipelining of loops whose loads feed `mma`: asynchronous copies into shared memory overlap the MMAs.

A loop qualifies if the operands of an `mma` are loads of the same iteration (perhaps reshaped to two axes or transposed),
aligned to 4 bytes or more, whose offsets depend on no other loop-carried value than the loop variable. One of the two operands
may be a register tile instead, such as the result of a preceding `mma`. With `s` stages the loop becomes

    each of iterations 0 .. s-2: acquire, start the copies, commit           no copies past the end
    for each iteration:
        wait for its copies; barrier
        acquire, start the copies of iteration + s-1, commit                  into the stage released last
        per instruction along K: load both operands from this stage, multiply; release
    drain; barrier; free                                                      the bytes may be reused

Each iteration's MMA is split along K, so at most two slices of the operands, each 32 bytes deep, are in registers at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from tilec.atoms import mma_sync
from tilec.atoms.mma_sync import WarpGrid
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Cast, Constant, For, If, Load, Mma, Reshape, Yield
from tilec.ir.ops.staging_ops import AsyncCopy, SharedAlloc
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, Drain, ProxyFence, Release, Ring, SharedFree, Wait
from tilec.ir.types import DType, RingType, SharedType, TileType, i32
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.ranges import Range
from tilec.passes.schedule.layouts.propagation import carried_loads
from tilec.passes.schedule.pipelining import (
    back_to_back_staging,
    direct_products,
    fused_staging,
    product_chains,
    tensor_staging,
    tmem_attention,
    tmem_staging,
)
from tilec.passes.schedule.pipelining.fused_products import FusedProducts
from tilec.passes.schedule.pipelining.product_chains import Chain
from tilec.passes.schedule.pipelining.staged_loads import (
    Operand,
    invariant_operand,
    is_written,
    staged_operand,
    users_of,
    without_dead,
    without_units,
)
from tilec.passes.schedule.pipelining.staged_products import (
    Converted,
    Emitter,
    Product,
    hoist_constant_operands,
    in_ring,
    relayout,
    sliced,
    unstaged_bytes,
)
from tilec.passes.schedule.pipelining.warpgroups import MAX_ACCUMULATORS, MAX_REALLOCATED_ACCUMULATORS, guarded, multiply, suits
from tilec.target.families import FAMILIES, MMA_SYNC, TMA, Family
from tilec.target.schedule import Pipeline, Schedule


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A loop that can be pipelined: its MMAs, and their operands that are copied through shared memory. Bytes of shared memory:
    `used_bytes` by the loops inside it, `unstaged_bytes` for the layout conversion of a register operand, `stage_bytes` for one
    stage. `families`: those that can compute its MMA, the preferred one first. `chains`: the back-to-back GEMM that it is,
    for each family that can compute it."""

    loop: For
    products: list[Product]
    operands: list[Operand]
    used_bytes: int
    unstaged_bytes: int
    stage_bytes: int
    families: tuple[Family, ...]
    chains: tuple[Chain, ...] = ()

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Those of all operands of its MMAs."""
        return tuple(dict.fromkeys(dtype for product in self.products for dtype in product.dtypes))

    def is_fed(self, family: Family, copy: str) -> bool:
        """Whether copies of that kind put rows where the family reads them: threads do not divide rows into sub-tiles."""
        rows = (operand.shape[1] * operand.load.result.tile.dtype.bytes for operand in self.operands)
        return copy == TMA or not family.runs_ahead or all(row <= family.row_bytes for row in rows)

    def chain(self, family: Family) -> Chain | None:
        """The back-to-back GEMM, or else the fused products, that the loop is for a family; None if it is neither."""
        return next((chain for chain in self.chains if chain.family is family), None)


Decide = Callable[[Candidate], Pipeline]


def stage(function: Function, schedule: Schedule) -> Function:
    """Pipeline the loops of `function` as the schedule says, in place; `num_warps` is set. Kernels without `mma` stay
    unchanged. VerifyError if the schedule's pipelines do not match the loops."""
    pipelines = iter(schedule.pipelines)

    def decide(_: Candidate) -> Pipeline:
        found = next(pipelines, None)
        if found is None:
            raise VerifyError(f"{function.name}: the schedule has too few pipelines")
        return found

    stage_by(function, decide, schedule)
    if next(pipelines, None) is not None:
        raise VerifyError(f"{function.name}: the schedule has more pipelines than there are loops that feed products")
    return function


def stage_by(function: Function, decide: Decide, schedule: Schedule) -> Function:
    """Pipeline every loop that qualifies, in place, inner loops first, as `decide` says of each; `schedule` gives the registers
    per consumer thread.

    Layouts are set on the operands and results of each pipelined `mma`; the layout pass keeps them, and `conversions` converts
    for operations that need another layout.
    """
    if not any(isinstance(op, Mma) for op in function.body.walk()):
        return function
    warps, registers = function.num_warps, schedule.tile_registers
    max_accumulators = (
        MAX_REALLOCATED_ACCUMULATORS if len(schedule.roles) > 1 and schedule.roles[0].registers else MAX_ACCUMULATORS
    )
    facts = aligned_ranges(function)
    by_rows = _is_back_to_back(function) or _splits_columns(function)
    for block in _blocks(function.body):
        known: Converted = {}
        for loop in [op for op in block.ops if isinstance(op, For)]:
            products = _find_products(function, loop, facts, warps, by_rows)
            for product in products:
                if product.right is not None:
                    product.right.halved = function.cluster > 1
            if products:
                candidate = _candidate(loop, products, warps, max_accumulators)
                invariant = invariant_operand(function, products[0].mma.operands[0], users_of(function.body), facts)
                copied = [*candidate.operands, *([invariant] if invariant is not None else [])]
                if any(
                    is_written(function, operand.load.source) for operand in copied
                ):  # only `cp.async` may copy a written tensor
                    candidate = dataclasses.replace(candidate, families=(MMA_SYNC,))
                else:
                    chains = product_chains.find(function, loop, warps, products, invariant, facts, max_accumulators)
                    candidate = dataclasses.replace(candidate, chains=chains)
                _pipeline(function, block, candidate, known, decide, registers)
    carried = carried_loads(function)
    for block in _blocks(function.body):
        _assign_other_layouts(block, warps, by_rows, carried)
    return function


def _is_back_to_back(function: Function) -> bool:
    """Whether some MMA's left operand is computed from another MMA. Warps then divide only the rows, so that each row of the
    result stays in the warp that needs it."""
    dependent: set[Value] = set()
    for op in function.body.walk():
        if isinstance(op, Mma):
            if op.operands[0] in dependent:
                return True
            dependent.add(op.result)
        elif not isinstance(op, For):
            used_values = (value for inner in Block(ops=[op]).walk() for value in inner.operands)  # in branches too
            dependent.update(op.results if not dependent.isdisjoint(used_values) else ())
    return False


def _splits_columns(function: Function) -> bool:
    """Whether a reshape splits the columns of some MMA's result. Warps then divide only the rows, so that one warp has all of a
    row's parts."""
    dependent: set[Value] = set()
    for _ in range(2):  # the second pass sees values that loops carry
        for op in function.body.walk():
            used_values = (value for inner in Block(ops=[op]).walk() for value in inner.operands)
            if isinstance(op, Mma) or not dependent.isdisjoint(used_values):
                dependent.update(op.results)
    reshapes = (op for op in function.body.walk() if isinstance(op, Reshape) and op.operands[0] in dependent)
    return any(op.operands[0].tile.rank == 2 and without_units(op.result) != without_units(op.operands[0]) for op in reshapes)


def _grid_of(op: Mma, warps: int, by_rows: bool) -> WarpGrid | None:
    rows, columns = op.result.tile.shape
    depth = op.operands[0].tile.shape[1]
    dtype = op.operands[0].tile.dtype
    if depth % mma_sync.depth_of(dtype):
        return None
    if by_rows and mma_sync.fits(rows, columns, depth, WarpGrid(warps, 1), dtype):
        return WarpGrid(warps, 1)
    return mma_sync.choose_warps(rows, columns, warps)


def _assign_other_layouts(block: Block, warps: int, by_rows: bool, carried: direct_products.Carried) -> None:
    """Convert the operands of every `mma` outside of pipelines to the instruction's layouts. E0506 if its shape does not
    fit."""
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, Mma) and op.result.layout is None and op.result.tile.rank == 3:
            ops += direct_products.assign_layouts(op, warps, carried)
        elif isinstance(op, Mma) and op.result.layout is None:
            grid = _grid_of(op, warps, by_rows)
            if grid is None:
                shape = (*op.result.tile.shape, op.operands[0].tile.shape[1])
                step = mma_sync.depth_of(op.operands[0].tile.dtype)
                made = f"tensor cores multiply 16 x 8 x {step} of {op.operands[0].tile.dtype}"
                message = f"no product of shape {shape} on {warps} warps: {made}"
                hint = f"choose a tile of multiples of 16, with a depth that is a multiple of {step}"
                raise CompileError(Diagnostic("E0506", message, Label(op.loc) if op.loc else None, hint=hint))
            rows, columns, depth = *op.result.tile.shape, op.operands[0].tile.shape[1]
            out = Emitter()
            a, b = (operand.tile.dtype for operand in op.operands[:2])
            layouts = mma_sync.operand_a(rows, depth, grid, a), mma_sync.operand_b(depth, columns, grid, b)
            operands = [relayout(out, value, layout) for value, layout in zip(op.operands[:2], layouts, strict=True)]
            op.result.layout = mma_sync.accumulator(rows, columns, grid)
            op.operands = [*operands, relayout(out, op.operands[2], op.result.layout)]
            ops += out.ops
        ops.append(op)
    block.ops = ops


def _blocks(block: Block) -> list[Block]:
    inner = [found for op in block.ops for region in op.regions for found in _blocks(region)]
    return [*inner, block]


def _find_products(function: Function, loop: For, facts: dict[Value, Range], warps: int, by_rows: bool) -> list[Product]:
    users = users_of(function.body)
    found: list[Product] = []
    known: dict[Load, Operand] = {}
    for op in loop.regions[0].ops:
        grid = _grid_of(op, warps, by_rows) if isinstance(op, Mma) and op.result.tile.rank == 2 else None
        if isinstance(op, Mma) and grid is not None:
            pairs = [staged_operand(function, loop, value, users, facts, known) for value in op.operands[:2]]
            (left, left_transposed), (right, right_transposed) = pairs
            if left is not None or right is not None:
                found.append(Product(op, grid, left, right, (left_transposed, right_transposed)))
    return found


def _candidate(loop: For, products: list[Product], warps: int, max_accumulators: int) -> Candidate:
    operands = list(dict.fromkeys(operand for product in products for operand in product.operands))
    stage_bytes = sum(SharedType(o.load.result.tile.dtype, o.shape, 1).stage_bytes for o in operands)
    # Loops inside this one were pipelined first and keep their bytes; sibling loops do not overlap it in time.
    used = max((op.offset + op.result.shared.bytes for op in _allocations(loop)), default=0)
    return Candidate(
        loop,
        products,
        operands,
        used,
        unstaged_bytes(products),
        stage_bytes,
        (*(one for one in FAMILIES if not used and suits(one, loop, products, warps, max_accumulators)), MMA_SYNC),
    )


def _pipeline(
    function: Function,
    block: Block,
    candidate: Candidate,
    known: Converted,
    decide: Decide,
    registers: int,
) -> None:
    decided, warps = decide(candidate), function.num_warps
    stages, family = decided.stages, decided.family or MMA_SYNC
    if stages < 2:
        return
    loop, products, operands, used_bytes = candidate.loop, candidate.products, candidate.operands, candidate.used_bytes
    chain = candidate.chain(family) if decided.copy == TMA else None
    if isinstance(chain, FusedProducts):
        fused_staging.pipeline(function, block, chain, stages, warps)
        return
    if chain is not None and family.in_tensor_memory:
        tmem_attention.pipeline(function, block, chain, stages)
        return
    if chain is not None:
        back_to_back_staging.pipeline(block, chain, stages, warps, registers)
        return
    if decided.copy == TMA:
        if family.in_tensor_memory:
            tmem_staging.pipeline(family, function, block, loop, products[0], operands, stages)
        else:
            tensor_staging.pipeline(family, function, block, loop, products, operands, stages, known)
        return
    before, after = Emitter(), Emitter()
    ring = before.add(Ring(), RingType(stages))
    for operand in operands:
        buffer_type = SharedType(operand.load.result.tile.dtype, operand.shape, stages)
        operand.buffer = before.add(
            SharedAlloc(operands=[ring], offset=used_bytes, alignment=family.stage_alignment), buffer_type
        )
        used_bytes += buffer_type.bytes
    ahead = stages - 2 if family.runs_ahead else stages - 1
    _prologue(before, loop, operands, ring, ahead)
    # After the prologue copies, so that they overlap the layout conversions of the other operands.
    hoist_constant_operands(before, loop, products, known)
    _rewrite_body(family, before, loop, operands, products, ring, ahead, warps)
    after.add(Drain(operands=[ring]))
    after.add(Barrier())
    after.add(SharedFree(operands=[*(operand.buffer for operand in operands if operand.buffer is not None), ring]))
    position = block.ops.index(loop)
    pipelined_loop: Op = loop
    if family.runs_ahead:
        condition = before.compare("lt", loop.lower, loop.upper)
        pipelined_loop = guarded(family, loop, products[0], condition, warps, positions=1)
    block.ops[position : position + 1] = [*before.ops, pipelined_loop, *after.ops]


def _allocations(loop: For) -> list[SharedAlloc]:
    return [op for op in loop.regions[0].walk() if isinstance(op, SharedAlloc)]


def _prologue(out: Emitter, loop: For, operands: list[Operand], ring: Value, count: int) -> None:
    for ahead in range(count):
        out.add(Acquire(operands=[ring]))
        _copies_if_in_range(out, loop, operands, loop.lower, ahead, out.number(ahead))
        out.add(Commit(operands=[ring]))


def _copies_if_in_range(
    out: Emitter, loop: For, operands: list[Operand], position: Value, ahead: int, ring_stage: Value
) -> None:
    """Start the copies of the iteration `ahead` steps after `position` unless the loop ends before it."""
    # In i64, because the sum may leave i32 if the loop ends near that limit.
    distance = out.binary("mul", out.widen(loop.step), out.number(ahead, wide=True))
    following = out.binary("add", out.widen(position), distance)
    condition = out.compare("lt", following, out.widen(loop.upper))
    then = Emitter()
    step = loop.step.owner
    if isinstance(step, Constant) and step.value * ahead > i32.integer_range()[1]:
        variable = then.add(Cast(operands=[following]), TileType(i32))
    else:  # the product may wrap, so ranges know nothing of it; the sum is still right modulo 2^32
        variable = then.binary("add", position, then.binary("mul", loop.step, then.number(ahead)))
    variable.fits = True  # it lies between `position` and the end of the loop
    _copies(then, loop, operands, variable, ring_stage)
    then.add(Yield())
    out.add(If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))


def _copies(out: Emitter, loop: For, operands: list[Operand], variable: Value, ring_stage: Value) -> None:
    mapping = {loop.regions[0].arguments[0]: variable}
    needed = {op for operand in operands for op in operand.chain}
    out.ops += clone([op for op in loop.regions[0].ops if op in needed], mapping)  # proofs hold: the loop has this iteration
    for operand in operands:
        assert operand.buffer is not None
        offsets = [mapping.get(value, value) for value in operand.load.offsets]
        out.add(
            AsyncCopy(
                operands=[operand.load.source, operand.buffer, ring_stage, *offsets],
                vector=operand.vector,
                row_axis=operand.row_axis,
                sub_tiles=operand.sub_tiles,
                gap=operand.gap,
                pad=operand.load.pad is not None,
                whole=operand.whole,
                unsafe=operand.load.unsafe,
                loc=operand.load.loc,
            )
        )


def _rewrite_body(
    family: Family, before: Emitter, loop: For, operands: list[Operand], products: list[Product], ring: Value, ahead: int,
    warps: int,
) -> None:  # fmt: skip
    """Rewrite the loop to read stages; copies run `ahead` iterations ahead, and `warps` run the MMAs."""
    body, stages = loop.regions[0], ring.ring.stages
    loop.operands.append(before.number(0))
    current = body.add_argument(TileType(i32), "stage")
    head = Emitter()
    head.add(Wait(operands=[ring], pending=ahead - 1))
    if family.runs_ahead:
        head.add(ProxyFence())
    head.add(Barrier())
    zero, one, last = head.number(0), head.number(1), head.number(stages - 1)
    copies = Emitter() if family.runs_ahead else head
    # The stage of iteration + ahead: current + ahead modulo stages.
    back = stages - ahead
    wraps = copies.compare("lt", current, copies.number(back))
    refilled = copies.select(
        wraps,
        in_ring(copies.binary("add", current, copies.number(ahead))),
        in_ring(copies.binary("sub", current, copies.number(back))),
    )
    copies.add(Acquire(operands=[ring]))
    _copies_if_in_range(copies, loop, operands, body.arguments[0], ahead, refilled)
    copies.add(Commit(operands=[ring]))

    by_mma = {product.mma: product for product in products}
    rewritten: list[Op] = head.ops
    for op in body.ops[:-1]:
        product = by_mma.get(op) if isinstance(op, Mma) else None
        if product is None:
            rewritten.append(op)
        elif family.runs_ahead:
            rewritten.extend(multiply(family, product, current, copies.ops, warps))
        else:
            rewritten.extend(sliced(product, current))
    tail = Emitter()
    # An asynchronous MMA of this iteration is still in flight, and reads its stage until the next iteration.
    tail.add(Release(operands=[ring], unreleased=int(family.runs_ahead)))
    following = tail.select(tail.compare("eq", current, last), zero, in_ring(tail.binary("add", current, one)))
    body.ops[-1].operands.append(following)
    body.ops = without_dead([*rewritten, *tail.ops, body.ops[-1]])
    loop.results.append(Value(TileType(i32), "stage", loop))
