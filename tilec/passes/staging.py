"""Turns loops whose loads feed `mma` into pipelines: copies run ahead through shared memory while tensor cores work.

A loop qualifies where an `mma` takes operands that are loads of this iteration (perhaps reshaped to two axes or transposed)
whose offsets follow from the loop variable alone, aligned to 4 bytes or more; one of the two may also be a tile in registers,
such as the result of the `mma` before. With `s` stages the loop becomes

    start the copies of iterations 0 .. s-2                       one group each, empty past the end
    for each iteration:
        wait for its copies; barrier
        start the copies of iteration + s-1                       into the stage read last, which the barrier freed
        per 16 of K: read both operands from this stage, multiply
    wait for everything; barrier                                  the buffers may be reused

The product of one iteration is split along K, so that only one 16-wide slice of operands is in registers beside the next.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from tilec.diagnostics import CompileError, Diagnostic, Label
from tilec.ir import mma_layouts
from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.layout import Layout
from tilec.ir.mma_layouts import WarpGrid
from tilec.ir.ops import For, If, Load, Mma, Yield
from tilec.ir.ops_staging import AsyncCopy, CommitCopies, SharedAlloc, WaitCopies
from tilec.ir.types import SharedType, TileType, i32
from tilec.passes.divisibility import aligned_ranges
from tilec.passes.ranges import Range
from tilec.passes.staged_loads import Operand, staged_operand, users_of
from tilec.passes.staged_products import Emitter, Product, held_bytes, hold_constant_operands, relayout, sliced
from tilec.passes.warpgroups import LEAST_STAGES, guarded, multiply, suits
from tilec.target import Target

MAX_STAGES: Final = 4
MAX_GROUP_STAGES: Final = 8
"""Where warpgroups read the stages: they need fewer registers for a tile, so that tiles may be small and wait for memory."""


def stage(function: Function, target: Target, *, max_stages: int | None = None, min_blocks: int | None = None) -> Function:
    """Pipeline every loop of `function` that qualifies, in place, and set `num_warps` where it is still open.

    Stages are as many as let `min_blocks` blocks share a multiprocessor, but two at least and `max_stages` at most.
    Layouts are set on the operands and results of each pipelined `mma`; the layout pass keeps them and converts where other
    operations want something else.
    """
    warps = _warps_of(function)
    if warps == 0:
        return function
    function.num_warps = warps
    facts = aligned_ranges(function)
    by_rows = _is_chained(function)
    for block in _blocks(function.body):
        known: dict[tuple[Value, Layout], Value] = {}
        for loop in [op for op in block.ops if isinstance(op, For)]:
            products = _find_products(function, loop, facts, warps, by_rows)
            if products:
                _pipeline(block, loop, products, known, target, warps, (max_stages, min_blocks))
    for block in _blocks(function.body):
        _lay_out_others(block, warps, by_rows)
    return function


def _is_chained(function: Function) -> bool:
    """Whether some product's left operand is computed from another product. Warps then take rows alone, so that a row's results
    stay in the warp that needs them."""
    made: set[Value] = set()
    for op in function.body.walk():
        if isinstance(op, Mma):
            if op.operands[0] in made:
                return True
            made.add(op.result)
        elif not op.regions and not made.isdisjoint(op.operands):
            made.update(op.results)
    return False


def _grid_of(op: Mma, warps: int, by_rows: bool) -> WarpGrid | None:
    rows, columns = op.result.tile.shape
    depth = op.operands[0].tile.shape[1]
    if depth % mma_layouts.K or op.operands[0].tile.dtype.bits != 16:
        return None
    if by_rows and mma_layouts.fits(rows, columns, depth, WarpGrid(warps, 1)):
        return WarpGrid(warps, 1)
    return mma_layouts.choose_warps(rows, columns, warps)


def _lay_out_others(block: Block, warps: int, by_rows: bool) -> None:
    """Bring the operands of every `mma` outside of pipelines into its layouts. E0506 where the instruction does not fit it."""
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, Mma) and op.result.layout is None:
            grid = _grid_of(op, warps, by_rows)
            if grid is None:
                shape = (*op.result.tile.shape, op.operands[0].tile.shape[1])
                message = f"no product of shape {shape} on {warps} warps: tensor cores multiply 16 x 8 x 16 of 16-bit floats"
                raise CompileError(Diagnostic("E0506", message, Label(op.loc) if op.loc else None))
            rows, columns, depth = *op.result.tile.shape, op.operands[0].tile.shape[1]
            out = Emitter()
            layouts = mma_layouts.operand_a(rows, depth, grid), mma_layouts.operand_b(depth, columns, grid)
            held = [relayout(out, value, layout) for value, layout in zip(op.operands[:2], layouts, strict=True)]
            op.result.layout = mma_layouts.accumulator(rows, columns, grid)
            op.operands = [*held, relayout(out, op.operands[2], op.result.layout)]
            ops += out.ops
        ops.append(op)
    block.ops = ops


def _blocks(block: Block) -> list[Block]:
    inner = [found for op in block.ops for region in op.regions for found in _blocks(region)]
    return [*inner, block]


def _warps_of(function: Function) -> int:
    """Warps that suit every `mma` of the kernel, 0 where there is none."""
    products = [op.result.tile.shape for op in function.body.walk() if isinstance(op, Mma)]
    if not products:
        return 0
    if function.num_warps:
        return function.num_warps
    most = max(mma_layouts.default_warps(rows, columns) for rows, columns in products)
    suiting = [
        count
        for count in range(1, most + 1)
        if all(mma_layouts.choose_warps(rows, columns, count) is not None for rows, columns in products)
    ]
    return max(suiting, default=most)


def _find_products(function: Function, loop: For, facts: dict[Value, Range], warps: int, by_rows: bool) -> list[Product]:
    users = users_of(function.body)
    found: list[Product] = []
    known: dict[Load, Operand] = {}
    for op in loop.regions[0].ops:
        grid = _grid_of(op, warps, by_rows) if isinstance(op, Mma) else None
        if isinstance(op, Mma) and grid is not None:
            left, right = (staged_operand(function, loop, value, users, facts, known) for value in op.operands[:2])
            if left is not None or right is not None:
                found.append(Product(op, grid, left, right))
    return found


def _pipeline(
    block: Block,
    loop: For,
    products: list[Product],
    known: dict[tuple[Value, Layout], Value],
    target: Target,
    warps: int,
    limits: tuple[int | None, int | None],
) -> None:
    operands = list(dict.fromkeys(operand for product in products for operand in product.operands))
    stage_bytes = sum(SharedType(o.load.result.tile.dtype, o.shape, 1).stage_bytes for o in operands)
    # Loops inside this one were pipelined first and keep their bytes; loops beside it are over and their bytes are free.
    used = max((op.offset + op.result.shared.bytes for op in _allocations(loop)), default=0)
    grouped = not used and suits(loop, products, target, warps)
    most = limits[0] or (MAX_GROUP_STAGES if grouped else MAX_STAGES)
    stages = _stage_count(target, used + held_bytes(products), stage_bytes, most, limits[1])
    grouped = grouped and stages >= LEAST_STAGES
    if stages < 2:
        return
    before, after = Emitter(), Emitter()
    for operand in operands:
        type = SharedType(operand.load.result.tile.dtype, operand.shape, stages)
        operand.buffer = before.add(SharedAlloc(offset=used, alignment=1024 if grouped else 128), type)
        used += type.bytes
    ahead = stages - 2 if grouped else stages - 1
    _prologue(before, loop, operands, ahead)
    # After the first copies, which then run while the other operands change their layout.
    hold_constant_operands(before, loop, products, known)
    _rewrite_body(before, loop, operands, products, stages, ahead, warps if grouped else 0)
    after.add(WaitCopies(pending=0))
    position = block.ops.index(loop)
    whole: Op = loop
    if grouped:
        whole = guarded(loop, products[0], before.compare("lt", loop.lower, loop.upper), warps)
    block.ops[position : position + 1] = [*before.ops, whole, *after.ops]


def _allocations(loop: For) -> list[SharedAlloc]:
    return [op for op in loop.regions[0].walk() if isinstance(op, SharedAlloc)]


def _stage_count(target: Target, taken: int, stage_bytes: int, most: int, min_blocks: int | None) -> int:
    """Three stages or more where two blocks share a multiprocessor with them, else what one block can have."""
    alone = (target.max_shared_bytes - taken) // stage_bytes
    if min_blocks is not None:
        # The chip keeps a kilobyte of its own for each block (CUDA programming guide, compute capability 8.x, shared memory).
        each = (target.max_shared_bytes + 1024) // min_blocks - 1024
        return min(most, max((each - taken) // stage_bytes, min(alone, 2)))
    shared_by_two = (target.max_shared_bytes - taken) // 2 // stage_bytes
    return min(most, shared_by_two if shared_by_two >= 3 else alone)


def _prologue(out: Emitter, loop: For, operands: list[Operand], count: int) -> None:
    for ahead in range(count):
        _copies_if_in_range(out, loop, operands, loop.lower, ahead, out.number(ahead))
        out.add(CommitCopies())


def _copies_if_in_range(
    out: Emitter, loop: For, operands: list[Operand], position: Value, ahead: int, ring_stage: Value
) -> None:
    """Start the copies of the iteration `ahead` steps after `position` unless the loop ends before it."""
    # In i64, because the sum may leave i32 where the loop ends near its limit.
    distance = out.binary("mul", out.widen(loop.step), out.number(ahead, wide=True))
    condition = out.compare("lt", out.binary("add", out.widen(position), distance), out.widen(loop.upper))
    then = Emitter()
    variable = then.binary("add", position, then.binary("mul", loop.step, then.number(ahead)))
    _copies(then, loop, operands, variable, ring_stage)
    then.add(Yield())
    out.add(If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))


def _copies(out: Emitter, loop: For, operands: list[Operand], variable: Value, ring_stage: Value) -> None:
    mapping = {loop.regions[0].arguments[0]: variable}
    needed = {op for operand in operands for op in operand.chain}
    for op in loop.regions[0].ops:
        if op in needed:
            copy = dataclasses.replace(op, operands=[mapping.get(value, value) for value in op.operands], results=[])
            copy.define(*(result.type for result in op.results))
            out.ops.append(copy)
            mapping.update(zip(op.results, copy.results, strict=True))
    for operand in operands:
        assert operand.buffer is not None
        offsets = [mapping.get(value, value) for value in operand.load.offsets]
        out.add(
            AsyncCopy(
                operands=[operand.load.source, operand.buffer, ring_stage, *offsets],
                vector=operand.vector,
                row_axis=operand.row_axis,
                pad=operand.load.pad is not None,
                whole=operand.whole,
                unsafe=operand.load.unsafe,
                loc=operand.load.loc,
            )
        )


def _rewrite_body(
    before: Emitter, loop: For, operands: list[Operand], products: list[Product], stages: int, ahead: int, group_warps: int
) -> None:
    """`ahead` is how many iterations copies run ahead; with `group_warps`, the product is one of warpgroups."""
    body = loop.regions[0]
    loop.operands.append(before.number(0))
    current = body.add_argument(TileType(i32), "stage")
    head = Emitter()
    head.add(WaitCopies(pending=ahead - 1, matrices=group_warps > 0))
    zero, one, last = head.number(0), head.number(1), head.number(stages - 1)
    copies = Emitter() if group_warps else head
    # The stage of iteration + ahead: the ring's next place but stages - ahead.
    back = stages - ahead
    wraps = copies.compare("lt", current, copies.number(back))
    freed = copies.select(
        wraps, copies.binary("add", current, copies.number(ahead)), copies.binary("sub", current, copies.number(back))
    )
    _copies_if_in_range(copies, loop, operands, body.arguments[0], ahead, freed)
    copies.add(CommitCopies())

    by_mma = {product.mma: product for product in products}
    rewritten: list[Op] = head.ops
    for op in body.ops[:-1]:
        product = by_mma.get(op) if isinstance(op, Mma) else None
        if product is None:
            rewritten.append(op)
        elif group_warps:
            rewritten.extend(multiply(product, current, copies.ops, group_warps))
        else:
            rewritten.extend(sliced(product, current))
    tail = Emitter()
    following = tail.select(tail.compare("eq", current, last), zero, tail.binary("add", current, one))
    body.ops[-1].operands.append(following)
    body.ops = _without_dead([*rewritten, *tail.ops, body.ops[-1]])
    loop.results.append(Value(TileType(i32), "stage", loop))


def _without_dead(ops: list[Op]) -> list[Op]:
    """Drop the loads that copies replaced, and what only they used."""
    used: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(ops):
        removable = op.results and not op.regions and op.effect in (Effect.NONE, Effect.READ, Effect.SHARED)
        if removable and not any(result in used for result in op.results):
            continue
        kept.append(op)
        used.update(op.operands)
        for region in op.regions:
            used.update(value for inner in region.walk() for value in inner.operands)
    return kept[::-1]
