"""Memory plan of activations: one arena for a step, whose bytes are reused after an activation's last use."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from engine.ranks.lifetimes import read_by_peers
from tilec.step.graph import Kind, StepGraph

ALIGNMENT: Final = 256
"""Alignment of offsets in bytes, as of CUDA's own allocations."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each activation in the arena, and the arena's size."""

    offsets: Mapping[str, int]
    size: int


def lifetimes(graph: StepGraph) -> dict[str, tuple[int, int]]:
    """First and last operation (positions, both inclusive) that use each activation. A launch may read one buffer while it
    writes another, so all buffers of an operation are live there.

    Integers with bounds are live in the whole step: kernels use them as indices without a check, and so whoever runs some of
    the launches again, as a profile does, finds no other numbers there. What other ranks read lives longer
    (`engine.ranks.lifetimes`)."""
    ranges: dict[str, tuple[int, int]] = {}
    for position, op in enumerate(graph.ops):
        for view in op.tensors.values():
            buffer = graph.buffers[view.buffer]
            if buffer.kind is Kind.ACTIVATION and buffer.high is not None:
                ranges[view.buffer] = (0, len(graph.ops) - 1)
            elif buffer.kind is Kind.ACTIVATION:
                first, _ = ranges.get(view.buffer, (position, position))
                ranges[view.buffer] = (first, position)
    return read_by_peers(graph, ranges)


def plan_memory(graph: StepGraph) -> MemoryPlan:
    """Place buffers largest first, each at the lowest offset where it overlaps no buffer that is live at the same time
    (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, greedy by size); deterministic."""
    live_ranges = lifetimes(graph)
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # first byte, end byte, first and last operation, by first byte
    for name in sorted(live_ranges, key=lambda name: (-graph.buffers[name].bytes, name)):
        size, (first, last) = _rounded(graph.buffers[name].bytes), live_ranges[name]
        candidate = 0
        for begin, end, other_first, other_last in placed:
            if begin - candidate >= size:
                break
            if end > candidate and other_first <= last and first <= other_last:
                candidate = end
        offsets[name] = candidate
        insort(placed, (candidate, candidate + size, first, last))
    size = max((offset + _rounded(graph.buffers[name].bytes) for name, offset in offsets.items()), default=0)
    return MemoryPlan(offsets, size)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
