"""The whole-graph verifier against a simulation: in every accepted step, each read finds the right bytes in memory that records
its writers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from step_contracts import TINY, contract, planned_step

from engine.graph.plan import MemoryPlan
from engine.graph.verify import GraphError, verify
from tilec.step.graph import Kind, StepGraph


@dataclass
class TaggedMemory:
    """A step on memory whose bytes record the buffer and version that wrote them."""

    graph: StepGraph
    memory: MemoryPlan

    def is_consistent(self) -> bool:
        """Whether every read finds the last version of its whole buffer."""
        arena: dict[int, object] = {}
        version: dict[str, int] = {}
        for op in self.graph.ops:
            accesses = {spec.name: spec.access for spec in contract(op).tensors}
            activations = {
                name: view.buffer
                for name, view in op.tensors.items()
                if self.graph.buffers[view.buffer].kind is Kind.ACTIVATION
            }
            for name, buffer in activations.items():
                if accesses[name] != "out" and any(arena.get(i) != (buffer, version.get(buffer)) for i in self.pages(buffer)):
                    return False
            written = [buffer for name, buffer in activations.items() if accesses[name] != "in"]
            for buffer in written:
                version[buffer] = version.get(buffer, 0) + 1
            for buffer in written:
                for i in self.pages(buffer):
                    arena[i] = (buffer, version[buffer])
            if any(arena[i] != (buffer, version[buffer]) for buffer in written for i in self.pages(buffer)):
                return False
        return True

    def pages(self, buffer: str) -> range:
        first = self.memory.offsets[buffer] // 256
        return range(first, first + -(-self.graph.buffers[buffer].bytes // 256))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_accepted_steps_are_consistent_on_tagged_memory(seed: int) -> None:
    """Random plans and orders: if the verifier accepts, the simulation of the bytes finds no stale or foreign data."""
    rng = random.Random(seed)
    graph, memory = planned_step(TINY, 3, "argmax", False, 0, max_seq_len=64)
    offsets = dict(memory.offsets)
    for _ in range(rng.randrange(3)):
        offsets[rng.choice(list(offsets))] = 256 * rng.randrange(memory.size // 256)
    size = max(offset + -(-graph.buffers[name].bytes // 256) * 256 for name, offset in offsets.items())
    if rng.random() < 0.5:
        i = rng.randrange(len(graph.ops) - 1)
        graph.ops[i], graph.ops[i + 1] = graph.ops[i + 1], graph.ops[i]
    plan = MemoryPlan(offsets, max(size, memory.size))
    try:
        verify(graph, plan, contract)
    except GraphError:
        return
    assert TaggedMemory(graph, plan).is_consistent()


def test_the_simulation_detects_stale_data() -> None:
    graph, memory = planned_step(TINY, 3, "argmax", False, 0, max_seq_len=64)
    assert TaggedMemory(graph, memory).is_consistent()
    assert not TaggedMemory(
        graph, MemoryPlan({**memory.offsets, "layers.0.act": memory.offsets["hidden"]}, memory.size)
    ).is_consistent()
