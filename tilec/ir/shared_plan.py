"""Which bytes of dynamic shared memory are taken where in a kernel.

Buffers, scratch and rings take theirs from the operation that makes them to the `shared_free` that names them, regions in
between included; without one, to the end of the block they are made in.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops_staging import SharedAlloc
from tilec.ir.ops_sync import Ring, SharedFree

WIDEST_ACCESS: Final = 16
"""Bytes of the widest read or write of one thread (PTX ISA, vectors)."""


def interval(op: SharedAlloc | Ring) -> tuple[int, int]:
    """The first byte that it takes and the one behind the last."""
    return op.offset, op.offset + op.bytes


def taken_bytes(function: Function) -> dict[Op, int]:
    """For every operation, how many bytes from the start of dynamic shared memory are taken while it runs."""
    return {op: max((interval(one)[1] for one in live), default=0) for op, live in live_shared(function).items()}


def live_shared(function: Function) -> dict[Op, tuple[SharedAlloc | Ring, ...]]:
    """For every operation, what takes shared memory while it runs, itself included."""
    found: dict[Op, tuple[SharedAlloc | Ring, ...]] = {}
    _visit(function.body, {}, found)
    return found


def scratch_offset(taken: int) -> int:
    """Where scratch begins behind so many bytes that are taken."""
    return (taken + 127) // 128 * 128


def shared_bytes(function: Function) -> int:
    """Dynamic shared memory that a block takes.

    A multiple of `WIDEST_ACCESS`: LLVM may join narrow reads into one aligned read that goes past the last byte in use."""
    most = max((interval(op)[1] for op in function.body.walk() if isinstance(op, SharedAlloc | Ring)), default=0)
    return most + -most % WIDEST_ACCESS


def _visit(
    block: Block, live: dict[Value, SharedAlloc | Ring], found: dict[Op, tuple[SharedAlloc | Ring, ...]]
) -> None:  # fmt: skip
    live = dict(live)
    for op in block.ops:
        if isinstance(op, SharedAlloc | Ring):
            live[op.result] = op
        found[op] = tuple(live.values())
        for region in op.regions:
            _visit(region, live, found)
        if isinstance(op, SharedFree):
            for value in op.operands:
                live.pop(value, None)
