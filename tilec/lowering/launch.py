"""The start of a block: what it asks for ahead, and where it waits for the kernels before it."""

from __future__ import annotations

from math import prod
from typing import Final

from tilec.ir.ops_launch import Prefetch, WaitPrior
from tilec.lowering.context import Context
from tilec.lowering.tensor_core import GLOBAL, arith, compare, number, offset_pointer

LINE: Final = 128
"""Bytes of a line of the L2 cache."""

FIRST_BLOCKS: Final = 2048
"""Blocks that may be on the chip at once; later ones find no kernel before them still running, so they ask for nothing."""


def lower_wait_prior(context: Context, _: WaitPrior) -> None:
    """Tensors are named anew behind the wait: nothing that reads them can then be moved in front of it, which loads marked
    invariant otherwise could."""
    context.effect('llvm.inline_asm has_side_effects "griddepcontrol.launch_dependents;", "" : () -> ()')
    context.effect('llvm.inline_asm has_side_effects "griddepcontrol.wait;", "~{memory}" : () -> ()')
    for parameter in context.function.parameters:
        if parameter.access is None:
            continue
        address = context.value(f"llvm.ptrtoint {context.pointer(parameter.value)} : {GLOBAL} to i64")
        renamed = context.value(f'llvm.inline_asm has_side_effects "mov.b64 $0, $1;", "=l,l" {address} : (i64) -> i64')
        context.assign(parameter.value, [context.value(f"llvm.inttoptr {renamed} : i64 to {GLOBAL}")])


def lower_prefetch(context: Context, op: Prefetch) -> None:
    """One request per line, spread over the threads (PTX ISA, `prefetch`)."""
    tensor, size = op.source, op.source.tensor.dtype.bytes
    *rows, columns = op.shape
    lines = -(-columns * size // LINE)
    total = prod(rows) * lines
    block = context.value("nvvm.read.ptx.sreg.ctaid.x : i32")
    context.effect(f"scf.if {compare(context, 'ult', block, number(context, FIRST_BLOCKS))} {{")
    offsets = [context.value(f"llvm.sext {context.scalar(offset)} : i32 to i64") for offset in op.offsets]
    for first in range(0, total, context.threads):
        index = arith(context, "add", context.thread(), first) if first else context.thread()
        inside = compare(context, "ult", index, number(context, total))
        rest, place = arith(context, "udiv", index, lines), list[str]()
        for axis in range(len(rows) - 1, -1, -1):
            step = rest if axis == 0 else arith(context, "urem", rest, rows[axis])
            rest = arith(context, "udiv", rest, rows[axis]) if axis else rest
            wide = context.value(f"llvm.zext {step} : i32 to i64")
            place.insert(0, arith(context, "add", offsets[axis], wide, "i64"))
            within = compare(context, "ult", place[0], context.host(tensor.tensor.dims[axis]), "i64")
            inside = context.value(f"llvm.and {inside}, {within} : i1")
        pointer = context.pointer(tensor)
        for axis, position in enumerate([*place, offsets[-1]]):
            stride = arith(context, "mul", context.stride(tensor, axis), number(context, size, "i64"), "i64")
            pointer = offset_pointer(context, pointer, arith(context, "mul", position, stride, "i64"), GLOBAL, "i64")
        ahead = arith(context, "mul", arith(context, "urem", index, lines), LINE)
        pointer = offset_pointer(context, pointer, context.value(f"llvm.zext {ahead} : i32 to i64"), GLOBAL, "i64")
        context.effect(f"scf.if {inside} {{")
        context.effect(f'llvm.inline_asm has_side_effects "prefetch.global.L2 [$0];", "l" {pointer} : ({GLOBAL}) -> ()')
        context.effect("}")
    context.effect("}")
