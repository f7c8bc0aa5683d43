"""Checks who signals, and that groups of four warps access their own tile of tensor memory alone.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. `tmem_order` has the order of accesses. Rules:

- Threads of one role send a sequence of signals, each with as many arrivals as a part has warps; or products do, with one.
- A role with parts of its own begins at a multiple of four warps, and has four for each part.
- Threads load, store and scale by rows (`tilec.atoms.tcgen05_rows`): a thread has one row, in a lane that its warp can access,
  of the tile of its group.
- Signals order what a product of a tile reads and writes in tensor memory.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Function, Op, Value, VerifyError
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops.signal_ops import OWN, Signal, SignalMma, SignalOp, Signals
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemOperandMma, TmemRows, TmemStore
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemLoad
from tilec.ir.types import TMEM_LANES
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.tmem_order import is_signalled

GROUP: Final = 4
"""Warps that access the lanes of a tile."""
WARP: Final = 32


def check(function: Function) -> None:
    """Raise VerifyError at the first broken rule. Kernels without signals pass."""
    sequences = [op for op in function.body.walk() if isinstance(op, Signals)]
    roles = [op for op in function.body.ops if isinstance(op, Roles)]
    inside = {inner for op in roles for region in op.regions for inner in region.walk()}
    for op in function.body.walk():
        if isinstance(op, SignalOp) and op not in inside:
            raise VerifyError(f"{at(op)} belongs to a role")
        if isinstance(op, TileProduct):
            buffers = [op.accumulator, *([op.left] if isinstance(op, TmemOperandMma) else [])]
            if not all(is_signalled(buffer) for buffer in buffers):
                raise VerifyError(f"{at(op)}: signals order what it reads and writes in tensor memory")
    for op in sequences:
        if op not in function.body.ops:
            raise VerifyError(f"{at(op)} is made once, outside of loops, branches and roles")
        _check_senders(op, roles)
    for op in roles:
        first = 0
        for region, warps in zip(op.regions, op.warps, strict=True):
            for inner in region.walk():
                _check_threads(inner, first, warps)
            first += warps


def _check_senders(op: Signals, roles: list[Roles]) -> None:
    senders = [
        (warps, [inner for inner in region.walk() if isinstance(inner, Signal | SignalMma) and inner.ring is op.result])
        for one in roles
        for region, warps in zip(one.regions, one.warps, strict=True)
    ]
    senders = [(warps, found) for warps, found in senders if found]
    if len(senders) != 1 or len({type(inner) for inner in senders[0][1]}) != 1:
        raise VerifyError(f"{at(op)}: threads of one role send the signals, or products that it starts")
    ((warps, found),) = senders
    if isinstance(found[0], SignalMma):
        arrivals = 1
    elif all(inner.part == OWN for inner in found):
        arrivals = GROUP
    else:
        arrivals = warps
    if op.arrivals != arrivals:
        raise VerifyError(f"{at(op)}: {op.arrivals} arrivals of a signal, and {arrivals} come")


def _check_threads(op: Op, first: int, warps: int) -> None:
    """Check the threads of a role, whose warps begin with `first`."""
    if isinstance(op, SignalOp) and op.part == OWN:
        if isinstance(op, SignalMma) or first % GROUP or warps != GROUP * op.signals.parts:
            raise VerifyError(f"{at(op)}: warps {first} to {first + warps - 1} are not {GROUP} for each part")
    elif isinstance(op, TmemLoad) and is_signalled(op.buffer):
        _check_rows(op, op.result.layout, op.buffer, first, warps)
    elif isinstance(op, TmemStore):
        _check_rows(op, op.matrix.layout, op.buffer, first, warps)
    elif isinstance(op, TmemRows):
        _check_rows(op, op.values.layout, op.buffer, first, warps)


def _check_rows(op: Op, layout: Layout | None, buffer: Value, first: int, warps: int) -> None:
    """Check by enumeration that each thread has its own row and whole rows, in order."""
    alloc = buffer.owner
    assert isinstance(alloc, TmemAlloc) and layout is not None
    parts = alloc.ring.owner.parts if isinstance(alloc.ring.owner, Signals) else 0
    rows = buffer.tmem.shape[0]
    if first % GROUP or warps != GROUP * parts or rows != parts * TMEM_LANES:
        raise VerifyError(f"{at(op)}: warps {first} to {first + warps - 1} are not {GROUP} for each tile of {rows} rows")
    for warp in range(warps):
        for lane in range(WARP):
            row = (warp // GROUP) * TMEM_LANES + (warp % GROUP) * WARP + lane
            for register in range(layout.num_registers):
                if layout.coordinates(register, lane, warp) != (row, register)[: layout.rank]:
                    raise VerifyError(f"{at(op)}: {layout} does not give each thread a row of its warp's lanes")
