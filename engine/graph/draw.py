"""Prints a step as text: each operation with its tensors, and the offsets of activations in the arena."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.graph.plan import MemoryPlan, lifetimes, plan_memory
from tilec.step.graph import Kind, Op, StepGraph

MARKS: Final = {
    Kind.ACTIVATION: "",
    Kind.WEIGHT: "*",
    Kind.TABLE: "*",
    Kind.CACHE: "#",
    Kind.POOL: "#",
    Kind.INPUT: "<",
    Kind.OUTPUT: ">",
}
"""Prefix of a buffer's name, by kind."""

LEGEND: Final = (
    "* constant, # cache, < input, > output; others are activations @ their byte offset in the arena; ! its last use"
)


def draw(graph: StepGraph) -> str:
    """A heading, one line per operation in launch order, and totals by kind in bytes; no final newline."""
    plan = plan_memory(graph)
    ends = {name: last for name, (_, last) in lifetimes(graph).items()}
    lines = [f"{graph.name} of {graph.tokens} token{'s' * (graph.tokens != 1)}: {len(graph.ops)} operations", LEGEND, ""]
    lines += [_line(graph, plan, ends, position, op) for position, op in enumerate(graph.ops)]
    return "\n".join([*lines, "", *_totals(graph, plan)])


def _line(graph: StepGraph, plan: MemoryPlan, ends: dict[str, int], position: int, op: Op) -> str:
    constants = ", ".join(f"{name}={value}" for name, value in op.constants.items())
    operands: list[str] = []
    for parameter, view in op.tensors.items():
        buffer = graph.buffers[view.buffer]
        shape = "x".join(map(str, view.shape))
        address = f" @{plan.offsets[buffer.name]}" if buffer.kind is Kind.ACTIVATION else ""
        start = f" from {view.offset}" if view.offset else ""
        end = "!" if ends.get(buffer.name) == position else ""
        operands.append(f"{parameter}={MARKS[buffer.kind]}{buffer.name} {buffer.dtype} {shape}{start}{address}{end}")
    return f"{position:4} {op.name}: {op.kernel}[{constants}]({'; '.join(operands)})"


def _totals(graph: StepGraph, plan: MemoryPlan) -> Iterator[str]:
    for kind in Kind:
        buffers = list(graph.of_kind(kind))
        if buffers:
            yield f"{kind.value}: {len(buffers)} buffers, {sum(buffer.bytes for buffer in buffers)} bytes"
    yield f"arena: {plan.size} bytes"
