"""The whole-graph verifier: a step holds together, or it does not run.

Kernels are proven one by one; this shows that a step uses them so that the proofs carry over. What each operation reads and
writes is what its artifact's manifest says (`In`, `Out`, `InOut`): an `Out` is written whole, as the compiler proved.

| rule    | statement                                                                                                    |
|---------|--------------------------------------------------------------------------------------------------------------|
| views   | every parameter has a view inside its buffer, of the dtype and rank that the artifact asks for                  |
| order   | every element of an activation or output is written before it is read, and no operation works for nothing     |
| owners  | weights, tables and settings are never written; an input only after its last use in the step; an operation     |
|         | that writes a buffer has no other view of the same elements                                                   |
| memory  | activations that are alive at the same operation do not share bytes of the arena, and lie inside it            |
| ends    | every output is written whole                                                                                 |
| values  | integers that a kernel uses as indices come from buffers whose bounds the step knows                          |

Whether those bounds satisfy a kernel (token id < vocab, position < max_seq, distinct slots), the loader checks with the shapes
when a launch is planned (`tilec.runtime.Kernel.plan`). Lifetimes are found here anew, not taken from the memory plan's maker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from engine.errors import EngineError
from engine.graph.plan import ALIGNMENT, MemoryPlan
from engine.graph.step import Buffer, Kind, Op, StepGraph, View
from tilec.artifact import Manifest, ScalarSpec, TensorSpec, ValueCheck

MADE: Final = frozenset({Kind.ACTIVATION, Kind.OUTPUT})
"""Kinds that hold nothing when a step begins."""

FIXED: Final = frozenset({Kind.WEIGHT, Kind.TABLE, Kind.SETTING})
"""Kinds that a step does not change."""

READS: Final = frozenset({"in", "inout"})
WRITES: Final = frozenset({"out", "inout"})


@dataclass(frozen=True, slots=True)
class Contract:
    """What an operation's kernel says of itself; an artifact's manifest has these too."""

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    value_checks: tuple[ValueCheck, ...]


class GraphError(EngineError):
    """A step that breaks a rule: a defect of the engine or a bundle of another engine, so nothing a user could have avoided."""


def verify(graph: StepGraph, memory: MemoryPlan, contract: Callable[[Op], Contract | Manifest]) -> None:
    """Raise GraphError at the first broken rule; it names the operation and the buffer."""
    state = _Step(graph)
    for position, op in enumerate(graph.ops):
        state.operation(position, op, contract(op))
    state.ends()
    _verify_memory(graph, memory, state.alive)


def verify_captured(graph: StepGraph, places: Mapping[str, tuple[int, int]], arena: tuple[int, int]) -> None:
    """Raise GraphError unless every buffer of a step that is captured has device memory of its own: `places` are (pointer,
    bytes) of what outlives the step, `arena` those of the activations' memory."""
    ranges = [(*arena, "the arena")]
    for buffer in graph.buffers.values():
        if buffer.kind is Kind.ACTIVATION:
            continue
        if buffer.name not in places:
            raise _refuse(graph, buffer.name, "has no memory that outlives the graph")
        pointer, size = places[buffer.name]
        if size < buffer.bytes:
            raise _refuse(graph, buffer.name, f"has {size} bytes of memory, and needs {buffer.bytes}")
        ranges.append((pointer, buffer.bytes, buffer.name))
    ranges.sort()
    for (begin, size, name), (following, _, other) in pairwise(ranges):
        if begin + size > following:
            raise _refuse(graph, other, f"shares memory with {name}")


def _refuse(graph: StepGraph, buffer: str, what: str, op: str = "") -> GraphError:
    where = f"operation `{op}`: " if op else ""
    return GraphError(f"{where}buffer `{buffer}` {what}", where=f"step `{graph.name}`")


class _Step:
    """What is known of buffers after each operation."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        # By identity, which is that of a manifest only while it is held.
        self.specs: dict[int, tuple[Contract | Manifest, dict[str, TensorSpec]]] = {}
        self.elements = {name: View(name, buffer.shape).elements for name, buffer in graph.buffers.items()}
        self.alive: dict[str, tuple[int, int]] = {}
        self.last_use = {view.buffer: position for position, op in enumerate(graph.ops) for view in op.tensors.values()}
        self.written: dict[str, list[tuple[int, int]]] = {}
        self.last_read: dict[str, int] = {}
        self.made: list[list[str]] = []  # buffers that each operation writes

    def operation(self, position: int, op: Op, manifest: Contract | Manifest) -> None:
        known = self.specs.get(id(manifest))
        if known is None:
            known = self.specs[id(manifest)] = (manifest, {spec.name: spec for spec in manifest.tensors})
        specs = known[1]
        if op.tensors.keys() != specs.keys() or len(op.scalars) != len(manifest.scalars):
            raise self._wrong_parameters(op, manifest)
        for name, view in op.tensors.items():
            self._view(op, specs[name], view)
        for check in manifest.value_checks:
            buffer = self.graph.buffers[op.tensors[check.tensor].buffer]
            if buffer.low is None or buffer.high is None or (check.distinct and not buffer.distinct):
                raise self._refuse(op, buffer, f"must have known bounds, as `{check.tensor}` of `{op.kernel}`")
        for name, view in op.tensors.items():  # all is read before anything is written
            if specs[name].access in READS:
                self._reads(position, op, view)
        self.made.append([view.buffer for name, view in op.tensors.items() if specs[name].access in WRITES])
        for name, view in op.tensors.items():
            if specs[name].access not in READS | WRITES:
                raise self._refuse(
                    op, self.graph.buffers[view.buffer], f"is `{specs[name].access}`, which a step has no rule for"
                )
            if specs[name].access in WRITES:
                self._writes(position, op, name, view)
        for view in op.tensors.values():
            if self.graph.buffers[view.buffer].kind is Kind.ACTIVATION:
                first, _ = self.alive.get(view.buffer, (position, position))
                self.alive[view.buffer] = (first, position)

    def ends(self) -> None:
        """What must hold after the last operation."""
        for buffer in self.graph.buffers.values():
            if buffer.kind is Kind.OUTPUT and not self._covered(View(buffer.name, buffer.shape)):
                raise _refuse(self.graph, buffer.name, "is an output that no operation writes whole")
        for position, (op, made) in enumerate(zip(self.graph.ops, self.made, strict=True)):
            if all(
                self.graph.buffers[name].kind is Kind.ACTIVATION and self.last_read.get(name, 0) <= position for name in made
            ):
                raise self._refuse(op, self.graph.buffers[made[0]], "is written for nothing: no later operation reads it")

    def _refuse(self, op: Op, buffer: Buffer, what: str) -> GraphError:
        return _refuse(self.graph, buffer.name, what, op.name)

    def _wrong_parameters(self, op: Op, manifest: Contract | Manifest) -> GraphError:
        wanted = {spec.name for spec in (*manifest.tensors, *manifest.scalars)}
        name = min(wanted ^ (op.tensors.keys() | op.scalars.keys()), default="")
        what = "is not given" if name in wanted else "is unknown to the kernel"
        return GraphError(
            f"operation `{op.name}`: parameter `{name}` of `{op.kernel}` {what}", where=f"step `{self.graph.name}`"
        )

    def _view(self, op: Op, spec: TensorSpec, view: View) -> None:
        buffer = self.graph.buffers.get(view.buffer)
        if buffer is None:
            raise _refuse(self.graph, view.buffer, "is not one of the step", op.name)
        if buffer.dtype != spec.dtype or len(view.shape) != len(spec.dims):
            wanted = f"{spec.dtype} of rank {len(spec.dims)}"
            raise self._refuse(op, buffer, f"is {buffer.dtype} of rank {len(view.shape)}, and `{spec.name}` takes {wanted}")
        if view.offset < 0 or view.offset + view.elements > self.elements[view.buffer]:
            what = (
                f"has {self.elements[view.buffer]} elements, and `{spec.name}` is {view.elements} from element {view.offset} on"
            )
            raise self._refuse(op, buffer, what)

    def _reads(self, position: int, op: Op, view: View) -> None:
        buffer = self.graph.buffers[view.buffer]
        if buffer.kind in MADE and not self._covered(view):
            raise self._refuse(op, buffer, "is read before it is written")
        self.last_read[buffer.name] = position

    def _writes(self, position: int, op: Op, name: str, view: View) -> None:
        buffer = self.graph.buffers[view.buffer]
        if buffer.kind in FIXED:
            raise self._refuse(op, buffer, f"is a {buffer.kind.value}, and is written")
        if buffer.kind is Kind.INPUT and self.last_use[buffer.name] != position:
            raise self._refuse(op, buffer, "is an input that a later operation uses, and is written")
        begin, end = view.offset, view.offset + view.elements
        for other, seen in op.tensors.items():
            if other != name and seen.buffer == view.buffer and seen.offset < end and begin < seen.offset + seen.elements:
                raise self._refuse(op, buffer, f"is written as `{name}`, and is `{other}` too")
        if buffer.kind in MADE and not self._covered(view):
            self.written[buffer.name] = _merged([*self.written.get(buffer.name, []), (begin, end)])

    def _covered(self, view: View) -> bool:
        begin, end = view.offset, view.offset + view.elements
        return any(first <= begin and end <= last for first, last in self.written.get(view.buffer, []))


def _merged(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals without those that touch."""
    if len(parts) == 1:
        return parts
    made: list[tuple[int, int]] = []
    for begin, end in sorted(parts):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((begin, end))
    return made


def _verify_memory(graph: StepGraph, memory: MemoryPlan, alive: Mapping[str, tuple[int, int]]) -> None:
    """Each activation against those that are still alive when it begins to be."""
    still: list[tuple[int, int, int, str]] = []  # last operation, first byte, byte after the last, name
    for name in sorted(alive, key=lambda name: alive[name]):
        buffer, (first, last) = graph.buffers[name], alive[name]
        op = graph.ops[first].name
        begin = memory.offsets.get(name)
        if begin is None:
            raise _refuse(graph, name, "has no place in the arena", op)
        end = begin + buffer.bytes
        if begin < 0 or begin % ALIGNMENT or end > memory.size:
            raise _refuse(graph, name, f"lies at [{begin}, {end}) of an arena of {memory.size} bytes", op)
        still = [other for other in still if other[0] >= first]
        for _, other_begin, other_end, other in still:
            if other_begin < end and begin < other_end:
                raise _refuse(graph, name, f"shares bytes with `{other}`, which is still needed", op)
        still.append((last, begin, end, name))
