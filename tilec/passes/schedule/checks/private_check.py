"""Checks a block's own parts of atomic tensors (`tilec.ir.ops.private_ops`), by positions in the text alone.

In: a scheduled function. Out: nothing, or a VerifyError. Every update must reach the tensor exactly once:

- a part is allocated, filled, flushed and freed once each, by statements of the kernel in this order, in no loop and no branch;
- every update of it lies between fill and flush, in no role, and has their kind, shape and tensor;
- nothing else uses the part, and nothing else touches its tensor.

`barrier_check` finds missing barriers between the three, and between them and whatever else uses the bytes.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops.private_ops import PrivateFill, PrivateFlush, PrivateUpdate
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import Roles, SharedFree
from tilec.passes.schedule.checks.op_location import at

_PrivateOp = PrivateFill | PrivateUpdate | PrivateFlush
_ORDER = (SharedAlloc, PrivateFill, PrivateFlush, SharedFree)


def check(function: Function) -> None:
    """Raise VerifyError at the first broken rule."""
    parts: dict[Value, list[tuple[int, Op]]] = {}
    for op in function.body.walk():
        if isinstance(op, _PrivateOp):
            parts[op.part] = []
    if not parts:
        return
    for number, statement in enumerate(function.body.ops):
        for op in Block(ops=[statement]).walk():
            for part in parts.keys() & {*op.operands, *op.results}:
                parts[part].append((number, op))
            if isinstance(op, PrivateUpdate) and isinstance(statement, Roles):
                raise VerifyError(f"{at(op)}: a part belongs to all warps, and a role updates it")
    for uses in parts.values():
        _check_part(function, uses)


def _check_part(function: Function, uses: list[tuple[int, Op]]) -> None:
    own = [op for _, op in uses if isinstance(op, _PrivateOp)]
    for _, op in uses:
        if not isinstance(op, _PrivateOp | SharedAlloc | SharedFree):
            raise VerifyError(f"{at(op)} uses a part of an atomic tensor")
    positions: list[int] = []
    for kind in _ORDER:
        found = [(number, op) for number, op in uses if isinstance(op, kind)]
        if len(found) != 1 or found[0][1] is not function.body.ops[found[0][0]]:
            raise VerifyError(f"{at(own[0])}: a part has one {kind.opcode}, in no loop and no branch")
        positions.append(found[0][0])
    _, filled, flushed, _ = positions
    if sorted(positions) != positions:
        raise VerifyError(f"{at(own[0])}: a part is filled, then flushed, then freed")
    tensors = {_tensor(op) for op in own}
    if len({(op.kind, op.shape) for op in own}) > 1 or len(tensors) > 1:
        raise VerifyError(f"{at(own[0])}: a part is that of one tensor, of one kind and shape")
    for number, op in uses:
        if isinstance(op, PrivateUpdate) and not filled < number < flushed:
            raise VerifyError(f"{at(op)} updates a part that is not filled, or was flushed")
    for op in function.body.walk():
        if op not in own and any(memory in tensors for memory, _ in op.touched()):
            raise VerifyError(f"{at(op)} touches a tensor of which the block has a part")


def _tensor(op: _PrivateOp) -> Value:
    return op.operands[0] if isinstance(op, PrivateFlush) else op.operands[1]
