"""MMAs of a pipelined loop by a family that reads both operands from shared memory, such as `wgmma`.

Such an instruction is asynchronous: an iteration starts the copies of a later iteration, starts its MMA, and then waits for the
previous iteration's MMA, so one is always in flight. A stage is therefore read for one iteration longer than by `mma.sync`, and
copies run one iteration less ahead.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.atoms.products import ATOMS
from tilec.ir.core import Block, Effect, Op, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Constant, For, If, Load, Mma, Yield
from tilec.ir.ops.staging_ops import GroupMma, WaitMma
from tilec.passes.schedule.pipelining.staged_products import Emitter, Product
from tilec.target.families import Family
from tilec.target.schedule import PAIR

MAX_ACCUMULATORS = 128
"""Accumulator registers per thread: more leave too few of its 255 registers."""
MAX_REALLOCATED_ACCUMULATORS = 192
"""The same if the producer role gives up registers to the consumers (`setmaxnreg`)."""
AfterLoop = Callable[[For], list[Op]]
"""Makes the operations to insert after a loop, given that loop."""


def suits(family: Family, loop: For, products: list[Product], warps: int, max_accumulators: int = MAX_ACCUMULATORS) -> bool:
    """Whether the loop has one MMA that a family with operands in shared memory can compute: both operands staged, with rows of
    128 bytes, a shape of whole instructions, accumulated across iterations and used by nothing else; at most
    `max_accumulators` accumulator elements per thread, in which consumers at last have them. The left operand is K-major. So is
    the right one, or, of a family with accumulators in registers, MN-major with rows of a multiple of 128 bytes."""
    issuers = family.issuers(warps)
    if len(products) != 1 or not issuers or not family.runs_ahead:
        return False
    (product,) = products
    left, right, mma = product.left, product.right, product.mma
    if left is None or right is None or left is right or product.transposed[0]:
        return False
    if is_mn_major(product) and (family.in_tensor_memory or any(dtype.bits != 16 for dtype in product.dtypes)):
        return False
    rows, columns = mma.result.tile.shape
    blocks = PAIR if right.halved else 1
    if not all(family.takes(dtype) and family.has_columns(columns, dtype, blocks) for dtype in product.dtypes):
        return False
    left_row, right_row = (operand.shape[1] * operand.load.result.tile.dtype.bytes for operand in (left, right))
    whole_rows = left_row == family.row_bytes and right_row % family.row_bytes == 0
    if family.in_tensor_memory and not _only_accumulates(loop, mma):
        return False
    most = MAX_REALLOCATED_ACCUMULATORS if family.in_tensor_memory else max_accumulators
    fits = rows * columns <= most * 32 * warps
    shape = fits and ATOMS[family.name].fits(rows, columns, warps)
    body = loop.regions[0]
    users = [op for op in body.walk() for value in op.operands if value is mma.result]
    carried = [a for a, v in zip(body.arguments[1:], body.ops[-1].operands, strict=True) if v is mma.result]
    readers = [op for op in body.walk() for value in op.operands if value is mma.operands[2]]
    return (
        shape
        and whole_rows
        and (is_mn_major(product) or right_row == family.row_bytes)
        and users == [body.ops[-1]]
        and carried == [mma.operands[2]]
        and readers == [mma]
    )


def is_mn_major(product: Product) -> bool:
    """Whether rows of the right operand lie along the depth."""
    return not product.transposed[1]


def _only_accumulates(loop: For, mma: Mma) -> bool:
    """Whether a loop does nothing but accumulate an MMA from zero, so that its consumers need no loop of their own."""
    (*others, last) = loop.regions[0].ops
    pure = all(isinstance(op, Load) or op is mma or op.effect is Effect.NONE for op in others)
    initial = loop.initial[0].owner if len(loop.initial) == 1 else None
    return pure and isinstance(last, Yield) and isinstance(initial, Constant) and initial.value == 0


def multiply(family: Family, product: Product, current: Value, copies: list[Op], warps: int) -> list[Op]:
    """Operations that replace the MMA in the loop's body: `copies`, then the start of the MMA on stage `current`, then the wait
    for the previous MMA, which the copies overlap. The body yields the wait's result."""
    mma, out = product.mma, Emitter(list(copies))
    assert product.left is not None and product.left.buffer is not None
    assert product.right is not None and product.right.buffer is not None
    operands = [product.left.buffer, current, product.right.buffer, current, mma.operands[2]]
    group = GroupMma(operands=operands, family=family.name, mn_major=is_mn_major(product), loc=mma.loc)
    started = out.add(group, mma.result.tile)
    started.layout = accumulator(family, started, warps)
    out.ops.append(_wait_for(family, started, mma.result))
    return out.ops


def guarded(
    family: Family, loop: For, product: Product, condition: Value, warps: int, *, positions: int = 0,
    after: AfterLoop | None = None,
) -> If:  # fmt: skip
    """The loop and the wait for its last MMA, under `condition`, which says that the loop has an iteration. Without the branch
    an accumulator could be accessed between an MMA and its wait, and ptxas would serialize all MMAs. The last `positions`
    carried values are ring positions, unused after the loop; `after` makes the operations after the wait."""
    index = loop.regions[0].ops[-1].operands.index(product.mma.result)
    kept_count = len(loop.results) - positions
    results, layout = loop.results[:kept_count], accumulator(family, product.mma.result, warps)
    loop.results = [*(Value(value.tile, value.name, loop) for value in results), *loop.results[kept_count:]]
    loop.results[index].layout = layout
    wait = WaitMma(operands=[loop.results[index]], family=family.name, pending=0)
    wait.define(results[index].tile)
    wait.result.layout = layout
    yielded = [*loop.results[:index], wait.result, *loop.results[index + 1 : kept_count]]
    branch = If(operands=[condition])
    then = [loop, wait, *(after(loop) if after else []), Yield(operands=yielded)]
    branch.regions = [Block(ops=then), Block(ops=[Yield(operands=list(loop.initial[:kept_count]))])]
    branch.results = results
    for value in results:
        value.owner = branch
    results[index].layout = layout
    return branch


def accumulator(family: Family, value: Value, warps: int) -> Layout:
    """Layout of an accumulator of the family's MMAs."""
    rows, columns = value.tile.shape
    return ATOMS[family.name].accumulator(rows, columns, warps)


def _wait_for(family: Family, value: Value, result: Value) -> WaitMma:
    """A wait for the MMA that precedes the definition of `value`, with the result `result`, which has users already."""
    wait = WaitMma(operands=[value], family=family.name, pending=1)
    wait.results = [result]
    result.owner, result.layout = wait, value.layout
    return wait
