"""Which bytes of dynamic shared memory are allocated at each operation of a kernel.

A buffer, scratch or ring lives from the operation that makes it to its `shared_free`, including regions in between; without
one, to the end of its block.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops.signal_ops import Signals
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import Ring, SharedFree
from tilec.ir.ops.tmem_ops import TmemReserve

Allocation = SharedAlloc | Ring | Signals | TmemReserve
"""An operation that takes bytes of dynamic shared memory."""
WIDEST_ACCESS: Final = 16
"""Bytes of the widest read or write of one thread (PTX ISA, vectors)."""


def interval(op: Allocation) -> tuple[int, int]:
    """First byte of an allocation and the byte after its last."""
    return op.offset, op.offset + op.bytes


def taken_bytes(function: Function) -> dict[Op, int]:
    """For every operation, the end of the allocated bytes of dynamic shared memory while it runs."""
    return {op: max((interval(allocation)[1] for allocation in live), default=0) for op, live in live_shared(function).items()}


def live_shared(function: Function) -> dict[Op, tuple[Allocation, ...]]:
    """For every operation, the allocations that are live while it runs, its own included."""
    found: dict[Op, tuple[Allocation, ...]] = {}
    _visit(function.body, {}, found)
    return found


def scratch_offset(allocated: int) -> int:
    """Where scratch begins after `allocated` bytes."""
    return (allocated + 127) // 128 * 128


def shared_bytes(function: Function) -> int:
    """Dynamic shared memory of a block.

    A multiple of `WIDEST_ACCESS`: LLVM may merge narrow reads into one aligned read that extends past the last byte in use."""
    end = max((interval(op)[1] for op in function.body.walk() if isinstance(op, Allocation)), default=0)
    return end + -end % WIDEST_ACCESS


def _visit(
    block: Block, live: dict[Value, Allocation], found: dict[Op, tuple[Allocation, ...]]
) -> None:  # fmt: skip
    live = dict(live)
    for op in block.ops:
        if isinstance(op, Allocation):
            live[op.result] = op
        found[op] = tuple(live.values())
        for region in op.regions:
            _visit(region, live, found)
        if isinstance(op, SharedFree):
            for value in op.operands:
                live.pop(value, None)
