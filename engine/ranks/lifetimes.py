"""How long an activation that other ranks read must keep its bytes.

A rank that has left a collective knows that all have entered it, not that all have read. It knows that they have when it
leaves the next one, which nobody enters before having left this one. All ranks wait for each other at the end of a step, so
nothing lives longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.step.collectives import COLLECTIVES, READ_BY_PEERS
from tilec.step.graph import StepGraph


def read_by_peers(graph: StepGraph, lifetimes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The lifetimes, as first and last operation, of activations in a step; those that a collective reads end with the next
    collective, or with the step."""
    found = dict(lifetimes)
    positions = [position for position, op in enumerate(graph.ops) if op.kernel in COLLECTIVES]
    for position, following in zip(positions, [*positions[1:], len(graph.ops) - 1], strict=False):
        name = graph.ops[position].tensors[READ_BY_PEERS].buffer
        if name in found:
            first, last = found[name]
            found[name] = (first, max(last, following))
    return found
