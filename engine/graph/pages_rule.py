"""The verifier's rule `pages`: how an operation may use a pool, whose pages belong to several sequences.

A kernel is proven to stay inside the pool, and to write at indices that are distinct. Whose pages those are no kernel knows.
So an operation may read a pool only at pages that the step's input `table` names, and write it only at the step's input
`slots`: of these the host knows whose they are (`engine.graph.pages`). The prompts of a chunk have their pages in one copy, one
prompt after the other. What reads it takes slots from the step's inputs `firsts` and `lasts` only: of each token the first and
the last that it attends to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from engine.graph.memory_rule import refused
from tilec.artifact.records import TensorSpec, ValueCheck
from tilec.step.graph import CHUNK, Kind, Op, StepGraph

TABLE: Final = "table"
SLOTS: Final = "slots"
ENDS: Final = ("firsts", "lasts")


def check_pools(graph: StepGraph, op: Op, tensors: Iterable[TensorSpec], value_checks: Iterable[ValueCheck]) -> None:
    """GraphError unless an operation uses each pool among its tensors by the rule `pages`. `tensors` and `value_checks`
    are those of its kernel's contract."""
    for spec in tensors:
        view = op.tensors[spec.name]
        buffer = graph.buffers[view.buffer]
        if buffer.kind is not Kind.POOL:
            continue
        indices = list(_indices(spec, value_checks))
        expected = TABLE if spec.access == "in" else SLOTS
        if not indices:
            raise refused(
                graph, buffer.name, f"is a pool, and `{op.kernel}` takes no index of its pages as `{spec.name}`", op.name
            )
        for check in indices:
            found = graph.buffers[op.tensors[check.tensor].buffer]
            if found.kind is not Kind.INPUT or graph.role(found.name) != expected:
                what = f"is a pool, and `{op.kernel}` finds its pages in `{found.name}`, which is not the step's `{expected}`"
                raise refused(graph, buffer.name, what, op.name)
            if expected == SLOTS and not check.distinct:
                what = f"is a pool, and `{op.kernel}` may write one of its slots for two tokens"
                raise refused(graph, buffer.name, what, op.name)
        if view.elements != graph.view(buffer.name).elements or view.offset:
            raise refused(graph, buffer.name, f"is a pool, and `{spec.name}` of `{op.kernel}` is a part of it", op.name)


def check_copies(graph: StepGraph, op: Op, tensors: Iterable[TensorSpec], value_checks: Iterable[ValueCheck]) -> None:
    """GraphError unless an operation of a chunk that reads a copy of pages takes each token's slots from the step's inputs."""
    for spec in tensors:
        name = op.tensors[spec.name].buffer
        if graph.name != CHUNK or graph.buffers[name].kind is not Kind.CACHE or spec.access != "in":
            continue
        found = {check.tensor: graph.buffers[op.tensors[check.tensor].buffer] for check in _indices(spec, value_checks)}
        for role in ENDS:
            own = found.get(role)
            if own is None or own.kind is not Kind.INPUT or graph.role(own.name) != role:
                where = "nothing" if own is None else f"`{own.name}`"
                what = f"`{op.kernel}` takes its `{role}` from {where}, not from the step's input"
                raise refused(graph, name, f"has slots of several prompts, and {what}", op.name)


def _indices(spec: TensorSpec, value_checks: Iterable[ValueCheck]) -> Iterator[ValueCheck]:
    """The checks of integers that are indices of a tensor's first axis."""
    for check in value_checks:
        if check.tensor != spec.name and check.low.constant == 0 and spec.dims[0].op == "sym" and check.high == spec.dims[0]:
            yield check
