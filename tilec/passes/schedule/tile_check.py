"""Checks that blocks which take tile after tile take each tile once: a second opinion on `persistent`.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. With b blocks that run, block + turn * b for
turns below (extent - 1 - block) // b + 1 are the tiles below the extent, each once. So all that is said of blocks that run must
be of that form: numbers of blocks are used in such loops alone, every role goes through one, and nothing is left in front of it
that touches memory. Roles that take tiles in turns are as many as the step of their loops, and begin at different turns below
it; another role goes through all of them, and writes no tensor.

What has this form fits in i32, so that counting without end is the machine's own: the extent is from 1 to 2^31 - 1, a block's
place is below it, and so is each tile of a turn that runs. The turn behind a role's last may be past i32 where its step is more
than 1; lowering compares it without a sign (`tilec.lowering.control`).
"""

from __future__ import annotations

from tilec.ir.core import Effect, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, BinaryInRange, BlockId, Constant, For, NumBlocks
from tilec.ir.ops_launch import GridExtent, LaunchedBlocks
from tilec.ir.ops_sync import Roles


def check(function: Function) -> None:
    """Raise VerifyError where a tile may be left out, or be two blocks'. Kernels whose blocks take one tile each pass."""
    ops = list(function.body.walk())
    if not any(isinstance(op, LaunchedBlocks) for op in ops):
        return
    loops = _tile_loops(function)
    allowed: set[Op] = set()
    for loop in loops:
        allowed |= _count(loop) | _tile(loop)
    _check_shares(loops)
    for op in ops:
        if isinstance(op, NumBlocks):
            raise VerifyError(f"{op.opcode}: fewer blocks run than the grid has")
        numbers = [value.owner for value in op.operands if isinstance(value.owner, BlockId | LaunchedBlocks)]
        if numbers and op not in allowed:
            raise VerifyError(f"{op.opcode}: the number of a block is not that of its tile")


def _tile_loops(function: Function) -> list[For]:
    """The loop of each role, or the one of all threads. Beside them stands nothing that reads or writes a tensor."""
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


def _check_shares(loops: list[For]) -> None:
    """Each turn is one role's where roles share them."""
    begins: dict[int, list[int]] = {}
    for loop in loops:
        begin, step = _number(loop.lower), _number(loop.step)
        if begin is None or step is None or not 0 <= begin < step:
            raise VerifyError(f"{loop.opcode}: turns that are not those of a block's tiles")
        begins.setdefault(step, []).append(begin)
    shared = [step for step in begins if step > 1]
    if len(shared) > 1 or any(sorted(begins[step]) != list(range(step)) for step in shared):
        raise VerifyError(f"{loops[0].opcode}: a tile is taken by several roles, or by none")
    for loop in loops if shared else ():
        writes = any(op.effect in (Effect.WRITE, Effect.ATOMIC) for op in loop.regions[0].walk())
        if writes and _number(loop.step) == 1:
            raise VerifyError(f"{loop.opcode}: one role writes all tiles that others share")


def _count(loop: For) -> set[Op]:
    """What says how many turns a loop makes: (extent - 1 - block) // blocks + 1."""
    others, one = _operands(loop.upper, "add")
    rest, blocks = _operands(others, "floordiv")
    last, block = _operands(rest, "sub")
    extent, less = _operands(last, "sub")
    numbers = [_number(value) for value in (one, less)]
    right = (
        isinstance(extent.owner, GridExtent) and isinstance(block.owner, BlockId) and isinstance(blocks.owner, LaunchedBlocks)
    )
    if numbers != [1, 1] or not right:
        raise VerifyError(f"{loop.opcode}: turns that are not those of a block's tiles")
    return {owner for value in (others, rest) if isinstance(owner := value.owner, Op)}


def _tile(loop: For) -> set[Op]:
    """What makes the tile of a turn, block + turn * blocks; nothing else takes the turn."""
    turn = loop.regions[0].arguments[0]
    users = [op for op in loop.regions[0].walk() if turn in op.operands]
    steps = [
        op for op in users if isinstance(op, Binary) and op.kind == "mul" and isinstance(op.operands[1].owner, LaunchedBlocks)
    ]
    sums = [op for op in loop.regions[0].walk() if any(step.result in op.operands for step in steps)]
    if users != steps or any(step.operands[0] is not turn for step in steps):
        raise VerifyError(f"{loop.opcode}: its turns are used for more than the tile")
    for op in sums:
        if not (isinstance(op, Binary) and op.kind == "add" and isinstance(op.operands[0].owner, BlockId)):
            raise VerifyError(f"{op.opcode}: a tile is block + turn * blocks")
    return {*steps, *sums}


def _operands(value: Value, kind: str) -> tuple[Value, Value]:
    op = value.owner
    if not isinstance(op, Binary | BinaryInRange) or op.kind != kind:
        raise VerifyError(f"{value.name or 'a value'}: turns that are not those of a block's tiles")
    return op.operands[0], op.operands[1]


def _number(value: Value) -> int | None:
    return int(value.owner.value) if isinstance(value.owner, Constant) else None
