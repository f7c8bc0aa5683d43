"""The mbarriers of a ring, two for each stage, with their addresses and operations (PTX ISA, "mbarrier").

The *full* barrier completes its phase after its one arrival and all bytes that this arrival expects, the *empty* barrier after
the arrival of every warp that reads the stage. A wait names the parity of the phase that it waits for; on a fresh barrier, the
phase before the first one (parity 1) counts as complete. Available on every target.
"""

from __future__ import annotations

from typing import Final

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i64

BYTES: Final = 8


def full(out: Builder, ring: SsaValue, stage: SsaValue) -> SsaValue:
    """Pointer to the full barrier of a stage (i32); `ring` points to the ring's barriers."""
    return out.offset(ring, out.mul(stage, BYTES))


def empty(out: Builder, ring: SsaValue, stage: SsaValue, stages: int) -> SsaValue:
    """Pointer to the empty barrier of a stage (i32)."""
    return out.offset(out.offset(ring, BYTES * stages), out.mul(stage, BYTES))


def order_barrier(out: Builder, ring: SsaValue, consumer: int, stages: int) -> SsaValue:
    """Pointer to the order barrier of a consumer, which the preceding consumer completes (pingpong)."""
    return out.offset(ring, BYTES * (2 * stages + consumer))


def make(out: Builder, ring: SsaValue, stages: int, readers: int, consumers: int = 0, producers: int = 1) -> None:
    """Initialize the barriers of a ring, in one thread. `readers`: arrival count, in warps, of empty and order barriers.
    `consumers`: consumers that read the ring round-robin, each with an order barrier. `producers`: arrival count of full
    barriers."""
    for stage in range(stages):
        _make(out, out.offset(ring, BYTES * stage), producers)
        _make(out, out.offset(ring, BYTES * (stages + stage)), readers)
    for consumer in range(consumers):
        _make(out, order_barrier(out, ring, consumer, stages), readers)


def make_signals(out: Builder, signals: SsaValue, count: int, arrivals: int) -> None:
    """Initialize `count` barriers that complete their phase after `arrivals` arrivals, in one thread."""
    for number in range(count):
        _make(out, out.offset(signals, BYTES * number), arrivals)


def _make(out: Builder, barrier: SsaValue, arrivals: int) -> None:
    out.inline_ptx(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "l,~{memory}", [barrier], side_effects=True)


def publish(out: Builder) -> None:
    """Make this thread's initializations visible to the other blocks of the cluster, after a barrier of the cluster."""
    out.inline_ptx("fence.mbarrier_init.release.cluster;", "~{memory}", side_effects=True)


def meet_in_cluster(out: Builder) -> None:
    """Synchronize all threads of the cluster (PTX ISA, `barrier.cluster`)."""
    text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    out.inline_ptx(text, "~{memory}", side_effects=True)


def of_leader(out: Builder, barrier: SsaValue) -> SsaValue:
    """The address (i64) of a barrier in the cluster's block of rank 0, given this block's pointer (PTX ISA, `mapa`)."""
    return out.inline_ptx("mapa.shared::cluster.u64 $0, $1, 0;", "=l,l", [barrier], [i64])[0]


def expect_at_leader(out: Builder, barrier: SsaValue, bytes_: int) -> None:
    """Add to the expected bytes, and arrive, at a barrier of the cluster (i64). It is relaxed: copies publish their bytes."""
    text = f"mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [$0], {bytes_};"
    out.inline_ptx(text, "l,~{memory}", [barrier], side_effects=True)


def arrive_at_leader(out: Builder, barrier: SsaValue, predicate: SsaValue) -> None:
    """Arrive at a barrier of the cluster (i64), in the threads in which `predicate` (i1) is true."""
    text = "@$1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];"
    out.inline_ptx(text, "l,b,~{memory}", [barrier, predicate], side_effects=True)


def wait_in_cluster(out: Builder, barrier: SsaValue, parity: SsaValue) -> None:
    """As `wait`, for what threads of another block of the cluster did before they arrived."""
    text = (
        "{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0], $1; @!done bra again; }"
    )
    out.inline_ptx(text, "l,r,~{memory}", [barrier, parity], side_effects=True)


def expect(out: Builder, barrier: SsaValue, bytes_: int) -> None:
    """Add to the expected bytes, and arrive."""
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes_};"
    out.inline_ptx(text, "l,~{memory}", [barrier], side_effects=True)


def complete(out: Builder, barrier: SsaValue, bytes_: SsaValue, predicate: SsaValue) -> None:
    """Count expected bytes (i32) that no copy will deliver as complete, if `predicate` (i1) is true."""
    text = "@$2 mbarrier.complete_tx.shared::cta.b64 [$0], $1;"
    out.inline_ptx(text, "l,r,b,~{memory}", [barrier, bytes_, predicate], side_effects=True)


def meet_in_warp(out: Builder) -> None:
    """Synchronize the threads of this warp (PTX ISA, `bar.warp.sync`), so that one of them may arrive for all."""
    out.inline_ptx("bar.warp.sync -1;", "~{memory}", side_effects=True)


def arrive(out: Builder, barrier: SsaValue, predicate: SsaValue) -> None:
    """Arrive, in the threads in which `predicate` (i1) is true."""
    text = "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];"
    out.inline_ptx(text, "l,b,~{memory}", [barrier, predicate], side_effects=True)


def wait(out: Builder, barrier: SsaValue, parity: SsaValue) -> None:
    """Wait until the phase of a parity (i32, 0 or 1) is complete."""
    text = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }"
    out.inline_ptx(text, "l,r,~{memory}", [barrier, parity], side_effects=True)
