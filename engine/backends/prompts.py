"""Prefill steps of any length on a GPU. Memory and launches are checked once for all layers and lengths, extents once a length.

Why a prompt of a new length needs few checks, for lengths of one form (`Step.prefills`):

1. Activations are at the offsets planned for the largest chunk, in every output mode. A shorter chunk has the same operations
   in the same order and buffers that are no larger, so buffers that did not overlap still do not.
2. All layers have the same statements at the same values (`tilec.step`), so a step of `ALL_KINDS` layers has every kind of
   operation. The whole step is verified once at the largest chunk. Another length has the same operations on the same buffers
   (`tilec.step.form`); if its views also cover their buffers whole, only the extents of each kind remain to be checked.
3. Launches that differ only in the layer are a `Series`: checked one by one at the largest chunk, at once for other extents.
4. The checks of a kind depend on its extents, scalars, constants and the facts about its buffers (`_Given`). If these occurred
   with an earlier length, nothing remains to be checked.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from engine.backends.launches import Launches
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import GraphError, verify, verify_extents, verify_operations
from tilec.artifact.records import Manifest
from tilec.runtime import BundledKernel
from tilec.runtime.series import Numbers, Series
from tilec.step.form import Form
from tilec.step.graph import Buffer, Kind, Op, StepGraph
from tilec.step.requests import requests
from tilec.step.step import ALL_KINDS, ALL_PAIRS, HEADS, Head, Step

REMEMBERED: Final = 32
"""Number of prepared steps that are cached, so that a repeated prompt length needs no checks."""

KINDS_REMEMBERED: Final = 2048
"""Number of cached launch parameters, one per kind and extents: those of some hundred lengths."""

_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")

_Kind = tuple[str, str, tuple[str, ...]]
"""Name, kernel and buffers of an operation, with `*` for the layer. Operations of one kind differ only in the layer."""

_Given = tuple[Any, ...]
"""Everything that the checks of an operation of a kind depend on."""

_Uses = list[tuple[str, str, bool]]
"""How a kernel uses each of its tensors: name, access, whether it is read before the grid dependency wait."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one length: the launch parameters of each series, the launches in order, and its inputs by name."""

    numbers: tuple[tuple[Series, Numbers], ...]
    launches: tuple[tuple[Series, int], ...]
    inputs: Mapping[str, Buffer]


@dataclass(frozen=True, slots=True)
class _Known:
    """A checked kind of operation: its series, the launch parameters, and whether its views cover their buffers whole and it
    uses them as at the largest chunk."""

    series: Series
    numbers: Numbers
    whole: bool


class Prompts:
    """The prefill steps of a model of at most `tokens` tokens that have the form of `tokens`."""

    def __init__(self, step: Step, tokens: int, launches: Launches) -> None:
        self._step, self.largest, self._launches = step, tokens, launches
        self._graphs: dict[Head, StepGraph] = {head: step.graph("prefill", head, tokens=tokens) for head in HEADS}
        self.whole = _together(self._graphs.values())
        """Union of the steps in all output modes, at the largest chunk."""
        self.memory = plan_memory(self.whole)
        self._members: dict[_Kind, list[Op]] = {}
        for op in self.whole.ops:
            self._members.setdefault(_kind(op), []).append(op)
        self._kind_numbers = {kind: number for number, kind in enumerate(self._members)}
        places = {_touched(op): place for ops in self._members.values() for place, op in enumerate(ops)}
        self._order = {
            head: tuple((self._kind_numbers[_kind(op)], places[_touched(op)]) for op in graph.ops)
            for head, graph in self._graphs.items()
        }
        self._bytes = {_starred(buffer.name): buffer.bytes for buffer in self.whole.of_kind(Kind.ACTIVATION)}
        self._pointers: dict[str, int] = {}
        self._series: dict[tuple[_Kind, str], Series] = {}
        self._forms: dict[Head, tuple[Form, tuple[_Kind, ...]]] = {}
        self._uses: dict[_Kind, _Uses] = {}
        self._seen_whole: dict[Head, bool] = {}
        self._numbers: dict[tuple[int, _Given], _Known] = {}
        self._kept: OrderedDict[tuple[int, int, Head], Prepared] = OrderedDict()

    def place(self, pointers: Mapping[str, int], arena: int) -> None:
        """Set the addresses of buffers, verify the largest chunk in every output mode, and load the kernels for every
        length."""
        self._pointers = {**pointers, **{name: arena + offset for name, offset in self.memory.offsets.items()}}
        for graph in self._graphs.values():
            alive = {name: self.memory.offsets[name] for name in graph.buffers if name in self.memory.offsets}
            verify(graph, MemoryPlan(alive, self.memory.size), self._contract)
        self._uses = {kind: _uses(self._contract(ops[0])) for kind, ops in self._members.items()}
        for head in HEADS:
            form = self._form(head, ALL_KINDS)
            few = form.at(self.largest)
            self._seen_whole[head] = verify_extents(few, few.ops, self._contract)
            first = {_kind(op): one for op, one in reversed(list(zip(few.ops, form.placed, strict=True)))}
            self._forms[head] = form.only(tuple(first.values())), tuple(first)
        by_name: dict[tuple[str, str], list[_Kind]] = {}
        for kind in self._members:
            by_name.setdefault((f"prefill_{kind[0].rpartition('.')[2]}", kind[1]), []).append(kind)
        for request in requests(self._step, self._launches.bundle.tuning):
            for kind in by_name.get((request.op, request.kernel), ()):
                self._series_of(kind, self._launches.find(self._members[kind][0], request.constants))

    def forget(self) -> None:
        """Drop prepared steps; they are prepared again on demand."""
        self._kept.clear()
        self._numbers.clear()

    def prepared(self, tokens: int, past: int, head: Head) -> Prepared:
        """The step of a chunk; GraphError or DeviceError if a check fails."""
        key = (tokens, past, head)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._prepare(tokens, past, head)
        self._kept[key] = found
        if len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        return found

    def _prepare(self, tokens: int, past: int, head: Head) -> Prepared:
        """Check one operation of each kind; the result is valid for all layers."""
        form, kinds = self._forms[head]
        few = form.at(tokens, past)
        if len(self._numbers) > KINDS_REMEMBERED:
            self._numbers.clear()
        keyed = [(kind, op, (self._kind_numbers[kind], _given(few, op))) for kind, op in zip(kinds, few.ops, strict=True)]
        fresh = [one for one in keyed if one[2] not in self._numbers]
        found = {op.name: self._launches.described(op) for _, op, _ in fresh}
        whole = verify_extents(few, [op for _, op, _ in fresh], lambda op: found[op.name].manifest)
        whole = whole and all(_uses(found[op.name].manifest) == self._uses[kind] for kind, op, _ in fresh)
        self._verify(few, head, whole and all(self._numbers[key].whole for _, _, key in keyed if key in self._numbers))
        for kind, op, key in fresh:
            series = self._series_of(kind, found[op.name])
            self._numbers[key] = _Known(series, self._launches.numbers(few, op, series), whole)
        known = {key[0]: self._numbers[key] for _, _, key in keyed}
        order = [(known[number].series, place) for number, place in self._order[head]]
        inputs = {buffer.name: buffer for buffer in few.of_kind(Kind.INPUT)}
        return Prepared(tuple([(one.series, one.numbers) for one in known.values()]), tuple(order), inputs)

    def _form(self, head: Head, layers: int) -> Form:
        return self._step.form("prefill", head, tokens=self.largest, layers=min(self._step.layers, layers))

    def _verify(self, few: StepGraph, head: Head, whole: bool) -> None:
        """GraphError unless the whole step of this length is valid and needs no more memory than the largest chunk. `whole`:
        the views of every kind cover their buffers whole, and the extents were verified."""
        for buffer in few.of_kind(Kind.ACTIVATION):
            if buffer.bytes > self._bytes.get(_starred(buffer.name), 0):
                what = f"buffer `{buffer.name}` is larger than that of {self.largest} tokens"
                raise GraphError(what, where="step `prefill`")
        if not (whole and self._seen_whole[head]):
            verify_operations(self._form(head, ALL_PAIRS).at(few.tokens), self._contract)

    def _series_of(self, kind: _Kind, found: BundledKernel) -> Series:
        """The series of a kind with a kernel."""
        key = (kind, found.name)
        if key not in self._series:
            self._series[key] = self._launches.series(self.whole, self._members[kind], self._pointers, found)
        return self._series[key]

    def _contract(self, op: Op) -> Manifest:
        return self._launches.described(op).manifest


def _together(graphs: Iterable[StepGraph]) -> StepGraph:
    """A graph with the union of the operations, each once, in an order consistent with every graph. The graphs have a common
    prefix."""
    first, *others = graphs
    whole = StepGraph(first.name, first.tokens, dict(first.buffers), list(first.ops))
    seen = {_touched(op) for op in whole.ops}
    for graph in others:
        whole.buffers |= graph.buffers
        whole.ops += [op for op in graph.ops if _touched(op) not in seen]
        seen |= {_touched(op) for op in graph.ops}
    return whole


def _uses(contract: Manifest) -> _Uses:
    return [(spec.name, spec.access, spec.resident) for spec in contract.tensors]


def _given(graph: StepGraph, op: Op) -> _Given:
    buffers = graph.buffers
    seen = [(view.shape, view.offset, buffers[view.buffer]) for view in op.tensors.values()]
    return (
        *[(shape, offset, like.shape, like.low, like.high, like.distinct) for shape, offset, like in seen],
        *op.scalars.values(), *op.constants.values(),
    )  # fmt: skip


def _touched(op: Op) -> _Kind:
    return op.name, op.kernel, tuple(view.buffer for view in op.tensors.values())


def _kind(op: Op) -> _Kind:
    name, kernel, buffers = _touched(op)
    return _starred(name), kernel, tuple(map(_starred, buffers))


@cache
def _starred(name: str) -> str:
    return _NUMBER.sub(".*", name)
