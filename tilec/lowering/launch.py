"""Where a block waits for the kernel before it, and lets the next one come."""

from __future__ import annotations

from typing import Final

from tilec.ir.ops_launch import WaitPrior
from tilec.lowering.context import Context
from tilec.lowering.tensor_core import GLOBAL, arith, compare

LAST_BLOCKS: Final = 2048
"""Blocks that may be on the chip at once, about: earlier ones need not tell that the next kernel may come."""


def lower_wait_prior(context: Context, _: WaitPrior) -> None:
    """The next kernel may come only once this one has begun: with more of them waiting, their blocks pile up where there
    happens to be room, and run there in the end, beside idle multiprocessors.

    Tensors are named anew behind the wait: nothing that reads them can then be moved in front of it, which loads marked
    invariant otherwise could.
    """
    context.effect('llvm.inline_asm has_side_effects "griddepcontrol.wait;", "~{memory}" : () -> ()')
    block, count = (context.value(f"nvvm.read.ptx.sreg.{name}.x : i32") for name in ("ctaid", "nctaid"))
    last = compare(context, "uge", arith(context, "add", block, LAST_BLOCKS), count)
    context.effect(f"scf.if {last} {{")
    context.effect('llvm.inline_asm has_side_effects "griddepcontrol.launch_dependents;", "" : () -> ()')
    context.effect("}")
    for parameter in context.function.parameters:
        if parameter.access is None:
            continue
        address = context.value(f"llvm.ptrtoint {context.pointer(parameter.value)} : {GLOBAL} to i64")
        renamed = context.value(f'llvm.inline_asm has_side_effects "mov.b64 $0, $1;", "=l,l" {address} : (i64) -> i64')
        context.assign(parameter.value, [context.value(f"llvm.inttoptr {renamed} : i64 to {GLOBAL}")])
