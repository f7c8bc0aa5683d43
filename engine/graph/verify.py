"""The whole-graph verifier: a step holds together, or it does not run.

Kernels are proven one by one; this shows that a step uses them so that the proofs carry over. What each operation reads and
writes is what its artifact's manifest says (`In`, `Out`, `InOut`): an `Out` is written whole, as the compiler proved.

| rule    | statement                                                                                                    |
|---------|--------------------------------------------------------------------------------------------------------------|
| views   | every parameter has a view inside its buffer, of the dtype and rank that the artifact asks for                  |
| shapes  | extents are those of the artifact's dims, and its launch checks hold (attention: `past + T <= S`)               |
| order   | every element of an activation or output is written before it is read, and no activation is made for nothing  |
| owners  | weights, tables and settings are never written; an input only after its last use in the step; an operation     |
|         | that writes a buffer has no other view of the same elements                                                   |
| early   | what a kernel reads before those before it are complete (`resident`) holds something when the step begins, and  |
|         | no operation before it writes it: a step begins once the one before it is complete                              |
| rows    | of several sequences, an operation that touches a cache keeps to one in each block: whatever it has of each       |
|         | sequence it touches at one place of the first axis, the block's own on one axis of the grid                     |
| memory  | activations that are alive at the same operation do not share bytes of the arena, and lie inside it            |
| ends    | every output is written whole                                                                                 |
| values  | integers that a kernel uses as indices are in buffers with bounds that satisfy the kernel for these shapes     |
|         | (token id < vocab, position < max_seq, distinct slots), and every kernel that writes such a buffer promises    |
|         | what keeps to them (`engine.graph.integers`)                                                                   |

The loader (`tilec.runtime.Kernel.plan`) checks shapes and values again, launch by launch; here a whole step is refused before
any of it runs. Lifetimes are found here anew, not taken from the memory plan's maker.

Contracts do not say what a kernel computes, so two orders can both hold together: a read may come before or after an update in
place (`InOut`) of a buffer that was whole already. Which of them is the model, the tests of its numbers show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

from engine.graph.integers import GraphError, Left, Promised, Replay, left, misread
from engine.graph.plan import ALIGNMENT, MemoryPlan
from tilec.artifact import LaunchCheck, Manifest, ScalarSpec, TensorSpec, ValueCheck, ValuePromise
from tilec.ir.expr import Expr
from tilec.ir.types import DTYPES
from tilec.step.graph import Buffer, Kind, Op, StepGraph, View

MADE: Final = frozenset({Kind.ACTIVATION, Kind.OUTPUT})
"""Kinds that hold nothing when a step begins."""

FIXED: Final = frozenset({Kind.WEIGHT, Kind.TABLE, Kind.SETTING})
"""Kinds that a step does not change."""

SHARED: Final = frozenset({Kind.WEIGHT, Kind.TABLE})
"""Kinds that sequences share."""

READS: Final = frozenset({"in", "inout"})
WRITES: Final = frozenset({"out", "inout"})


@dataclass(frozen=True, slots=True)
class Contract:
    """What an operation's kernel says of itself; an artifact's manifest has these too."""

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    value_checks: tuple[ValueCheck, ...]
    launch_checks: tuple[LaunchCheck, ...] = ()
    promises: tuple[ValuePromise, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Value checks and promises of a kernel, and their bounds for the shapes of an operation where these give them."""

    asked: tuple[tuple[ValueCheck, int | None, int | None], ...]
    promised: tuple[Promised, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A contract by parameter; it is kept, because it is found again by its identity."""

    contract: Contract | Manifest
    specs: dict[str, TensorSpec]
    scalars: dict[str, ScalarSpec]
    integers: tuple[str, ...]  # scalars that dims, checks and bounds may name


def verify(graph: StepGraph, memory: MemoryPlan, contract: Callable[[Op], Contract | Manifest]) -> Replay:
    """Raise GraphError at the first broken rule; it names the operation and the buffer. What the host must know of a step that
    it enqueues again without setting its inputs anew."""
    state = _verified(graph, contract)
    _verify_memory(graph, memory, state.alive)
    inputs = tuple(one for one in graph.of_kind(Kind.INPUT) if one.low is not None and one.high is not None)
    return Replay(graph.name, inputs, tuple(one for one in state.left if graph.buffers[one.buffer].kind is Kind.INPUT))


def verify_operations(graph: StepGraph, contract: Callable[[Op], Contract | Manifest]) -> None:
    """All rules but `memory`, as `verify`."""
    _verified(graph, contract)


def _verified(graph: StepGraph, contract: Callable[[Op], Contract | Manifest]) -> _Step:
    """What is known at the end of a step, each of whose operations keeps to the rules."""
    state = _Step(graph)
    for position, op in enumerate(graph.ops):
        state.operation(position, op, contract(op))
    state.ends()
    return state


def verify_extents(graph: StepGraph, ops: Iterable[Op], contract: Callable[[Op], Contract | Manifest]) -> bool:
    """The rules `views`, `shapes`, `rows` and `values` for some operations of a step, and whether these see buffers whole.
    Where they do, all other rules but `memory` hold if they do for the same operations on the same buffers, seen whole, at
    other extents."""
    state, whole = _Step(graph), True
    for op in ops:
        known = state.known_of(contract(op))
        spans = state.spans(op, known)
        state.extents(op, known)
        whole = whole and all(spans[name] == (0, state.elements[view.buffer]) for name, view in op.tensors.items())
    return whole


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
        self.known: dict[int, _Known] = {}
        self.bounds: dict[object, Bounds] = {}  # layers are alike: shapes are looked at once for each kind of launch
        self.elements = {name: prod(buffer.shape) for name, buffer in graph.buffers.items()}
        self.alive: dict[str, tuple[int, int]] = {}
        self.last_use = {view.buffer: position for position, op in enumerate(graph.ops) for view in op.tensors.values()}
        self.written: dict[str, list[tuple[int, int]]] = {}
        self.last_read: dict[str, int] = {}
        self.changed: set[str] = set()  # what operations have written
        self.left: list[Left] = []  # in buffers with bounds
        self.made: list[list[tuple[str, str]]] = []  # buffers that each operation writes, and how

    def known_of(self, contract: Contract | Manifest) -> _Known:
        """A contract by parameter."""
        known = self.known.get(id(contract))
        if known is None:
            known = self.known[id(contract)] = _Known(
                contract,
                {spec.name: spec for spec in contract.tensors},
                {spec.name: spec for spec in contract.scalars},
                tuple(spec.name for spec in contract.scalars if not DTYPES[spec.dtype].is_float),
            )
        return known

    def spans(self, op: Op, known: _Known) -> dict[str, tuple[int, int]]:
        """The elements that each view of an operation is: the rules `views` and `rows`."""
        specs = known.specs
        if op.tensors.keys() != specs.keys() or op.scalars.keys() != known.scalars.keys():
            raise self._wrong_parameters(op, known.contract)
        spans = {name: self._view(op, specs[name], view) for name, view in op.tensors.items()}
        if self.graph.sequences > 1:
            self._rows(op, specs)
        return spans

    def extents(self, op: Op, known: _Known) -> None:
        """The rules `shapes` and `values`."""
        integers = tuple(self._integer(op, name) for name in known.integers)
        key = (id(known.contract), integers, *[(name, view.shape) for name, view in op.tensors.items()])
        bounds = self.bounds.get(key)
        if bounds is None:
            bounds = self.bounds[key] = self._bounds(op, known, integers)
        for check, low, high in bounds.asked:
            buffer = self.graph.buffers[op.tensors[check.tensor].buffer]
            broken = misread(op, buffer, check, low, high)
            if broken is not None:
                raise self._refuse(op, buffer, broken)
        for name, view in op.tensors.items():
            if known.specs[name].access != "in":
                promised = [one for one in bounds.promised if one[0].tensor == name]
                buffer = self.graph.buffers[view.buffer]
                found = left(self.graph, op, name, promised, lambda what, buffer=buffer: self._refuse(op, buffer, what))
                if found is not None:
                    self.left.append(found)

    def operation(self, position: int, op: Op, contract: Contract | Manifest) -> None:
        """The next operation, and what it does to what is known."""
        known = self.known_of(contract)
        specs, buffers = known.specs, self.graph.buffers
        spans = self.spans(op, known)
        made: list[tuple[str, str]] = []
        for name, view in op.tensors.items():  # all is read before anything is written
            access = specs[name].access
            if access not in READS | WRITES:
                raise self._refuse(op, buffers[view.buffer], f"is `{access}`, which a step has no rule for")
            if specs[name].resident and (buffers[view.buffer].kind in MADE or view.buffer in self.changed):
                what = f"is `{name}`, which `{op.kernel}` reads before earlier operations are complete"
                raise self._refuse(op, buffers[view.buffer], what)
            if access in READS:
                self._reads(position, op, view.buffer, spans[name])
            if access in WRITES:
                made.append((view.buffer, access))
        if not made:
            name = next((view.buffer for view in op.tensors.values()), "")
            raise _refuse(self.graph, name, f"is read for nothing: `{op.kernel}` writes no buffer", op.name)
        self.made.append(made)
        for name, view in op.tensors.items():
            if specs[name].access in WRITES:
                self._writes(position, op, name, view.buffer, spans)
            if buffers[view.buffer].kind is Kind.ACTIVATION:
                first, _ = self.alive.get(view.buffer, (position, position))
                self.alive[view.buffer] = (first, position)
        self.extents(op, known)

    def ends(self) -> None:
        """What must hold after the last operation."""
        buffers = self.graph.buffers
        for buffer in buffers.values():
            if buffer.kind is Kind.OUTPUT and not self._covered(buffer.name, (0, self.elements[buffer.name])):
                raise _refuse(self.graph, buffer.name, "is an output that no operation writes whole")
        for position, (op, made) in enumerate(zip(self.graph.ops, self.made, strict=True)):
            unread = [
                (name, access)
                for name, access in made
                if buffers[name].kind is Kind.ACTIVATION and self.last_read.get(name, 0) <= position
            ]
            if len(unread) < len(made):
                # What was updated in place may have served already. The last operation of a step that only fills the cache
                # leaves queries behind.
                last = position == len(self.made) - 1 and any(buffers[name].kind is Kind.CACHE for name, _ in made)
                unread = [] if last else [(name, access) for name, access in unread if access == "out"]
            if unread:
                raise self._refuse(op, buffers[unread[0][0]], "is written for nothing: no later operation reads it")

    def _refuse(self, op: Op, buffer: Buffer, what: str) -> GraphError:
        return _refuse(self.graph, buffer.name, what, op.name)

    def _wrong_parameters(self, op: Op, manifest: Contract | Manifest) -> GraphError:
        wanted = {spec.name for spec in (*manifest.tensors, *manifest.scalars)}
        name = min(wanted ^ (op.tensors.keys() | op.scalars.keys()), default="")
        what = "is not given" if name in wanted else "is unknown to the kernel"
        return GraphError(
            f"operation `{op.name}`: parameter `{name}` of `{op.kernel}` {what}", where=f"step `{self.graph.name}`"
        )

    def _view(self, op: Op, spec: TensorSpec, view: View) -> tuple[int, int]:
        """The elements of the buffer that a view is, as first and one past the last."""
        buffer = self.graph.buffers.get(view.buffer)
        if buffer is None:
            raise _refuse(self.graph, view.buffer, "is not one of the step", op.name)
        if buffer.dtype != spec.dtype or len(view.shape) != len(spec.dims):
            wanted = f"{spec.dtype} of rank {len(spec.dims)}"
            raise self._refuse(op, buffer, f"is {buffer.dtype} of rank {len(view.shape)}, and `{spec.name}` takes {wanted}")
        if spec.strides is not None:
            raise self._refuse(op, buffer, f"is row-major, and `{spec.name}` of `{op.kernel}` has strides")
        if min(view.shape, default=1) < 1:
            raise self._refuse(op, buffer, f"is seen as `{spec.name}` of shape {view.shape}, which has no elements")
        begin, end = view.offset, view.offset + prod(view.shape)
        if begin < 0 or end > self.elements[view.buffer]:
            what = f"has {self.elements[view.buffer]} elements, and `{spec.name}` is {end - begin} from element {begin} on"
            raise self._refuse(op, buffer, what)
        return begin, end

    def _rows(self, op: Op, specs: Mapping[str, TensorSpec]) -> None:
        """That an operation that touches a cache keeps to one sequence in each block."""
        buffers, sequences = self.graph.buffers, self.graph.sequences
        caches = [name for name, view in op.tensors.items() if buffers[view.buffer].kind is Kind.CACHE]
        axes = {specs[name].row for name in caches}
        for name, view in op.tensors.items() if caches else ():
            buffer = buffers[view.buffer]
            if buffer.kind in SHARED:
                continue
            if view.shape[0] != sequences or view.offset or view.elements != self.elements[buffer.name]:
                what = f"is not all of {sequences} sequences as `{name}` of shape {view.shape}"
                raise self._refuse(op, buffer, what)
            if specs[name].row is None or len(axes) > 1 or specs[name].row not in axes:
                what = f"is of several sequences, and `{op.kernel}` does not keep to one of them in `{name}`"
                raise self._refuse(op, buffer, what)

    def _integer(self, op: Op, name: str) -> int:
        value = op.scalars[name]
        if not isinstance(value, int):
            where = f"step `{self.graph.name}`"
            raise GraphError(f"operation `{op.name}`: scalar `{name}` of `{op.kernel}` is {value}, not an integer", where=where)
        return value

    def _reads(self, position: int, op: Op, name: str, span: tuple[int, int]) -> None:
        if self.graph.buffers[name].kind in MADE and not self._covered(name, span):
            raise self._refuse(op, self.graph.buffers[name], "is read before it is written")
        self.last_read[name] = position

    def _writes(self, position: int, op: Op, parameter: str, name: str, spans: Mapping[str, tuple[int, int]]) -> None:
        buffer = self.graph.buffers[name]
        self.changed.add(name)
        if buffer.kind in FIXED:
            raise self._refuse(op, buffer, f"is a {buffer.kind.value}, and is written")
        if buffer.kind is Kind.INPUT and self.last_use[name] != position:
            raise self._refuse(op, buffer, "is an input that a later operation uses, and is written")
        begin, end = span = spans[parameter]
        for other, seen in op.tensors.items():
            if seen.buffer == name and other != parameter and spans[other][0] < end and begin < spans[other][1]:
                raise self._refuse(op, buffer, f"is written as `{parameter}`, and is `{other}` too")
        if buffer.kind in MADE and not self._covered(name, span):
            self.written[name] = _merged([*self.written.get(name, []), span])

    def _covered(self, name: str, span: tuple[int, int]) -> bool:
        begin, end = span
        return any(first <= begin and end <= last for first, last in self.written.get(name, ()))

    def _bounds(self, op: Op, known: _Known, integers: tuple[int, ...]) -> Bounds:
        """What the contract asks of stored integers and promises of them, all extents and launch checks held against the shapes
        first. A dim that no tensor has by itself is left to the loader, as are launch checks that need it."""
        dims = dict(zip(known.integers, integers, strict=True))
        for name, spec in known.specs.items():
            for dim, extent in zip(spec.dims, op.tensors[name].shape, strict=True):
                if dim.op == "sym":
                    dims.setdefault(dim.name, extent)
        for name, spec in known.specs.items():
            for axis, (dim, extent) in enumerate(zip(spec.dims, op.tensors[name].shape, strict=True)):
                wanted = _value(dim, dims)
                if wanted is not None and wanted != extent:
                    buffer = self.graph.buffers[op.tensors[name].buffer]
                    given = str(wanted) if dim.op == "const" else f"{dim} = {wanted}"
                    raise self._refuse(
                        op, buffer, f"has extent {extent} on axis {axis} of `{name}`, and `{op.kernel}` takes {given}"
                    )
        for check in known.contract.launch_checks:
            if _value(check.condition, dims) == 0:
                given = ", ".join(f"{name} = {dims[name]}" for name in dict.fromkeys(check.condition.symbols()))
                raise _refuse(
                    self.graph, self._limiting(op, known, check), f"breaks `{check.text}` of `{op.kernel}`: {given}", op.name
                )
        asked = tuple((one, _value(one.low, dims), _value(one.high, dims)) for one in known.contract.value_checks)
        return Bounds(asked, tuple((one, _value(one.low, dims), _value(one.high, dims)) for one in known.contract.promises))

    def _limiting(self, op: Op, known: _Known, check: LaunchCheck) -> str:
        """The buffer that gives the last dim a condition names, since limits are written on the right."""
        for symbol in reversed(list(check.condition.symbols())):
            for name, spec in known.specs.items():
                if any(dim.op == "sym" and dim.name == symbol for dim in spec.dims):
                    return op.tensors[name].buffer
        return next(iter(op.tensors.values())).buffer


def _value(expr: Expr, dims: Mapping[str, int]) -> int | None:
    """An expression of a manifest, or None where it names a dim that is not known or divides by zero."""
    try:
        return expr.evaluate(dims)
    except (KeyError, ZeroDivisionError):
        return None


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
    for name in memory.offsets:
        if name not in graph.buffers or graph.buffers[name].kind is not Kind.ACTIVATION:
            raise _refuse(graph, name, "has a place in the arena, and is no activation of the step")
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
