"""Bytes that a step moves, computed from its StepGraph, as if each were read or written exactly once.

A launch reads and writes each of its views whole, by the access in its artifact's manifest (`In`, `Out`, `InOut`), unless its
kernel selects rows. The manifest's value checks show that: integers in [0, extent) index an axis (one row of the embedding
table per token, one slot of the cache, the experts of a token). They are counted as if no two were equal, up to all rows of
the axis. If they are distinct, each selected row is written whole and not read. Of a cache without such an index only the
filled slots count; a launch that reads those and also writes the cache writes the step's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from engine.graph.contract import Contract
from tilec.artifact.records import Manifest, TensorSpec
from tilec.step.activations import SCALES_DTYPE
from tilec.step.graph import ITEM_BYTES, Buffer, Kind, Op, StepGraph

STREAMED: Final = frozenset({Kind.WEIGHT, Kind.TABLE, Kind.CACHE, Kind.POOL})
"""Buffers too large to stay in the GPU's L2 cache between steps. Activations are far smaller."""

Contracts = Callable[[Op], Contract | Manifest]
"""Returns the contract of an operation's kernel."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one buffer that a launch reads and writes."""

    buffer: Buffer
    read: int
    written: int


def moves(graph: StepGraph, op: Op, filled: int, contract: Contract | Manifest) -> Iterator[Moved]:
    """What a launch moves, by parameter. `filled` is the number of filled cache slots, the step's own tokens included, summed
    over all sequences. ValueError if the cache has fewer slots."""
    for spec in contract.tensors:
        view = op.tensors[spec.name]
        buffer = graph.buffers[view.buffer]
        available, rows, scattered = _rows(graph, op, spec, filled, contract)
        if rows > available:
            raise ValueError(f"operation `{op.name}`: {rows} rows of `{spec.name}`, which has {available}")
        size = view.elements // available * ITEM_BYTES[buffer.dtype]
        read = spec.access == "in" or (spec.access == "inout" and not scattered)
        appended = buffer.kind is Kind.CACHE and read
        written = 0 if spec.access == "in" else min(rows, graph.tokens) if appended else rows
        yield Moved(buffer, size * rows if read else 0, size * written)


def _rows(
    graph: StepGraph, op: Op, spec: TensorSpec, filled: int, contract: Contract | Manifest
) -> tuple[int, int, bool]:  # fmt: skip
    """Of a tensor: its number of rows, the number that a launch accesses, and whether each is accessed at most once."""
    view = op.tensors[spec.name]
    for check in contract.value_checks:
        for axis, dim in enumerate(spec.dims):
            if check.tensor != spec.name and check.low.constant == 0 and dim.op == "sym" and dim == check.high:
                rows, outer = prod(op.tensors[check.tensor].shape), prod(view.shape[:axis])  # one row of each sequence
                available = outer * view.shape[axis]
                return available, min(rows, available), check.distinct or rows == outer
    if graph.buffers[view.buffer].kind is not Kind.CACHE:
        return 1, 1, False
    of_slot = view.shape[-1:] if graph.buffers[view.buffer].dtype == SCALES_DTYPE else view.shape[-2:]
    return view.elements // prod(of_slot), filled, False


def traffic(graph: StepGraph, op: Op, filled: int, contract: Contract | Manifest) -> int:
    """Bytes that a launch reads and writes; see `moves`."""
    return sum(moved.read + moved.written for moved in moves(graph, op, filled, contract))


def streamed(graph: StepGraph, filled: int, contracts: Contracts) -> tuple[int, int]:
    """Bytes of weights, tables and caches that a whole step reads, and that it writes: DRAM traffic that the L2 cache cannot
    save. Their sum over the bandwidth is a lower bound of a step's time."""
    all_moved = [
        moved for op in graph.ops for moved in moves(graph, op, filled, contracts(op)) if moved.buffer.kind in STREAMED
    ]
    return sum(moved.read for moved in all_moved), sum(moved.written for moved in all_moved)
