"""Products of a pipelined loop that groups of four warps make straight from shared memory (PTX ISA, `wgmma.mma_async`).

The tensor cores run beside the threads: an iteration starts the copies of an iteration to come, starts its product, and then
waits for the product of the iteration before, so that one is always under way. A stage is therefore read until an iteration
later than by `mma`, and copies run one iteration less ahead.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.atoms import wgmma
from tilec.ir.core import Block, Op, Value
from tilec.ir.layout import Layout
from tilec.ir.ops import For, If, Yield
from tilec.ir.ops_staging import GroupMma, WaitMma
from tilec.passes.schedule.staged_products import Emitter, Product

MOST_ACCUMULATORS = 128
"""Of a thread: more leave too few of its 255 registers."""
MOST_PASSED_ON = 192
"""The same where another role starts the copies and leaves its registers."""
Behind = Callable[[For], list[Op]]
"""What stands behind a loop, given that loop."""


def suits(loop: For, products: list[Product], warps: int, most: int = MOST_ACCUMULATORS) -> bool:
    """Whether the loop is one product of whole tiles that both come by copies, rows of 128 bytes as they lie in memory, summed
    up from iteration to iteration and used by nothing else; a thread holds `most` of its elements at most."""
    if len(products) != 1 or warps % 4:
        return False
    (product,) = products
    left, right, mma = product.left, product.right, product.mma
    if left is None or right is None or left.transposed or not right.transposed:
        return False
    rows, columns = mma.result.tile.shape
    row_bytes = {operand.shape[1] * operand.load.result.tile.dtype.bytes for operand in (left, right)}
    fits = rows * columns <= most * 32 * warps
    shape = fits and rows % (wgmma.GROUP_M * (warps // 4)) == 0 and columns <= wgmma.GROUP_N_LIMIT
    body = loop.regions[0]
    users = [op for op in body.walk() for value in op.operands if value is mma.result]
    carried = [a for a, v in zip(body.arguments[1:], body.ops[-1].operands, strict=True) if v is mma.result]
    readers = [op for op in body.walk() for value in op.operands if value is mma.operands[2]]
    return (
        shape
        and row_bytes == {wgmma.GROUP_ROW_BYTES}
        and users == [body.ops[-1]]
        and carried == [mma.operands[2]]
        and readers == [mma]
    )


def multiply(product: Product, current: Value, copies: list[Op], warps: int) -> list[Op]:
    """Operations that replace the product in the loop's body: `copies`, then start it on the stage `current`, then wait for the
    one before, during which the copies were started. Its result is then what the body yields."""
    mma, out = product.mma, Emitter(list(copies))
    assert product.left is not None and product.left.buffer is not None
    assert product.right is not None and product.right.buffer is not None
    layout = _layout(product, warps)
    started = out.add(
        GroupMma(operands=[product.left.buffer, current, product.right.buffer, current, mma.operands[2]], loc=mma.loc),
        mma.result.tile,
    )
    started.layout = layout
    out.ops.append(_let_through(started, mma.result, 1, layout))
    return out.ops


def guarded(
    loop: For, product: Product, condition: Value, warps: int, *, places: int = 0, behind: Behind | None = None
) -> If:  # fmt: skip
    """The loop and the wait for its last product, where `condition` says that there is one. Else no accumulator is touched
    between a product and its wait, or ptxas would run all products one by one. The last `places` values that the loop carries
    are places in the ring, which nobody wants behind it; `behind` stands behind the wait."""
    place = loop.regions[0].ops[-1].operands.index(product.mma.result)
    kept = len(loop.results) - places
    seen, layout = loop.results[:kept], _layout(product, warps)
    loop.results = [*(Value(value.tile, value.name, loop) for value in seen), *loop.results[kept:]]
    loop.results[place].layout = layout
    wait = WaitMma(operands=[loop.results[place]], pending=0)
    wait.define(seen[place].tile)
    wait.result.layout = layout
    yielded = [*loop.results[:place], wait.result, *loop.results[place + 1 : kept]]
    branch = If(operands=[condition])
    then = [loop, wait, *(behind(loop) if behind else []), Yield(operands=yielded)]
    branch.regions = [Block(ops=then), Block(ops=[Yield(operands=list(loop.initial[:kept]))])]
    branch.results = seen
    for value in seen:
        value.owner = branch
    seen[place].layout = layout
    return branch


def _layout(product: Product, warps: int) -> Layout:
    rows, columns = product.mma.result.tile.shape
    return wgmma.group_accumulator(rows, columns, warps)


def _let_through(value: Value, result: Value, pending: int, layout: Layout) -> WaitMma:
    """`result`, which has users already, becomes `value` once its product is done."""
    wait = WaitMma(operands=[value], pending=pending)
    wait.results = [result]
    result.owner, result.layout = wait, layout
    return wait
