"""Activations share bytes only if their lifetimes are disjoint."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.graph.plan import ALIGNMENT, lifetimes, plan_memory
from tilec.step.graph import Kind, StepGraph, View


def graph_of(touched: list[list[int]], sizes: list[int]) -> StepGraph:
    """A step whose operations access the buffers listed for each, all of `elements` f32."""
    graph = StepGraph("made up", 1)
    for number, size in enumerate(sizes):
        graph.buffer(f"b{number}", "f32", (size,), Kind.ACTIVATION)
    graph.buffer("weight", "bf16", (4,), Kind.WEIGHT)
    for position, names in enumerate(touched):
        views = {f"p{name}": View(f"b{name}", (sizes[name],)) for name in names}
        graph.add(f"op{position}", "k", {}, {"w": View("weight", (4,)), **views})
    return graph


@settings(max_examples=200, deadline=None)
@given(data=st.data(), count=st.integers(1, 8))
def test_no_two_live_activations_overlap(data: st.DataObject, count: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
    touched = data.draw(st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=1, max_size=12))
    graph = graph_of(touched, sizes)
    plan = plan_memory(graph)
    assert plan == plan_memory(graph)
    live_ranges = lifetimes(graph)
    assert plan.offsets.keys() == live_ranges.keys() == {f"b{number}" for names in touched for number in names}
    for position in range(len(touched)):
        spans = sorted(
            (plan.offsets[name], plan.offsets[name] + graph.buffers[name].bytes, name)
            for name, (first, last) in live_ranges.items()
            if first <= position <= last
        )
        for (_, end, _), (begin, _, _) in pairwise(spans):
            assert end <= begin, (position, spans)
        assert all(begin % ALIGNMENT == 0 and end <= plan.size for begin, end, _ in spans)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), count=st.integers(1, 8))
def test_each_has_the_lowest_offset_that_the_larger_ones_leave(data: st.DataObject, count: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
    touched = data.draw(st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=1, max_size=12))
    graph = graph_of(touched, sizes)
    offsets, live = plan_memory(graph).offsets, lifetimes(graph)
    room = {name: -(-graph.buffers[name].bytes // ALIGNMENT) * ALIGNMENT for name in live}
    placed: list[str] = []
    for name in sorted(live, key=lambda name: (-graph.buffers[name].bytes, name)):
        (first, last), size = live[name], room[name]
        spans = [
            (offsets[other], offsets[other] + room[other])
            for other in placed
            if live[other][0] <= last and first <= live[other][1]
        ]
        free = [begin for begin in (0, *(end for _, end in spans)) if all(begin + size <= a or b <= begin for a, b in spans)]
        assert offsets[name] == min(free)
        placed.append(name)


def test_bytes_are_used_again() -> None:
    graph = graph_of([[0], [0, 1], [1, 2], [2, 3]], [1000, 1000, 1000, 1000])
    assert plan_memory(graph).size == 2 * 4096
