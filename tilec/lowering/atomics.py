"""Atomic updates that PTX has no instruction for, written as compare-and-swap loops."""

from __future__ import annotations

from tilec.lowering.context import Context
from tilec.mlir.types import SsaValue


def float_extremum(context: Context, kind: str, pointer: SsaValue, value: SsaValue) -> None:
    """An f32 maximum or minimum, for which PTX has no `atom`: a compare-and-swap loop that ends when no other thread
    intervened.

    LLVM's own expansion begins with a weak load, which races with the atomics of other blocks (PTX ISA, memory consistency
    model); here every access is relaxed at GPU scope. Nothing is written if memory already holds the result.
    """
    text = (
        "{ .reg .pred same; .reg .b32 old, seen, new; ld.relaxed.gpu.global.b32 old, [$0]; "
        f"again: {kind}.f32 new, old, $1; setp.eq.b32 same, new, old; @same bra done; "
        "atom.relaxed.gpu.global.cas.b32 seen, [$0], old, new; setp.eq.b32 same, seen, old; mov.b32 old, seen; "
        "@!same bra again; done: }"
    )
    context.inline_ptx(text, "l,f,~{memory}", [pointer, value], side_effects=True)
