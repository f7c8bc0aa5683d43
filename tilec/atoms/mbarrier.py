"""Barriers in shared memory that count arrivals and bytes, two for each stage of a ring: where they lie, and how they are made,
signalled and waited for (PTX ISA, "mbarrier").

The first is *full* once its one arrival and all the bytes that it announced have come, the second *empty* once every warp that
reads the stage has arrived. Each completion begins a new round, and a wait names the parity of the round that it waits for: of
a barrier that has completed nothing, the round before the first one counts as complete. Exists on every target.
"""

from __future__ import annotations

from typing import Final

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue

BYTES: Final = 8


def full(out: Builder, ring: SsaValue, stage: SsaValue) -> SsaValue:
    """Pointer to the barrier that the bytes of a stage (i32) complete; `ring` is where the ring's barriers begin."""
    return out.offset(ring, out.mul(stage, BYTES))


def empty(out: Builder, ring: SsaValue, stage: SsaValue, stages: int) -> SsaValue:
    """Pointer to the barrier that the readers of a stage (i32) complete."""
    return out.offset(out.offset(ring, BYTES * stages), out.mul(stage, BYTES))


def turn(out: Builder, ring: SsaValue, place: int, stages: int) -> SsaValue:
    """Pointer to the barrier that those complete who read the stages before the ones of the reader at a place."""
    return out.offset(ring, BYTES * (2 * stages + place))


def make(out: Builder, ring: SsaValue, stages: int, readers: int, takers: int = 0) -> None:
    """Make the barriers of a ring; by one thread. `readers`: warps that arrive where a stage is empty, and where one of the
    `takers`, which read in turns, passes its turn on."""
    for stage in range(stages):
        _make(out, out.offset(ring, BYTES * stage), 1)
        _make(out, out.offset(ring, BYTES * (stages + stage)), readers)
    for place in range(takers):
        _make(out, turn(out, ring, place, stages), readers)


def _make(out: Builder, barrier: SsaValue, arrivals: int) -> None:
    out.inline_ptx(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "l,~{memory}", [barrier], side_effects=True)


def expect(out: Builder, barrier: SsaValue, bytes_: int) -> None:
    """Announce bytes, and arrive."""
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes_};"
    out.inline_ptx(text, "l,~{memory}", [barrier], side_effects=True)


def complete(out: Builder, barrier: SsaValue, bytes_: SsaValue, where: SsaValue) -> None:
    """Count bytes (i32) that were announced and do not come, where `where` (i1) holds."""
    text = "@$2 mbarrier.complete_tx.shared::cta.b64 [$0], $1;"
    out.inline_ptx(text, "l,r,b,~{memory}", [barrier, bytes_, where], side_effects=True)


def arrive(out: Builder, barrier: SsaValue, where: SsaValue) -> None:
    """Arrive, in the threads where `where` (i1) holds."""
    text = "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];"
    out.inline_ptx(text, "l,b,~{memory}", [barrier, where], side_effects=True)


def wait(out: Builder, barrier: SsaValue, parity: SsaValue) -> None:
    """Wait until the round of a parity (i32, 0 or 1) is complete."""
    text = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }"
    out.inline_ptx(text, "l,r,~{memory}", [barrier, parity], side_effects=True)
