"""Which bytes of dynamic shared memory are taken where in a kernel.

The buffers of a pipelined loop are taken from their `shared_alloc` to the `wait_copies {pending = 0}` that closes the
pipeline; its barrier makes the bytes free for whatever comes next, scratch of layout conversions included.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op
from tilec.ir.ops_staging import SharedAlloc, WaitCopies


def taken_bytes(function: Function) -> dict[Op, int]:
    """For every operation, how many bytes from the start of dynamic shared memory buffers take while it runs."""
    taken: dict[Op, int] = {}
    _visit(function.body, 0, taken)
    return taken


def scratch_offset(taken: dict[Op, int], op: Op) -> int:
    """Where the scratch of an operation begins, bytes from the start of dynamic shared memory: behind all live buffers."""
    return (taken.get(op, 0) + 127) // 128 * 128


def _visit(block: Block, entry: int, taken: dict[Op, int]) -> None:
    current = entry
    for op in block.ops:
        if isinstance(op, SharedAlloc):
            current = max(current, op.offset + op.result.shared.bytes)
        taken[op] = current
        for region in op.regions:
            _visit(region, current, taken)
        if isinstance(op, WaitCopies) and op.pending == 0:
            current = entry
