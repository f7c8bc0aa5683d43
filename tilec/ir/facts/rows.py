"""Which rows of a tensor a block accesses: rows distinguish the sequences of a batch."""

from __future__ import annotations

from tilec.ir.core import Function, Value
from tilec.ir.ops import BlockId, MemoryOp


def row_axis(function: Function, tensor: Value) -> int | None:
    """The grid axis whose block id is the row, the coordinate on the tensor's first axis, of every access. None if some access
    has another row, spans several rows, or the tensor is not accessed."""
    found: set[int | None] = set()
    for op in function.body.walk():
        if isinstance(op, MemoryOp) and op.tensor is tensor:
            (row, *_), tile = op.indices, op.tile.tile
            single = not op.indexed and (tile.rank == 0 or tile.shape[0] == 1)
            found.add(row.owner.axis if single and isinstance(row.owner, BlockId) else None)
    return found.pop() if len(found) == 1 else None
