"""The whole-graph verifier: it accepts a step only if every operation uses its kernel within the kernel's proofs.

Kernels are proven one by one; these rules carry the proofs over to the step. The access of each operation is that of its
artifact's manifest (`In`, `Out`, `InOut`); an `Out` is written whole, as the compiler proved.

| rule    | statement                                                                                                    |
|---------|--------------------------------------------------------------------------------------------------------------|
| views   | every parameter has a view inside its buffer, of the dtype and rank that the artifact requires                |
| shapes  | extents match the artifact's dims, and its launch checks are satisfied (attention: `past + T <= S`)           |
| order   | every element of an activation or output is written before it is read, and every activation is used           |
| owners  | weights, tables and settings are never written; an input only after its last use in the step; an operation    |
|         | that writes a buffer has no other view of the same elements                                                   |
| early   | a `resident` tensor, which a kernel may read before its grid dependency wait, is of a kind that has contents  |
|         | when the step begins, and no earlier operation of the step writes it; unless the operation overlaps no        |
|         | earlier one (`may_overlap`). Steps do not overlap each other                                                  |
| rows    | in a batch, a block of an operation that uses a cache accesses one sequence only: of every tensor with rows   |
|         | per sequence, the index on the first axis is the block's index on one grid axis, the same for all             |
| pages   | a pool is read at pages of the step's table, and written at the step's slots, no two of which are the same:   |
|         | the host checks who has these whenever it sends them (`engine.graph.pages`). A copy of the pages of several   |
|         | prompts is read from each token's first to its last slot, as the host sends them                              |
| memory  | activations that are live at the same operation do not overlap in the arena, and all lie inside it            |
|         | (`engine.graph.memory_rule`)                                                                                  |
| ends    | every output is written whole                                                                                 |
| values  | integers that a kernel uses as indices are in buffers with bounds that satisfy the kernel for these shapes    |
|         | (token id < vocab, position < max_seq, distinct slots, experts of a token that differ), and every kernel that |
|         | writes such a buffer promises to stay within them (`engine.graph.integers`)                                   |

The loader (`tilec.runtime.Kernel.plan`) checks shapes and values again, launch by launch; the verifier refuses a whole step
before any of it runs. It computes lifetimes itself and does not trust those of the memory plan.

Contracts do not say what a kernel computes, so two orders can both be accepted: a read may come before or after an in-place
update (`InOut`) of a buffer that was already whole. Numerical tests decide which of them is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from engine.graph.contract import Contract
from engine.graph.integers import GraphError, Promised, Replay, WrittenValues, bounds_violation, written_values
from engine.graph.memory_rule import refused, verify_memory
from engine.graph.pages_rule import check_copies, check_pools
from engine.graph.plan import MemoryPlan
from tilec.artifact.records import LaunchCheck, Manifest, ScalarSpec, TensorSpec, ValueCheck
from tilec.ir.expr import Expr
from tilec.ir.types import DTYPES
from tilec.step.graph import Buffer, Kind, Op, StepGraph, View

UNINITIALIZED: Final = frozenset({Kind.ACTIVATION, Kind.OUTPUT})
"""Kinds that are uninitialized when a step begins."""

READ_ONLY: Final = frozenset({Kind.WEIGHT, Kind.TABLE, Kind.SETTING})
"""Kinds that a step must not write."""

SHARED: Final = frozenset({Kind.WEIGHT, Kind.TABLE})
"""Kinds that are shared between sequences."""

STORES: Final = frozenset({Kind.CACHE, Kind.POOL})
"""Kinds of keys and values."""

READS: Final = frozenset({"in", "inout"})
WRITES: Final = frozenset({"out", "inout"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Value checks and promises of a kernel with their bounds for an operation's shapes, None if the shapes do not give
    them."""

    required: tuple[tuple[ValueCheck, int | None, int | None], ...]
    promised: tuple[Promised, ...]


@dataclass(frozen=True, slots=True)
class _IndexedContract:
    """A contract by parameter. It keeps the contract alive, because it is looked up by `id`."""

    contract: Contract | Manifest
    specs: dict[str, TensorSpec]
    scalars: dict[str, ScalarSpec]
    integers: tuple[str, ...]  # scalars that dims, checks and bounds may refer to


def may_overlap(graph: StepGraph, op: Op, contract: Contract | Manifest) -> bool:
    """Whether a launch may begin before the previous one has ended: if the step says so, and also if all that its kernel reads
    before its grid dependency wait is of kinds that no step writes. Everything else it reads and writes after the wait."""
    return op.overlaps or all(
        graph.buffers[op.tensors[spec.name].buffer].kind in READ_ONLY for spec in contract.tensors if spec.resident
    )


def verify(graph: StepGraph, memory: MemoryPlan, contract: Callable[[Op], Contract | Manifest]) -> Replay:
    """Raise GraphError at the first broken rule; it names the operation and the buffer. Returns what the host must track when
    it enqueues the step again without setting its inputs."""
    state = _verified(graph, contract)
    verify_memory(graph, memory, state.lifetimes)
    inputs = tuple(buffer for buffer in graph.of_kind(Kind.INPUT) if buffer.low is not None and buffer.high is not None)
    return Replay(
        graph.name, inputs, tuple(buffer for buffer in state.written_values if graph.buffers[buffer.buffer].kind is Kind.INPUT)
    )


def verify_operations(graph: StepGraph, contract: Callable[[Op], Contract | Manifest]) -> None:
    """Check all rules except `memory`, as `verify`."""
    _verified(graph, contract)


def _verified(graph: StepGraph, contract: Callable[[Op], Contract | Manifest]) -> _Step:
    """The final state of a step whose operations satisfy the rules."""
    state = _Step(graph)
    for position, op in enumerate(graph.ops):
        state.operation(position, op, contract(op))
    state.finish()
    return state


def verify_extents(graph: StepGraph, ops: Iterable[Op], contract: Callable[[Op], Contract | Manifest]) -> bool:
    """Check the rules `views`, `shapes`, `rows` and `values` for some operations of a step; returns whether their views cover
    whole buffers. If they do, all other rules but `memory` follow from the same operations on the same whole buffers at other
    extents."""
    state, covers_whole = _Step(graph), True
    for op in ops:
        indexed = state.indexed_contract(contract(op))
        spans = state.spans(op, indexed)
        state.extents(op, indexed)
        covers_whole = covers_whole and all(
            spans[name] == (0, state.elements[view.buffer]) for name, view in op.tensors.items()
        )
    return covers_whole


class _Step:
    """What is known about buffers after each operation."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.indexed: dict[int, _IndexedContract] = {}
        self.bounds: dict[object, Bounds] = {}  # layers are alike, so shapes are checked once per kind of launch
        self.elements = {name: prod(buffer.shape) for name, buffer in graph.buffers.items()}
        self.lifetimes: dict[str, tuple[int, int]] = {}
        self.last_use = {view.buffer: position for position, op in enumerate(graph.ops) for view in op.tensors.values()}
        self.written: dict[str, list[tuple[int, int]]] = {}
        self.last_read: dict[str, int] = {}
        self.changed: set[str] = set()  # buffers that operations have written
        self.written_values: list[WrittenValues] = []  # for buffers with bounds
        self.writes: list[list[tuple[str, str]]] = []  # buffers that each operation writes, and the access

    def indexed_contract(self, contract: Contract | Manifest) -> _IndexedContract:
        """A contract by parameter; cached."""
        indexed = self.indexed.get(id(contract))
        if indexed is None:
            indexed = self.indexed[id(contract)] = _IndexedContract(
                contract,
                {spec.name: spec for spec in contract.tensors},
                {spec.name: spec for spec in contract.scalars},
                tuple(spec.name for spec in contract.scalars if not DTYPES[spec.dtype].is_float),
            )
        return indexed

    def spans(self, op: Op, indexed: _IndexedContract) -> dict[str, tuple[int, int]]:
        """The element range of each view of an operation; checks the rules `views` and `rows`."""
        specs = indexed.specs
        if op.tensors.keys() != specs.keys() or op.scalars.keys() != indexed.scalars.keys():
            raise self._wrong_parameters(op, indexed.contract)
        spans = {name: self._view(op, specs[name], view) for name, view in op.tensors.items()}
        if self.graph.sequences > 1:
            self._rows(op, specs)
        check_pools(self.graph, op, specs.values(), indexed.contract.value_checks)
        check_copies(self.graph, op, specs.values(), indexed.contract.value_checks)
        return spans

    def extents(self, op: Op, indexed: _IndexedContract) -> None:
        """Check the rules `shapes` and `values`."""
        integers = tuple(self._integer(op, name) for name in indexed.integers)
        key = (id(indexed.contract), integers, *[(name, view.shape) for name, view in op.tensors.items()])
        bounds = self.bounds.get(key)
        if bounds is None:
            bounds = self.bounds[key] = self._bounds(op, indexed, integers)
        for check, low, high in bounds.required:
            buffer = self.graph.buffers[op.tensors[check.tensor].buffer]
            violation = bounds_violation(op, buffer, check, low, high)
            if violation is not None:
                raise self._refuse(op, buffer, violation)
        for name, view in op.tensors.items():
            if indexed.specs[name].access != "in":
                promised = [promise for promise in bounds.promised if promise[0].tensor == name]
                buffer = self.graph.buffers[view.buffer]
                written = written_values(
                    self.graph, op, name, promised, lambda what, buffer=buffer: self._refuse(op, buffer, what)
                )
                if written is not None:
                    self.written_values.append(written)

    def operation(self, position: int, op: Op, contract: Contract | Manifest) -> None:
        """Check the next operation and update the state."""
        indexed = self.indexed_contract(contract)
        specs, buffers = indexed.specs, self.graph.buffers
        spans = self.spans(op, indexed)
        writes: list[tuple[str, str]] = []
        for name, view in op.tensors.items():  # an operation reads all its inputs before it writes
            access = specs[name].access
            if access not in READS | WRITES:
                raise self._refuse(op, buffers[view.buffer], f"is `{access}`, which a step has no rule for")
            written = buffers[view.buffer].kind in UNINITIALIZED or view.buffer in self.changed
            if specs[name].resident and written and may_overlap(self.graph, op, contract):
                what = f"is `{name}`, which `{op.kernel}` reads before earlier operations are complete"
                raise self._refuse(op, buffers[view.buffer], what)
            if access in READS:
                self._reads(position, op, view.buffer, spans[name])
            if access in WRITES:
                writes.append((view.buffer, access))
        if not writes:
            name = next((view.buffer for view in op.tensors.values()), "")
            raise refused(self.graph, name, f"is read for nothing: `{op.kernel}` writes no buffer", op.name)
        self.writes.append(writes)
        for name, view in op.tensors.items():
            if specs[name].access in WRITES:
                self._writes(position, op, name, view.buffer, spans)
            if buffers[view.buffer].kind is Kind.ACTIVATION:
                first, _ = self.lifetimes.get(view.buffer, (position, position))
                self.lifetimes[view.buffer] = (first, position)
        self.extents(op, indexed)

    def finish(self) -> None:
        """Check the rules on whole steps after the last operation."""
        buffers = self.graph.buffers
        for buffer in buffers.values():
            if buffer.kind is Kind.OUTPUT and not self._covered(buffer.name, (0, self.elements[buffer.name])):
                raise refused(self.graph, buffer.name, "is an output that no operation writes whole")
        for position, (op, writes) in enumerate(zip(self.graph.ops, self.writes, strict=True)):
            unread = [
                (name, access)
                for name, access in writes
                if buffers[name].kind is Kind.ACTIVATION and self.last_read.get(name, 0) <= position
            ]
            if len(unread) < len(writes):
                # An `inout` buffer may have been read before its update. The last operation of a step that only fills the cache
                # leaves queries unread.
                last = position == len(self.writes) - 1 and any(buffers[name].kind in STORES for name, _ in writes)
                unread = [] if last else [(name, access) for name, access in unread if access == "out"]
            if unread:
                raise self._refuse(op, buffers[unread[0][0]], "is written for nothing: no later operation reads it")

    def _refuse(self, op: Op, buffer: Buffer, what: str) -> GraphError:
        return refused(self.graph, buffer.name, what, op.name)

    def _wrong_parameters(self, op: Op, manifest: Contract | Manifest) -> GraphError:
        expected = {spec.name for spec in (*manifest.tensors, *manifest.scalars)}
        name = min(expected ^ (op.tensors.keys() | op.scalars.keys()), default="")
        what = "is not given" if name in expected else "is unknown to the kernel"
        return GraphError(
            f"operation `{op.name}`: parameter `{name}` of `{op.kernel}` {what}", where=f"step `{self.graph.name}`"
        )

    def _view(self, op: Op, spec: TensorSpec, view: View) -> tuple[int, int]:
        """The element range of a view in its buffer, as [first, end)."""
        buffer = self.graph.buffers.get(view.buffer)
        if buffer is None:
            raise refused(self.graph, view.buffer, "is not one of the step", op.name)
        if buffer.dtype != spec.dtype or len(view.shape) != len(spec.dims):
            expected = f"{spec.dtype} of rank {len(spec.dims)}"
            raise self._refuse(op, buffer, f"is {buffer.dtype} of rank {len(view.shape)}, and `{spec.name}` takes {expected}")
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
        """Check the rule `rows`."""
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
        if self.graph.buffers[name].kind in UNINITIALIZED and not self._covered(name, span):
            raise self._refuse(op, self.graph.buffers[name], "is read before it is written")
        self.last_read[name] = position

    def _writes(self, position: int, op: Op, parameter: str, name: str, spans: Mapping[str, tuple[int, int]]) -> None:
        buffer = self.graph.buffers[name]
        self.changed.add(name)
        if buffer.kind in READ_ONLY:
            raise self._refuse(op, buffer, f"is a {buffer.kind.value}, and is written")
        if buffer.kind is Kind.INPUT and self.last_use[name] != position:
            raise self._refuse(op, buffer, "is an input that a later operation uses, and is written")
        begin, end = span = spans[parameter]
        for other, other_view in op.tensors.items():
            if other_view.buffer == name and other != parameter and spans[other][0] < end and begin < spans[other][1]:
                raise self._refuse(op, buffer, f"is written as `{parameter}`, and is `{other}` too")
        if buffer.kind in UNINITIALIZED and not self._covered(name, span):
            self.written[name] = _merged([*self.written.get(name, []), span])

    def _covered(self, name: str, span: tuple[int, int]) -> bool:
        begin, end = span
        return any(first <= begin and end <= last for first, last in self.written.get(name, ()))

    def _bounds(self, op: Op, indexed: _IndexedContract, integers: tuple[int, ...]) -> Bounds:
        """Value checks and promises of the contract, after all extents and launch checks are verified against the shapes. Dims
        that no tensor has on their own, and launch checks that need them, are left to the loader."""
        dims = dict(zip(indexed.integers, integers, strict=True))
        for name, spec in indexed.specs.items():
            for dim, extent in zip(spec.dims, op.tensors[name].shape, strict=True):
                if dim.op == "sym":
                    dims.setdefault(dim.name, extent)
        for name, spec in indexed.specs.items():
            for axis, (dim, extent) in enumerate(zip(spec.dims, op.tensors[name].shape, strict=True)):
                expected = _value(dim, dims)
                if expected is not None and expected != extent:
                    buffer = self.graph.buffers[op.tensors[name].buffer]
                    described = str(expected) if dim.op == "const" else f"{dim} = {expected}"
                    raise self._refuse(
                        op, buffer, f"has extent {extent} on axis {axis} of `{name}`, and `{op.kernel}` takes {described}"
                    )
        for check in indexed.contract.launch_checks:
            if _value(check.condition, dims) == 0:
                described = ", ".join(f"{name} = {dims[name]}" for name in dict.fromkeys(check.condition.symbols()))
                raise refused(
                    self.graph,
                    self._limiting(op, indexed, check),
                    f"breaks `{check.text}` of `{op.kernel}`: {described}",
                    op.name,
                )
        required = tuple((entry, _value(entry.low, dims), _value(entry.high, dims)) for entry in indexed.contract.value_checks)
        return Bounds(
            required, tuple((entry, _value(entry.low, dims), _value(entry.high, dims)) for entry in indexed.contract.promises)
        )

    def _limiting(self, op: Op, indexed: _IndexedContract, check: LaunchCheck) -> str:
        """The buffer that determines the last dim in a condition: limits are written on the right."""
        for symbol in reversed(list(check.condition.symbols())):
            for name, spec in indexed.specs.items():
                if any(dim.op == "sym" and dim.name == symbol for dim in spec.dims):
                    return op.tensors[name].buffer
        return next(iter(op.tensors.values())).buffer


def _value(expr: Expr, dims: Mapping[str, int]) -> int | None:
    """The value of a manifest's expression; None if it uses an unknown dim or divides by zero."""
    try:
        return expr.evaluate(dims)
    except (KeyError, ZeroDivisionError):
        return None


def _merged(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted intervals, with overlapping and adjacent ones merged."""
    if len(parts) == 1:
        return parts
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(parts):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
