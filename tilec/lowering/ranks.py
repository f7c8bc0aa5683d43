"""The meet of several ranks: releases and acquires at system scope (PTX ISA, "Memory consistency model").

Thread `p` of a block deals with rank `p`. It counts its meets with that rank, writes the count into the rank's signals with
`st.release.sys`, and reads its own rank's signals with `ld.acquire.sys` until that rank has counted as far. So what the
launches before wrote on the other GPU, which this thread's counterpart there knows to be complete since its grid dependency
wait, happens before what comes after the block's barrier here. Counts are compared by their difference, so that they may wrap.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Access
from tilec.ir.ops.rank_ops import Meet
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.mlir.types import GLOBAL, SsaValue, i64

_WORD = 4
MEET = (
    "{ .reg .pred late; .reg .b32 count, seen; "
    "ld.global.b32 count, [$2]; add.u32 count, count, 1; st.global.b32 [$2], count; "
    "st.release.sys.global.b32 [$0], count; "
    "again: ld.acquire.sys.global.b32 seen, [$1]; sub.s32 seen, seen, count; setp.lt.s32 late, seen, 0; @late bra again; }"
)
"""$0: where that rank looks for this one, $1: where this rank looks for that one, $2: this thread's count."""


@lowers(Meet)
def lower_meet(context: Context, op: Meet) -> None:
    """After the meet tensors of other ranks get new names, so that LLVM, which may take an argument's memory for that of no
    other, moves none of their loads above it (as after the grid dependency wait)."""
    ranks, thread, rank = len(op.signals), context.thread(), context.scalar(op.rank)
    block = context.special_register("ctaid.x")
    with context.where(context.compare("ult", thread, context.constant(ranks))):
        pointers = [context.pointer(signal) for signal in op.signals]
        theirs, own = _picked(context, pointers, thread), _picked(context, pointers, rank)
        row = context.mul(context.zext(block, i64), 2 * ranks * _WORD)

        def word(pointer: SsaValue, column: SsaValue) -> SsaValue:
            return context.offset(context.offset(pointer, row), context.mul(context.zext(column, i64), _WORD))

        there, here = word(theirs, rank), word(own, thread)
        context.inline_ptx(MEET, "l,l,l,~{memory}", [there, here, context.offset(here, ranks * _WORD)], side_effects=True)
    context.barrier()
    for parameter in context.function.parameters:
        if parameter.access is Access.PEER:
            address = context.address(context.pointer(parameter.value), i64)
            (renamed,) = context.inline_ptx("mov.b64 $0, $1;", "=l,l", [address], [i64], side_effects=True)
            context.assign(parameter.value, [context.pointer_to(renamed, GLOBAL)])


def _picked(context: Context, pointers: Sequence[SsaValue], number: SsaValue) -> SsaValue:
    """One of the pointers by its number."""
    found = pointers[-1]
    for index, pointer in reversed(list(enumerate(pointers[:-1]))):
        found = context.select(context.compare("eq", number, context.constant(index)), pointer, found)
    return found
