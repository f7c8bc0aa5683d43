"""Checks the use of tensor memory: allocation, lifetimes, and who accesses which lanes.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. `ring_check` has the order of accesses. Rules
(PTX ISA, "Tensor Memory Allocation and Management", "tcgen05.ld"):

- A block allocates once, outside of loops, branches and roles, so that sizes never grow; the verifier of `tmem_reserve` has the
  sizes that exist. A barrier of the block precedes every `tmem_alloc`, which reads the address.
- Buffers in one space have columns of their own.
- The last operation of the kernel frees the columns, after the roles that use them; a barrier of the block follows the roles.
- A load is by whole groups of four warps, the first one a multiple of four; each warp loads the lanes that it can access, in
  the layout that the instruction has.
- A product is one that instructions of the family can compute. Its thread is elected, one in each warp, so a role of one thread
  has one warp.
- `signal_check` has the rules of signals, and of threads that have rows of their own.
"""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from typing import Final

from tilec.atoms import tcgen05
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import Barrier, Roles
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemOperandMma
from tilec.ir.ops.tmem_ops import ThreadProduct, TmemAccess, TmemAlloc, TmemFree, TmemLoad, TmemReserve
from tilec.ir.types import TMEM_LANES
from tilec.passes.schedule.checks import signal_check
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.tmem_order import is_signalled
from tilec.target.families import TCGEN05
from tilec.target.targets import Target

QUARTERS: Final = 4
"""Warps of a group, each of which accesses a quarter of the lanes."""
_USES: Final = (ThreadProduct, TmemAccess)
_OPS: Final = (TmemReserve, TmemAlloc, *_USES, TmemFree)


def check(function: Function, target: Target) -> None:
    """Raise VerifyError at the first broken rule. Kernels without tensor memory pass."""
    found: list[Op] = [op for op in function.body.walk() if isinstance(op, _OPS)]
    if not found:
        return
    if not target.has(TCGEN05):
        raise VerifyError(f"{at(found[0])}: {target} has no tensor memory")
    _check_lifetime(function, found)
    _check_columns([op for op in found if isinstance(op, TmemAlloc)])
    for op in found:
        if isinstance(op, ThreadProduct):
            _check_product(op, target)
    for op in function.body.ops:
        if isinstance(op, Roles) and any(alone and warps > 1 for alone, warps in zip(op.alone, op.warps, strict=True)):
            raise VerifyError(f"{at(op)}: one thread of each warp is elected, so a role of one thread has one warp")
        first = 0
        for region, warps in zip(op.regions, op.warps if isinstance(op, Roles) else (), strict=False):
            for inner in region.walk():
                if isinstance(inner, TmemLoad) and not is_signalled(inner.buffer):
                    _check_load(inner, first, warps)
            first += warps
    loads = {inner for op in function.body.ops if isinstance(op, Roles) for region in op.regions for inner in region.walk()}
    for op in found:
        if isinstance(op, _USES) and op not in loads:
            raise VerifyError(f"{at(op)} belongs to a role")
    signal_check.check(function)


def _check_lifetime(function: Function, found: list[Op]) -> None:
    ops = function.body.ops
    reserved, freed = ([op for op in found if isinstance(op, kind)] for kind in (TmemReserve, TmemFree))
    if len(reserved) != 1 or reserved[0] not in ops:
        raise VerifyError(f"{function.name}: a block allocates tensor memory once, outside of loops, branches and roles")
    if len(freed) != 1 or ops[-1] is not freed[0] or freed[0].operands[0] is not reserved[0].result:
        raise VerifyError(f"{function.name}: the last operation frees the tensor memory that was allocated")
    for op in found:
        if not isinstance(op, TmemAlloc):
            continue
        between = ops[ops.index(reserved[0]) : ops.index(op)] if op in ops else []
        if not any(isinstance(one, Barrier) and one.scope in ("block", "cluster") for one in between):
            raise VerifyError(f"{at(op)} reads the address of its columns before a barrier of the block")
    users = [op for op in ops if any(isinstance(inner, _USES) for region in op.regions for inner in region.walk())]
    if any(not isinstance(op, Roles) for op in users):
        raise VerifyError(f"{at(users[0])}: roles alone use tensor memory, so that a barrier precedes its end")


def _check_columns(allocs: list[TmemAlloc]) -> None:
    for one, other in combinations(allocs, 2):
        if one.column < other.end and other.column < one.end:
            raise VerifyError(f"{at(other)} takes columns of another buffer")


def _check_product(op: ThreadProduct, target: Target) -> None:
    if op.family != TCGEN05.name:
        raise VerifyError(f"{at(op)}: `{op.family}` has no accumulators in tensor memory")
    shape, (rows, columns) = TCGEN05.shape, op.accumulator.tmem.shape
    rows = TMEM_LANES if isinstance(op, TileProduct) else rows
    depth = op.operands[2].shared.shape[0] if isinstance(op, TmemOperandMma) else op.operands[0].shared.shape[1]
    dtype = op.operands[2].shared.dtype
    if not target.multiplies(TCGEN05, [buffer.shared.dtype for buffer, _ in op.reads]):
        raise VerifyError(f"{at(op)}: {target} has no products of {dtype} in tensor memory")
    if depth % shape.depth_of(dtype.bits) or rows % shape.rows or not TCGEN05.has_columns(columns, dtype, op.blocks):
        raise VerifyError(f"{at(op)}: no instruction computes {rows} x {columns} x {depth}")
    for buffer, _ in op.reads:
        alloc = buffer.owner
        if not isinstance(alloc, SharedAlloc) or alloc.alignment % TCGEN05.stage_alignment:
            raise VerifyError(f"{at(op)}: its matrices begin at multiples of {TCGEN05.stage_alignment} bytes")
        if buffer.shared.width * buffer.shared.dtype.bytes != TCGEN05.row_bytes:
            raise VerifyError(f"{at(op)}: its matrices lie in rows of {TCGEN05.row_bytes} bytes")
    if not isinstance(op.accumulator.owner, TmemAlloc):
        raise VerifyError(f"{at(op)}: its accumulator is in no buffer")


def _check_load(op: TmemLoad, first_warp: int, warps: int) -> None:
    """Check by enumeration that the elements of each warp are in its lanes."""
    if first_warp % QUARTERS or warps % QUARTERS:
        raise VerifyError(f"{at(op)}: warps {first_warp} to {first_warp + warps - 1} are no groups of {QUARTERS}")
    layout, rows = op.result.layout, op.buffer.tmem.shape[0]
    if layout is None or layout.problem(op.buffer.tmem.shape, warps) is not None or layout.is_replicated:
        raise VerifyError(f"{at(op)}: {layout} does not distribute the matrix")
    for warp in range(warps):
        if any(_lane(row, rows) // (TMEM_LANES // QUARTERS) != warp % QUARTERS for row in _rows(layout, warp)):
            raise VerifyError(f"{at(op)}: warp {warp} loads lanes of another warp")
    if not tcgen05.fits(*op.buffer.tmem.shape, warps) or layout != tcgen05.accumulator(*op.buffer.tmem.shape, warps):
        raise VerifyError(f"{at(op)}: no load has the layout {layout}")


def _lane(row: int, rows: int) -> int:
    """The lane of a row of an accumulator (PTX ISA, "Data path layout": D of M 128, F of M 64)."""
    return row % TMEM_LANES if rows % TMEM_LANES == 0 else row // 16 * 32 + row % 16


def _rows(layout: Layout, warp: int) -> set[int]:
    """All rows of the elements that a warp has."""
    own = [digit for digit in (*layout.registers, *layout.lanes) if digit.axis == 0]
    steps = product(*(range(digit.extent) for digit in own))
    first = _warp_row(layout.warps, warp)
    return {first + sum(step * digit.stride for step, digit in zip(each, own, strict=True)) for each in steps}


def _warp_row(digits: tuple[Digit, ...], warp: int) -> int:
    row = 0
    for position, digit in enumerate(digits):
        step = warp // prod(one.extent for one in digits[:position]) % digit.extent
        row += step * digit.stride if digit.axis == 0 else 0
    return row
