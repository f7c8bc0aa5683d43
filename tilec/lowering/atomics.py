"""Atomics that neither the chip nor LLVM has as the tile IR means them (`tilec/ir/SEMANTICS.md`), as PTX of our own.

In goes a pointer to global memory and an f32, out comes nothing. What holds: the element is the smaller or larger of both, -0
below +0, a NaN losing to a number, and no thread touches the element but by atomics.
"""

from __future__ import annotations

from typing import Final

from tilec.lowering.tensor_core import Writer

EXCHANGE: Final = {
    kind: "{ .reg .pred p; .reg .b32 o, n; .reg .f32 f; mov.b32 o, 0; AGAIN: mov.b32 f, o; "
    f"{kind}.f32 f, f, $1; mov.b32 n, f; atom.relaxed.sys.global.cas.b32 n, [$0], o, n; "
    "setp.ne.b32 p, n, o; mov.b32 o, n; @p bra AGAIN; }"
    for kind in ("min", "max")
}
"""A loop of compare-and-swap (PTX ISA, `atom`) around `min.f32` or `max.f32`. LLVM's own loop begins with a plain load, which
races with the atomics of other threads; this one begins with a guess, and knows better after its first turn."""


def float_extreme(out: Writer, kind: str, pointer: str, name: str) -> None:
    """`min` or `max` of an f32 into memory."""
    constraints = "l,f,~{memory}"
    out.effect(
        f'llvm.inline_asm has_side_effects "{EXCHANGE[kind]}", "{constraints}" {pointer}, {name} : (!llvm.ptr<1>, f32) -> ()'
    )
