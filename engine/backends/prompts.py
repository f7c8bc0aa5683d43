"""Prefill steps of any length on a GPU: memory and launches are checked once for all layers and lengths, extents once a length.

What holds of the lengths of one form (`Step.prefills`), and why a prompt of a new length costs little:

1. Activations lie where the longest chunk needs them, under every head. A shorter one has the same operations in the same order
   and buffers that are no larger, so what did not overlap does not.
2. Layers are one text at one set of values (`tilec.step`): a step of `ALL_KINDS` layers has every kind of operation that the
   whole one has. The whole is verified once at the largest chunk; another length has the same operations on the same buffers
   (`tilec.step.form`), and where it sees them whole as well, what is left to look at are the extents of each kind.
3. Launches that differ in the layer are a `Series`: checked one by one at the largest chunk, and for other extents at once.
4. What a kind is checked with are its extents, scalars and constants, and what is known of its buffers (`_Given`). Where these
   came before, with another length, nothing is left to check.
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
from tilec.artifact import Manifest
from tilec.runtime import BundledKernel
from tilec.runtime.series import Numbers, Series
from tilec.step.form import Form
from tilec.step.graph import Kind, Op, StepGraph
from tilec.step.requests import requests
from tilec.step.step import ALL_KINDS, ALL_PAIRS, HEADS, Head, Step

REMEMBERED: Final = 32
"""Steps whose numbers are kept, so that a prompt of a length that came before is not looked at again."""

KINDS_REMEMBERED: Final = 2048
"""Numbers of kinds of operations that are kept: those of some hundred lengths."""

_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")

_Kind = tuple[str, str, tuple[str, ...]]
"""Name, kernel and buffers of an operation, `*` for the layer: those that differ in nothing but the layer are of one kind."""

_Given = tuple[Any, ...]
"""All that an operation of a kind is checked with."""

_Uses = list[tuple[str, str, bool]]
"""What a kernel does with each of its tensors: name, access, whether it is read early."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one length: what each series is set to, and the launches in order."""

    numbers: tuple[tuple[Series, Numbers], ...]
    launches: tuple[tuple[Series, int], ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A kind of operation that was checked: its launches, what they are set to, and whether it sees its buffers whole and uses
    them as at the largest chunk."""

    series: Series
    numbers: Numbers
    whole: bool


class Prompts:
    """The prefill steps of a model that have the form of one of `tokens`, and no more tokens than that."""

    def __init__(self, step: Step, tokens: int, launches: Launches) -> None:
        self._step, self.largest, self._launches = step, tokens, launches
        self._graphs: dict[Head, StepGraph] = {head: step.graph("prefill", head, tokens=tokens) for head in HEADS}
        self.whole = _together(self._graphs.values())
        """All that the steps of every head touch, at the largest chunk."""
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
        """Say where buffers lie, verify the largest chunk under every head, and load the kernels for every length."""
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
        """Drop what was prepared; it is made again when it is needed."""
        self._kept.clear()
        self._numbers.clear()

    def prepared(self, tokens: int, past: int, head: Head) -> Prepared:
        """The step of a chunk; GraphError or DeviceError where it does not hold."""
        key = (tokens, past, head)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._prepare(tokens, past, head)
        self._kept[key] = found
        if len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        return found

    def _prepare(self, tokens: int, past: int, head: Head) -> Prepared:
        """Look at an operation of each kind; what is said of them holds of all layers."""
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
        return Prepared(tuple([(one.series, one.numbers) for one in known.values()]), tuple(order))

    def _form(self, head: Head, layers: int) -> Form:
        return self._step.form("prefill", head, tokens=self.largest, layers=min(self._step.layers, layers))

    def _verify(self, few: StepGraph, head: Head, whole: bool) -> None:
        """GraphError unless the whole step of this length holds together and needs no more memory than the largest chunk.
        `whole`: as its kinds of operations say, whose extents hold."""
        for buffer in few.of_kind(Kind.ACTIVATION):
            if buffer.bytes > self._bytes.get(_starred(buffer.name), 0):
                what = f"buffer `{buffer.name}` is larger than that of {self.largest} tokens"
                raise GraphError(what, where="step `prefill`")
        if not (whole and self._seen_whole[head]):
            verify_operations(self._form(head, ALL_PAIRS).at(few.tokens), self._contract)

    def _series_of(self, kind: _Kind, found: BundledKernel) -> Series:
        """The launches of a kind with a kernel."""
        key = (kind, found.name)
        if key not in self._series:
            self._series[key] = self._launches.series(self.whole, self._members[kind], self._pointers, found)
        return self._series[key]

    def _contract(self, op: Op) -> Manifest:
        return self._launches.described(op).manifest


def _together(graphs: Iterable[StepGraph]) -> StepGraph:
    """A graph of all operations of some that begin alike, each once, in an order that agrees with theirs."""
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
