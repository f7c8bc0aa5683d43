"""Where the buffers of a step lie: the verifier's rule `memory` on a plan of the arena, and the memory of a captured step.

In: a step with a memory plan and the lifetimes that the verifier computed, or with allocations. A GraphError names the first
buffer without memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from engine.graph.integers import GraphError
from engine.graph.plan import ALIGNMENT, MemoryPlan
from tilec.step.graph import Kind, StepGraph


def refused(graph: StepGraph, buffer: str, what: str, op: str = "") -> GraphError:
    """The error for a buffer of a step, and an operation on it."""
    where = f"operation `{op}`: " if op else ""
    return GraphError(f"{where}buffer `{buffer}` {what}", where=f"step `{graph.name}`")


def verify_memory(graph: StepGraph, memory: MemoryPlan, lifetimes: Mapping[str, tuple[int, int]]) -> None:
    """Check the rule `memory`: each activation against those that are still live at its first use."""
    for name in memory.offsets:
        if name not in graph.buffers or graph.buffers[name].kind is not Kind.ACTIVATION:
            raise refused(graph, name, "has a place in the arena, and is no activation of the step")
    live: list[tuple[int, int, int, str]] = []  # last operation, first byte, end byte, name
    for name in sorted(lifetimes, key=lambda name: lifetimes[name]):
        buffer, (first, last) = graph.buffers[name], lifetimes[name]
        op = graph.ops[first].name
        begin = memory.offsets.get(name)
        if begin is None:
            raise refused(graph, name, "has no place in the arena", op)
        end = begin + buffer.bytes
        if begin < 0 or begin % ALIGNMENT or end > memory.size:
            raise refused(graph, name, f"lies at [{begin}, {end}) of an arena of {memory.size} bytes", op)
        live = [other for other in live if other[0] >= first]
        for _, other_begin, other_end, other in live:
            if other_begin < end and begin < other_end:
                raise refused(graph, name, f"shares bytes with `{other}`, which is still needed", op)
        live.append((last, begin, end, name))


def verify_captured(graph: StepGraph, allocations: Mapping[str, tuple[int, int]], arena: tuple[int, int]) -> None:
    """Raise GraphError unless every buffer of a captured step has device memory of its own. `allocations` are (pointer, bytes)
    of buffers that outlive the step, `arena` of the activations' memory."""
    ranges = [(*arena, "the arena")]
    for buffer in graph.buffers.values():
        if buffer.kind is Kind.ACTIVATION:
            continue
        if buffer.name not in allocations:
            raise refused(graph, buffer.name, "has no memory that outlives the graph")
        pointer, size = allocations[buffer.name]
        if size < buffer.bytes:
            raise refused(graph, buffer.name, f"has {size} bytes of memory, and needs {buffer.bytes}")
        ranges.append((pointer, buffer.bytes, buffer.name))
    ranges.sort()
    for (begin, size, name), (next_begin, _, other) in pairwise(ranges):
        if begin + size > next_begin:
            raise refused(graph, other, f"shares memory with {name}")
