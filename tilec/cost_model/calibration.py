"""Constants of the model that no datasheet has, each with its source.

`FITTED` names those that `python ci/bench/judges.py time_model --fit` adjusted, on half of the shapes of the measured rows; the
page of that result names the rows. The others come from measurements of their own, or are stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times in seconds, lengths in cycles of a multiprocessor, shares of nominal rates, energies in joules.

    Launches:
        node: from the end of a node of a CUDA graph to the start of one that depends on it. Measured on an H200, 2026-11-20.
        start: from there until a block may copy (descriptors, barriers).
        start_waiting: the same of a launch that may overlap the previous one, if its blocks must wait for shared memory.
        start_resident: the same if its blocks fit next to those of the previous launch.
        latency: of the first bytes from memory.
        next_block: cycles from the end of a block to the first product of the block that takes its place.

    Loops:
        tensor_share: of the nominal rate of matrix instructions with operands in shared memory.
        gap: cycles between products of one warpgroup that no other fills, in each iteration.
        copy_issue: cycles that the one thread of a producer takes for a copy.
        copy_rate: bytes that a multiprocessor takes from the L2 cache in a cycle. Seen: at least 74 on an H200.
        shared_rate: bytes that shared memory moves in a cycle. Threads move 128 (CUDA programming guide); operands that two
            warpgroups read count twice here, so that more is reached. Of 128, 144, 160 and 256, 160 suited all rows best.
        exposed: share of products that arithmetic waits for, if matrix instructions run ahead: those of the scores of
            attention, not those with the values.
        dependent: cycles of a warpgroup's arithmetic over the sum of those that each unit takes for it; below 1, because units
            work at the same time.
        reduction: latency of reductions, waits and shuffles in an iteration with arithmetic between products.

    Around loops:
        store_cycles: cycles for 128 bytes that an epilogue passes through shared memory, or stores.
        tail: cycles of latency of an epilogue.

    Memory:
        memory_share: of the nominal bandwidth. Measured on an H200, 2026-11-20: 0.901 for a read.
        cache_share: of the L2 cache that keeps operands for the next wave. Stated: half of it is far from each multiprocessor.
        contention: exponent by which cycles and memory add up; infinite: only the slower counts.

    Power:
        static_watts: what a card draws without work, at its highest clock. Stated.
        mac_joules: of a multiply-add at the highest clock, operands included.
        copied_joules, memory_joules: of a byte from the L2 cache, of a byte from memory. Stated; about 5 pJ per bit of HBM3
            (O'Connor et al., "Fine-Grained DRAM", MICRO 2017, has 3.9 for HBM2).
        clock_power: exponent of the clock in the energy of an operation, which grows with the square of the voltage. Stated."""

    node: float = 1.316e-6
    start: float = 0.729e-6
    start_waiting: float = 0.329e-6
    start_resident: float = 0.605e-6
    latency: float = 0.428e-6
    next_block: float = 3250.0
    tensor_share: float = 0.897
    gap: float = 24.7
    copy_issue: float = 124.0
    copy_rate: float = 85.0
    shared_rate: float = 160.0
    exposed: float = 0.5
    dependent: float = 0.276
    reduction: float = 1300.0
    store_cycles: float = 3.3
    tail: float = 374.0
    memory_share: float = 0.90
    cache_share: float = 0.7
    contention: float = 2.21
    static_watts: float = 150.0
    mac_joules: float = 2.36e-12
    copied_joules: float = 5e-12
    memory_joules: float = 40e-12
    clock_power: float = 2.0


CALIBRATION: Final = Calibration()
FITTED: Final = (
    "start", "start_waiting", "start_resident", "latency", "next_block", "tensor_share", "gap", "copy_issue", "dependent",
    "reduction", "store_cycles", "tail", "contention", "mac_joules",
)  # fmt: skip
