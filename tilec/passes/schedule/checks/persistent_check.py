"""Checks, independently of `persistent`, that persistent blocks process every tile exactly once.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. With b launched blocks, block + turn * b for
turns below (extent - 1 - block) // b + 1 takes every value below the extent exactly once. All uses of the block index and of
the number of launched blocks must have this form: they occur only in such loops, every role has one, and nothing outside of
these loops accesses a tensor. If n consumers process tiles round-robin, their loops have step n and different start values
below n; the other role iterates over all tiles and writes no tensor.

In this form nothing wraps, so unbounded arithmetic equals i32: the extent is 1 to 2^31 - 1, a block index is below it, and so
is the tile of every iteration that runs. With a step above 1, the loop variable one step after a role's last iteration may
exceed i32; lowering compares it as unsigned (`tilec.lowering.control`).
"""

from __future__ import annotations

from tilec.ir.core import Effect, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, BinaryInRange, BlockId, Constant, For, NumBlocks
from tilec.ir.ops.launch_ops import GridExtent, LaunchedBlocks
from tilec.ir.ops.sync_ops import Roles


def check(function: Function) -> None:
    """Raise VerifyError if a tile may be skipped, or be processed twice. Kernels whose blocks process one tile each pass."""
    ops = list(function.body.walk())
    if not any(isinstance(op, LaunchedBlocks) for op in ops):
        return
    loops = _tile_loops(function)
    allowed: set[Op] = set()
    for loop in loops:
        allowed |= _iteration_count_ops(loop) | _tile_ops(loop)
    _check_round_robin(loops)
    for op in ops:
        if isinstance(op, NumBlocks):
            raise VerifyError(f"{op.opcode}: fewer blocks run than the grid has")
        numbers = [value.owner for value in op.operands if isinstance(value.owner, BlockId | LaunchedBlocks)]
        if numbers and op not in allowed:
            raise VerifyError(f"{op.opcode}: the number of a block is not that of its tile")


def _tile_loops(function: Function) -> list[For]:
    """The tile loop of each role, or the one of all threads. VerifyError if an operation outside of these accesses a tensor."""
    roles = [op for op in function.body.ops if isinstance(op, Roles)]
    blocks = [region for op in roles for region in op.regions] or [function.body]
    found = [[op for op in block.ops if isinstance(op, For)] for block in blocks]
    if any(len(loops) != 1 for loops in found):
        raise VerifyError(f"{function.name}: every role goes through its tiles in one loop")
    loops = [loop for (loop,) in found]
    inside = {op for loop in loops for op in loop.regions[0].walk()}
    for op in function.body.walk():
        if op not in inside and op.effect in (Effect.READ, Effect.WRITE, Effect.ATOMIC):
            raise VerifyError(f"{op.opcode}: it is of no tile")
    return loops


def _check_round_robin(loops: list[For]) -> None:
    """Check that every iteration belongs to exactly one consumer if consumers process tiles round-robin."""
    starts: dict[int, list[int]] = {}
    for loop in loops:
        start, step = _number(loop.lower), _number(loop.step)
        if start is None or step is None or not 0 <= start < step:
            raise VerifyError(f"{loop.opcode}: turns that are not those of a block's tiles")
        starts.setdefault(step, []).append(start)
    shared_steps = [step for step in starts if step > 1]
    if len(shared_steps) > 1 or any(sorted(starts[step]) != list(range(step)) for step in shared_steps):
        raise VerifyError(f"{loops[0].opcode}: a tile is taken by several roles, or by none")
    for loop in loops if shared_steps else ():
        writes = any(op.effect in (Effect.WRITE, Effect.ATOMIC) for op in loop.regions[0].walk())
        if writes and _number(loop.step) == 1:
            raise VerifyError(f"{loop.opcode}: one role writes all tiles that others share")


def _iteration_count_ops(loop: For) -> set[Op]:
    """Operations that compute a loop's iteration count, (extent - 1 - block) // blocks + 1; VerifyError for another form."""
    iterations_less_one, one = _operands(loop.upper, "add")
    blocks_after, blocks = _operands(iterations_less_one, "floordiv")
    last, block = _operands(blocks_after, "sub")
    extent, subtrahend = _operands(last, "sub")
    numbers = [_number(value) for value in (one, subtrahend)]
    owners_match = (
        isinstance(extent.owner, GridExtent) and isinstance(block.owner, BlockId) and isinstance(blocks.owner, LaunchedBlocks)
    )
    if numbers != [1, 1] or not owners_match:
        raise VerifyError(f"{loop.opcode}: turns that are not those of a block's tiles")
    return {owner for value in (iterations_less_one, blocks_after) if isinstance(owner := value.owner, Op)}


def _tile_ops(loop: For) -> set[Op]:
    """Operations that compute an iteration's tile, block + turn * blocks; VerifyError if the loop variable has other uses."""
    iteration = loop.regions[0].arguments[0]
    users = [op for op in loop.regions[0].walk() if iteration in op.operands]
    offsets = [
        op for op in users if isinstance(op, Binary) and op.kind == "mul" and isinstance(op.operands[1].owner, LaunchedBlocks)
    ]
    sums = [op for op in loop.regions[0].walk() if any(offset.result in op.operands for offset in offsets)]
    if users != offsets or any(offset.operands[0] is not iteration for offset in offsets):
        raise VerifyError(f"{loop.opcode}: its iterations are used for more than the tile")
    for op in sums:
        if not (isinstance(op, Binary) and op.kind == "add" and isinstance(op.operands[0].owner, BlockId)):
            raise VerifyError(f"{op.opcode}: a tile is block + turn * blocks")
    return {*offsets, *sums}


def _operands(value: Value, kind: str) -> tuple[Value, Value]:
    op = value.owner
    if not isinstance(op, Binary | BinaryInRange) or op.kind != kind:
        raise VerifyError(f"{value.name or 'a value'}: turns that are not those of a block's tiles")
    return op.operands[0], op.operands[1]


def _number(value: Value) -> int | None:
    return int(value.owner.value) if isinstance(value.owner, Constant) else None
