"""Where a block waits for the kernel before it, and lets the next one come; how many tiles there are, and blocks for them."""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Access
from tilec.ir.ops_launch import GridExtent, LaunchedBlocks, WaitPrior
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.mlir.types import GLOBAL, i32, i64

LAST_BLOCKS: Final = 2048
"""Blocks that may be on the chip at once, about: earlier ones need not tell that the next kernel may come."""


@lowers(LaunchedBlocks)
def lower_launched_blocks(context: Context, op: LaunchedBlocks) -> None:
    """What the hardware counts."""
    context.assign(op.result, [context.special_register("nctaid.x")])


@lowers(GridExtent)
def lower_grid_extent(context: Context, op: GridExtent) -> None:
    """The launch expression; the launcher has its value in i32."""
    context.assign(op.result, [context.trunc(context.host(context.function.grid[op.axis]), i32)])


@lowers(WaitPrior)
def lower_wait_prior(context: Context, op: WaitPrior) -> None:
    """The next kernel may come only once this one has begun: with more of them waiting, their blocks pile up where there
    happens to be room, and run there in the end, beside idle multiprocessors. A schedule may say otherwise of a kernel that
    has few blocks, behind which one comes that has much to read early.

    Tensors that are not resident, or that the kernel writes, are named anew behind the wait: LLVM can then move nothing that
    reads them in front of it, which it could where a load is text without side effects. What the assembler may move, `Path`
    tells.
    """
    if op.before:
        _let_next_come(context)
    context.inline_ptx("griddepcontrol.wait;", "~{memory}", side_effects=True)
    context.waits = False
    if not op.before:
        _let_next_come(context)
    for parameter in context.function.parameters:
        resident = parameter.access is Access.IN and context.function.is_resident(parameter.value)
        if parameter.access is None or resident:
            continue
        address = context.address(context.pointer(parameter.value), i64)
        (renamed,) = context.inline_ptx("mov.b64 $0, $1;", "=l,l", [address], [i64], side_effects=True)
        context.assign(parameter.value, [context.pointer_to(renamed, GLOBAL)])


def _let_next_come(context: Context) -> None:
    block, count = context.special_register("ctaid.x"), context.special_register("nctaid.x")
    with context.where(context.compare("uge", context.add(block, LAST_BLOCKS), count)):
        context.inline_ptx("griddepcontrol.launch_dependents;", "", side_effects=True)
