"""Small PTX programs for clusters: the addresses of a peer in registers, and one result per thread of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.tiny import launch, program
from tilec.emulator import Report

THREADS = 32
SHARED = 2048
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
START = f"""
mov.u32 %r0, smem;
add.u32 %r1, %r0, 1024;
mov.u32 %r2, %cluster_ctarank;
xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r4, %r0, %r3;
mapa.shared::cluster.u32 %r5, %r1, %r3;
shl.b32 %r6, %t, 2;
add.u32 %r7, %r0, %r6;
add.u32 %r8, %r4, %r6;
mov.u32 %r9, %ctaid.x;
mad.lo.u32 %r10, %r9, {THREADS}, %t;
mad.wide.u32 %d0, %r10, 4, %a0;
setp.eq.u32 %p0, %t, 0;
setp.eq.u32 %p1, %r2, 0;
and.pred %p2, %p0, %p1;
"""
"""Own: %r0 shared memory, %r1 an mbarrier's place, %r7 the thread's word. The peer's: %r4, %r5, %r8. %r2 rank, %r3 the peer's;
%d0 the thread's result; %p0 thread 0, %p1 rank 0, %p2 both; %r10 the thread's number in the grid. Results: %r30."""
STORE = "st.global.b32 [%d0], %r30;"


def run(
    body: str,
    *,
    seed: int = 0,
    blocks: int = 2,
    size: int = 2,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    start: str = START,
    target: str = "sm_100a",
    registers: str = "",
    only: Sequence[tuple[int, int, int]] | None = None,
    **more: Any,
) -> Report:
    """Runs `body` after START; the first tensor, `out`, has a word for each thread of the grid. `only`: its blocks."""
    arrays = {"out": np.zeros(blocks * THREADS, np.uint32), **(tensors or {})}
    text = program(start + body, list(arrays), shared=SHARED, target=target, registers=registers)
    return launch(
        text, arrays, grid=(blocks,), out=("out",), read_only=tuple(tensors or ()), shared=SHARED, seed=seed,
        cluster=(size,), blocks=only, **more,
    )  # fmt: skip


def found(report: Report) -> set[tuple[str, str]]:
    """(kind, opcode) of the report's faults; the opcode is empty for a fault of no instruction."""
    return {(fault.kind, fault.instruction.partition(" ")[0].lstrip("@!%p0123456789 ")) for fault in report.faults}


def messages(report: Report) -> str:
    """The report's faults, one a line."""
    return "\n".join(map(str, report.faults))
