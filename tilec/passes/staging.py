"""Turns loops whose loads feed `mma` into pipelines: copies run ahead through shared memory while tensor cores work.

A loop qualifies where an `mma` takes operands that are loads of this iteration (perhaps reshaped to two axes or transposed)
whose offsets follow from the loop variable alone, aligned to 4 bytes or more. With `s` stages the loop becomes

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
from dataclasses import dataclass, field
from typing import Final

from tilec.ir import mma_layouts
from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.mma_layouts import WarpGrid
from tilec.ir.ops import Binary, Cast, Compare, Constant, For, If, Load, Mma, Permute, Reshape, Select, Yield
from tilec.ir.ops_staging import AsyncCopy, CommitCopies, SharedAlloc, SharedLoad, WaitCopies
from tilec.ir.types import SharedType, TileType, boolean, i32, i64
from tilec.passes.divisibility import aligned_ranges, divisor, expr_divisor, promised_symbols
from tilec.passes.ranges import Range
from tilec.target import Target

MAX_STAGES: Final = 4


@dataclass(eq=False, slots=True)
class Operand:
    """One operand of an `mma` that comes through shared memory: its load, and whether it is used transposed."""

    load: Load
    transposed: bool
    vector: int
    chain: list[Op]  # what computes the load's offsets from the loop variable, in program order
    buffer: Value | None = None


@dataclass(eq=False, slots=True)
class Product:
    """An `mma` of the loop body with both operands staged."""

    mma: Mma
    operands: tuple[Operand, Operand]


@dataclass(eq=False, slots=True)
class Emitter:
    """Appends operations to a list."""

    ops: list[Op] = field(default_factory=lambda: list[Op]())

    def add(self, op: Op, *types: TileType | SharedType) -> Value:
        """Append an operation; its first result, or an unused value where it has none."""
        op.define(*types)
        self.ops.append(op)
        return op.results[0] if types else Value(TileType(i32))

    def number(self, value: int, wide: bool = False) -> Value:
        return self.add(Constant(value=value), TileType(i64 if wide else i32))

    def binary(self, kind: str, left: Value, right: Value) -> Value:
        return self.add(Binary(kind=kind, operands=[left, right]), left.tile)

    def compare(self, kind: str, left: Value, right: Value) -> Value:
        return self.add(Compare(kind=kind, operands=[left, right]), TileType(boolean))

    def select(self, condition: Value, on_true: Value, on_false: Value) -> Value:
        return self.add(Select(operands=[condition, on_true, on_false]), on_true.tile)

    def widen(self, value: Value) -> Value:
        return self.add(Cast(operands=[value]), TileType(i64))


def stage(function: Function, target: Target, *, max_stages: int = MAX_STAGES) -> Function:
    """Pipeline every loop of `function` that qualifies, in place, and set `num_warps` where it is still open.

    Layouts are set on the operands and results of each pipelined `mma`; the layout pass keeps them and converts where other
    operations want something else.
    """
    warps = _warps_of(function)
    if warps == 0:
        return function
    facts = aligned_ranges(function)
    for block in _blocks(function.body):
        for loop in [op for op in block.ops if isinstance(op, For)]:
            products = _find_products(function, loop, facts, warps)
            if products:
                _pipeline(block, loop, products, warps, target, max_stages)
                function.num_warps = warps
    return function


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
    return max(mma_layouts.default_warps(rows, columns) for rows, columns in products)


def _find_products(function: Function, loop: For, facts: dict[Value, Range], warps: int) -> list[Product]:
    body = loop.regions[0]
    users = _users(function.body)
    found: list[Product] = []
    operands: dict[Load, Operand] = {}
    for op in body.ops:
        if not isinstance(op, Mma):
            continue
        rows, columns = op.result.tile.shape
        grid = mma_layouts.choose_warps(rows, columns, warps)
        depth = op.operands[0].tile.shape[1]
        if grid is None or depth % mma_layouts.K or op.operands[0].tile.dtype.bits != 16:
            continue
        pair = [_operand(function, loop, value, users, facts, operands) for value in op.operands[:2]]
        left, right = pair
        if left is not None and right is not None:
            found.append(Product(op, (left, right)))
    return found


def _users(block: Block) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {}
    for op in block.walk():
        for operand in op.operands:
            users.setdefault(operand, []).append(op)
    return users


def _operand(
    function: Function,
    loop: For,
    value: Value,
    users: dict[Value, list[Op]],
    facts: dict[Value, Range],
    known: dict[Load, Operand],
) -> Operand | None:
    transposed, op = False, value.owner
    while isinstance(op, Permute | Reshape):
        if isinstance(op, Permute):
            if op.axes != (1, 0):
                return None
            transposed = not transposed
        elif op.result.tile.shape != op.operands[0].tile.shape[-2:]:
            return None  # only unit axes in front may go
        op = op.operands[0].owner
    if not isinstance(op, Load) or op not in loop.regions[0].ops or op.pad not in (None, 0.0):
        return None
    if op.result.tile.rank < 2 or any(extent != 1 for extent in op.result.tile.shape[:-2]):
        return None
    if op in known:
        return known[op] if known[op].transposed == transposed else None
    chain = _offset_chain(loop, op)
    vector = _copy_vector(function, op, facts)
    if chain is None or vector == 0 or not _feeds_mma_only(op.result, users):
        return None
    known[op] = Operand(op, transposed, vector, chain)
    return known[op]


def _feeds_mma_only(value: Value, users: dict[Value, list[Op]]) -> bool:
    # Every user is checked, because the load disappears; its other readers would need the tile in registers.
    for user in users.get(value, []):
        if isinstance(user, Permute | Reshape):
            if not _feeds_mma_only(user.result, users):
                return False
        elif not isinstance(user, Mma) or value not in user.operands[:2]:
            return False
    return True


def _offset_chain(loop: For, load: Load) -> list[Op] | None:
    """Operations of the body that compute the offsets, in order; None where they need more than the loop variable."""
    body = loop.regions[0]
    inside = {result: op for op in body.ops for result in op.results}
    needed: set[Op] = set()
    pending = list(load.offsets)
    while pending:
        value = pending.pop()
        if value in body.arguments[1:]:
            return None
        op = inside.get(value)
        if op is None or op in needed:
            continue
        if op.regions or op.effect is not Effect.NONE:
            return None
        needed.add(op)
        pending.extend(op.operands)
    return [op for op in body.ops if op in needed]


def _copy_vector(function: Function, load: Load, facts: dict[Value, Range]) -> int:
    """Bytes per copy that every address of the box is aligned to: 16, 8, 4, or 0 where not even 4."""
    tensor, symbols = load.source.tensor, promised_symbols(function)
    size = tensor.dtype.bytes
    strides = tensor.strides
    if strides is not None and strides[-1].constant != 1:
        return 0
    if load.result.tile.shape[-1] * size % 16:
        return 0
    if strides is None:
        # A row-major stride is a product of extents, so the last extent divides all of them.
        steps = [expr_divisor(tensor.dims[-1], symbols)]
    else:
        steps = [expr_divisor(stride, symbols) for stride in strides[:-1]]
    steps.append(divisor(facts[load.offsets[-1]]))
    for vector in (16, 8, 4):
        if tensor.align % vector == 0 and all(step * size % vector == 0 for step in steps):
            return vector
    return 0


def _pipeline(block: Block, loop: For, products: list[Product], warps: int, target: Target, max_stages: int) -> None:
    operands = list(dict.fromkeys(operand for product in products for operand in product.operands))
    shapes = [operand.load.result.tile for operand in operands]
    stage_bytes = sum(SharedType(tile.dtype, (tile.shape[-2], tile.shape[-1]), 1).stage_bytes for tile in shapes)
    # Loops inside this one were pipelined first and keep their bytes; loops beside it are over and their bytes are free.
    used = max((op.offset + op.result.shared.bytes for op in _allocations(loop)), default=0)
    stages = _stage_count(target.max_shared_bytes - used, stage_bytes, max_stages)
    if stages < 2:
        return
    before, after = Emitter(), Emitter()
    for operand, tile in zip(operands, shapes, strict=True):
        type = SharedType(tile.dtype, (tile.shape[-2], tile.shape[-1]), stages)
        operand.buffer = before.add(SharedAlloc(offset=used), type)
        used += type.bytes
    _prologue(before, loop, operands, stages)
    _rewrite_body(before, loop, operands, products, warps, stages)
    after.add(WaitCopies(pending=0))
    position = block.ops.index(loop)
    block.ops[position : position + 1] = [*before.ops, loop, *after.ops]


def _allocations(loop: For) -> list[SharedAlloc]:
    return [op for op in loop.regions[0].walk() if isinstance(op, SharedAlloc)]


def _stage_count(available: int, stage_bytes: int, most: int) -> int:
    """Three stages or more where two blocks share a multiprocessor with them, else what one block can have."""
    shared_by_two = available // 2 // stage_bytes
    return min(most, shared_by_two if shared_by_two >= 3 else available // stage_bytes)


def _prologue(out: Emitter, loop: For, operands: list[Operand], stages: int) -> None:
    for ahead in range(stages - 1):
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
                pad=operand.load.pad is not None,
                unsafe=operand.load.unsafe,
                loc=operand.load.loc,
            )
        )


def _rewrite_body(
    before: Emitter, loop: For, operands: list[Operand], products: list[Product], warps: int, stages: int
) -> None:
    body = loop.regions[0]
    loop.operands.append(before.number(0))
    current = body.add_argument(TileType(i32), "stage")
    head = Emitter()
    head.add(WaitCopies(pending=stages - 2))
    zero, one, last = head.number(0), head.number(1), head.number(stages - 1)
    freed = head.select(head.compare("eq", current, zero), last, head.binary("sub", current, one))
    _copies_if_in_range(head, loop, operands, body.arguments[0], stages - 1, freed)
    head.add(CommitCopies())

    by_mma = {product.mma: product for product in products}
    rewritten: list[Op] = head.ops
    for op in body.ops[:-1]:
        product = by_mma.get(op) if isinstance(op, Mma) else None
        if product is None:
            rewritten.append(op)
        else:
            rewritten.extend(_sliced(product, current, warps))
    tail = Emitter()
    following = tail.select(tail.compare("eq", current, last), zero, tail.binary("add", current, one))
    body.ops[-1].operands.append(following)
    body.ops = _without_dead([*rewritten, *tail.ops, body.ops[-1]])
    loop.results.append(Value(TileType(i32), "stage", loop))


def _sliced(product: Product, current: Value, warps: int) -> list[Op]:
    """The product in slices of 16 along K; each slice's operands are read before the slice ahead of it is multiplied."""
    mma, (left, right) = product.mma, product.operands
    rows, columns = mma.result.tile.shape
    depth = mma.operands[0].tile.shape[1]
    grid = mma_layouts.choose_warps(rows, columns, warps)
    assert grid is not None
    out = Emitter()
    slices = [_read_slice(out, left, right, current, 0, (rows, columns), grid)]
    total = mma.operands[2]
    for k in range(0, depth, mma_layouts.K):
        if k + mma_layouts.K < depth:
            slices.append(_read_slice(out, left, right, current, k + mma_layouts.K, (rows, columns), grid))
        a, b = slices[k // mma_layouts.K]
        if k + mma_layouts.K < depth:
            total = out.add(Mma(operands=[a, b, total], loc=mma.loc), mma.result.tile)
            total.layout = mma_layouts.accumulator(rows, columns, grid)
        else:
            # The original operation becomes the last slice, so that its result keeps its users.
            mma.operands = [a, b, total]
            mma.result.layout = mma_layouts.accumulator(rows, columns, grid)
            out.ops.append(mma)
    return out.ops


def _read_slice(
    out: Emitter, left: Operand, right: Operand, current: Value, k: int, shape: tuple[int, int], grid: WarpGrid
) -> tuple[Value, Value]:
    rows, columns = shape
    assert left.buffer is not None and right.buffer is not None
    dtype = left.load.result.tile.dtype
    a = out.add(
        SharedLoad(operands=[left.buffer, current], column=k, transposed=left.transposed),
        TileType(dtype, (rows, mma_layouts.K)),
    )
    b = out.add(
        SharedLoad(operands=[right.buffer, current], row=k, transposed=right.transposed),
        TileType(dtype, (mma_layouts.K, columns)),
    )
    a.layout = mma_layouts.operand_a(rows, mma_layouts.K, grid)
    b.layout = mma_layouts.operand_b(mma_layouts.K, columns, grid)
    return a, b


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
