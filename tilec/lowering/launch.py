"""Programmatic dependent launch (`griddepcontrol`), the number of launched blocks and the grid extent."""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Access
from tilec.ir.ops.launch_ops import DependencyWait, GridExtent, LaunchedBlocks
from tilec.lowering.context import Context
from tilec.lowering.pairs import tile_blocks
from tilec.lowering.rules import lowers
from tilec.mlir.types import GLOBAL, i32, i64

LAST_BLOCKS: Final = 2048
"""Approximate number of blocks that can be resident on the GPU at once. Only the last `LAST_BLOCKS` blocks of a grid issue
`launch_dependents`; earlier blocks signal by exiting."""


@lowers(LaunchedBlocks)
def lower_launched_blocks(context: Context, op: LaunchedBlocks) -> None:
    """`%nctaid.x`; the pairs in it, if blocks form pairs."""
    context.assign(op.result, [tile_blocks(context, "nctaid", 0)])


@lowers(GridExtent)
def lower_grid_extent(context: Context, op: GridExtent) -> None:
    """The launch expression as i32; the launcher ensures that its value fits."""
    context.assign(op.result, [context.trunc(context.launch_value(context.function.grid[op.axis]), i32)])


@lowers(DependencyWait)
def lower_dependency_wait(context: Context, op: DependencyWait) -> None:
    """By default, `launch_dependents` follows this kernel's own wait. If several later kernels were resident and waiting, their
    blocks would accumulate on whichever multiprocessors have room and finally run there, while others are idle. A schedule may
    set `before` for a kernel with few blocks whose successor has many prologue loads.

    After the wait, tensors that are not resident, or that the kernel writes, get new names: LLVM then cannot move their loads
    above the wait, which it could otherwise do if a load is inline PTX without side effects. `Path` describes what ptxas may
    move.
    """
    if op.before:
        _launch_dependents(context)
    context.inline_ptx("griddepcontrol.wait;", "~{memory}", side_effects=True)
    context.precedes_wait = False
    if not op.before:
        _launch_dependents(context)
    for parameter in context.function.parameters:
        resident = parameter.access is Access.IN and context.function.is_resident(parameter.value)
        if parameter.access is None or resident:
            continue
        address = context.address(context.pointer(parameter.value), i64)
        (renamed,) = context.inline_ptx("mov.b64 $0, $1;", "=l,l", [address], [i64], side_effects=True)
        context.assign(parameter.value, [context.pointer_to(renamed, GLOBAL)])


def _launch_dependents(context: Context) -> None:
    block, count = context.special_register("ctaid.x"), context.special_register("nctaid.x")
    with context.where(context.compare("uge", context.add(block, LAST_BLOCKS), count)):
        context.inline_ptx("griddepcontrol.launch_dependents;", "", side_effects=True)
