"""Prefill steps of any length on a GPU. Memory and launches are checked once for all layers and lengths, extents once a length.

Why a prompt of a new length needs few checks, for lengths of one form (`Step.prefills`):

1. Activations are at the offsets planned for the largest chunk, in every output mode. A shorter chunk has the same operations
   in the same order and buffers that are no larger, so buffers that did not overlap still do not.
2. All layers have the same statements at the same values (`tilec.step`), so a step of `ALL_KINDS` layers has every kind of
   operation; where a text has several kinds of layers, a step of all does (`Step.few_layers`). The whole step is verified once
   at the largest chunk. Another length has the same operations on the same buffers (`tilec.step.form`); if its views also
   cover their buffers whole, only the extents of each kind remain to be checked.
3. Launches that differ only in the layer are a `Series`: checked one by one at the largest chunk, at once for other extents.
4. The checks of a kind depend on its extents, scalars, constants and the facts about its buffers (`_CheckInputs`). If these
   occurred with an earlier length, nothing remains to be checked.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from engine.backends.launches import Launches
from engine.graph.contract import Contract
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import GraphError, may_overlap, verify, verify_extents, verify_operations
from engine.ranks.verify import verify_lasting
from tilec.artifact.records import Manifest
from tilec.runtime import BundledKernel
from tilec.runtime.series import Numbers, Series
from tilec.step.form import Form
from tilec.step.graph import Buffer, Kind, Op, StepGraph
from tilec.step.requests import requests
from tilec.step.step import ALL_KINDS, ALL_PAIRS, OUTPUT_MODES, Mode, OutputMode, Step

TILE_ROWS: Final = 64
"""Rows of the smallest tile of a product of many tokens: so many tokens take as long as one."""

SMALL_TILES: Final = (16, 32)
"""The same of products of small M."""

CACHED_STEPS: Final = 512
"""Number of prepared steps that are cached, so that a repeated prompt length needs no checks: more than are prepared in advance
for chunks of 8192 tokens, of 130 lengths in two output modes."""

CACHED_KINDS: Final = 8192
"""Number of cached launch parameters, one per kind and extents: those of some hundred lengths."""

_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")

_Kind = tuple[str, str, tuple[str, ...]]
"""Name, kernel and buffers of an operation, with `*` for the layer. Operations of one kind differ only in the layer."""

_CheckInputs = tuple[Any, ...]
"""Everything that the checks of an operation of a kind depend on."""

_Uses = list[tuple[str, str, bool]]
"""How a kernel uses each of its tensors: name, access, whether it is read before the grid dependency wait."""


def padded_length(tokens: int) -> int:
    """The least number of tokens that fills whole tiles and is not below `tokens`. Prompts are computed with that many, so that
    a few dozen lengths are all there are, and each is prepared before the first prompt comes."""
    return next((rows for rows in SMALL_TILES if tokens <= rows), -(-tokens // TILE_ROWS) * TILE_ROWS)


def padded_chunk(tokens: int, past: int, largest: int, slots: int) -> int:
    """The number of tokens that a chunk of `tokens` after `past` others is computed with, `largest` at most: that of whole
    tiles, while all of their positions are in caches of `slots`."""
    padded = min(padded_length(tokens), largest)
    return padded if past + padded <= slots else tokens


ROOM_SLOTS: Final = 512
"""Slots that chunks over pages copy are a multiple of that, so that few numbers occur with each number of tokens."""


def padded_room(tokens: int, filled: int, largest: int, most: int) -> tuple[int, int]:
    """The numbers of tokens, `largest` at most, and of copied slots, `most` at most, with which a chunk over pages is computed
    that has `tokens` and needs `filled`."""
    return min(padded_length(tokens), largest), min(-(-filled // ROOM_SLOTS) * ROOM_SLOTS, most)


def padded_lengths(largest: int) -> list[int]:
    """All numbers of tokens up to `largest` with which prompts of up to `largest` tokens are computed."""
    return sorted({min(padded_length(tokens), largest) for tokens in range(1, largest + 1)})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one length: the launch parameters of each series, the launches in order, each with whether it may overlap the
    previous one, and its inputs by name."""

    numbers: tuple[tuple[Series, Numbers], ...]
    launches: tuple[tuple[Series, int, bool], ...]
    inputs: Mapping[str, Buffer]

    def launch(self, stream: int) -> None:
        """Enqueue the launches on inputs that were set."""
        for series, numbers in self.numbers:
            series.use(numbers)
        for number, (series, index, overlaps) in enumerate(self.launches):
            series.launch(index, stream, overlap=overlaps and number > 0)


def only_mode(step: Step, mode: Mode) -> Step:
    """A step with one of its modes, to ask for the constants of its launches alone: those of the others take as long again."""
    found = copy(step)
    found.declaration = replace(step.declaration, modes={mode: step.declaration.modes[mode]})
    return found


@dataclass(frozen=True, slots=True)
class _CheckedKind:
    """A checked kind of operation: its series, the launch parameters, whether its views cover their buffers whole and it uses
    them as at the largest chunk, and whether it may overlap the previous launch."""

    series: Series
    numbers: Numbers
    whole: bool
    overlaps: bool


class PrefillSteps:
    """The prefill steps of a model of at most `tokens` tokens that have the form of `tokens`. `mode`: those of a cache in pages
    are chunks."""

    def __init__(self, step: Step, tokens: int, launches: Launches, mode: Mode = "prefill") -> None:
        self._step, self.largest, self._launches = step, tokens, launches
        self._mode: Mode = mode
        self._graphs: dict[OutputMode, StepGraph] = {
            output_mode: step.graph(mode, output_mode, tokens=tokens) for output_mode in OUTPUT_MODES
        }
        self.whole = union(self._graphs.values())
        """Union of the steps in all output modes, at the largest chunk."""
        self.memory = plan_memory(self.whole)
        self._members: dict[_Kind, list[Op]] = {}
        for op in self.whole.ops:
            self._members.setdefault(_kind(op), []).append(op)
        self._kind_numbers = {kind: number for number, kind in enumerate(self._members)}
        indices = {_operation_key(op): index for ops in self._members.values() for index, op in enumerate(ops)}
        self._order = {
            output_mode: tuple((self._kind_numbers[_kind(op)], indices[_operation_key(op)]) for op in graph.ops)
            for output_mode, graph in self._graphs.items()
        }
        self._bytes = {_any_layer(buffer.name): buffer.bytes for buffer in self.whole.of_kind(Kind.ACTIVATION)}
        self._pointers: dict[str, int] = {}
        self._series: dict[tuple[_Kind, str], Series] = {}
        self._making: dict[tuple[_Kind, str], Generator[None, None, Series]] = {}
        """Series that are made in parts, by whoever needs one next."""
        self._expected: deque[tuple[_Kind, BundledKernel]] = deque()
        self._lengths: Iterator[tuple[int, int, OutputMode]] = iter(())
        self._under_way: Iterator[None] = iter(())
        self._forms: dict[OutputMode, tuple[Form, tuple[_Kind, ...]]] = {}
        self._uses: dict[_Kind, _Uses] = {}
        self._covers_whole: dict[OutputMode, bool] = {}
        self._numbers: dict[tuple[int, _CheckInputs], _CheckedKind] = {}
        self._cached: OrderedDict[tuple[int, int, OutputMode], Prepared] = OrderedDict()

    def bind(
        self, pointers: Mapping[str, int], arena: int, *, later: bool = False,
        lengths: Iterable[tuple[int, int, OutputMode]] = (),
    ) -> None:  # fmt: skip
        """Set the addresses of buffers, verify the largest chunk in every output mode, find the kernels for every length, and
        load them. `later`: one is checked and loaded when it is first used, or by `prepare_next`, which then also prepares the
        steps of `lengths` (tokens, past, output mode), and these first, in their order."""
        self._pointers = {**pointers, **{name: arena + offset for name, offset in self.memory.offsets.items()}}
        for graph in self._graphs.values():
            offsets = {name: self.memory.offsets[name] for name in graph.buffers if name in self.memory.offsets}
            memory = MemoryPlan(offsets, self.memory.size)
            verify(graph, memory, self._contract)
            verify_lasting(graph, memory)
        self._uses = {kind: _uses(self._contract(ops[0])) for kind, ops in self._members.items()}
        for output_mode in OUTPUT_MODES:
            form = self._form(output_mode, ALL_KINDS)
            reduced = form.at(self.largest)
            self._covers_whole[output_mode] = verify_extents(reduced, reduced.ops, self._contract)
            first_of_kind = {
                _kind(op): resolved_ops for op, resolved_ops in reversed(list(zip(reduced.ops, form.resolved_ops, strict=True)))
            }
            self._forms[output_mode] = form.only(tuple(first_of_kind.values())), tuple(first_of_kind)
        by_name: dict[tuple[str, str], list[_Kind]] = {}
        for kind in self._members:
            by_name.setdefault((f"{self._mode}_{kind[0].rpartition('.')[2]}", kind[1]), []).append(kind)
        for request in requests(only_mode(self._step, self._mode), self._launches.bundle.tuning):
            for kind in by_name.get((request.op, request.kernel), ()):
                self._expected.append((kind, self._launches.find(self._members[kind][0], request.constants)))
        self._lengths = iter(lengths)
        while not later and self.prepare_next():
            pass

    @property
    def bound(self) -> bool:
        """Whether `bind` has ended well."""
        return len(self._forms) == len(OUTPUT_MODES)

    def prepare_next(self) -> bool:
        """Do the next part of what is not ready: load a kernel, or check a launch of one layer, or one kind of a length. False
        if nothing is left. What an error ends is not tried again until a prompt needs it."""
        under_way, self._under_way = self._under_way, iter(())
        if next(under_way, self) is self:  # it has ended
            length = next(self._lengths, None)
            if length is not None:
                under_way = self._prepared_in_parts(*length)
            elif self._expected:
                under_way = self._made(*self._expected.popleft())
            else:
                return False
        self._under_way = under_way
        return True

    def padded(self, tokens: int, past: int) -> int:
        """The number of tokens that a chunk of `tokens` after `past` others is computed with."""
        return padded_chunk(tokens, past, self.largest, self.whole.buffers["rope_table"].shape[0])

    def forget(self) -> None:
        """Drop prepared steps; they are prepared again on demand."""
        self._cached.clear()
        self._numbers.clear()

    def prepared(self, tokens: int, past: int, output_mode: OutputMode) -> Prepared:
        """The step of a chunk; GraphError or DeviceError if a check fails."""
        key = (tokens, past, output_mode)
        if key not in self._cached:
            for _ in self._prepared_in_parts(*key):
                pass
        self._cached.move_to_end(key)
        return self._cached[key]

    def _prepared_in_parts(self, tokens: int, past: int, output_mode: OutputMode) -> Generator[None, None, None]:
        """Prepare a step, if it is not yet, with pauses."""
        key = (tokens, past, output_mode)
        if key not in self._cached:
            self._cached[key] = yield from self._prepare(*key)
            if len(self._cached) > CACHED_STEPS:
                self._cached.popitem(last=False)

    def _prepare(self, tokens: int, past: int, output_mode: OutputMode) -> Generator[None, None, Prepared]:
        """Check one operation of each kind; the result is valid for all layers. Other steps may be prepared, or all be dropped,
        in the pauses."""
        form, kinds = self._forms[output_mode]
        reduced = form.at(tokens, past)
        yield
        if len(self._numbers) > CACHED_KINDS:
            self._numbers.clear()
        keyed = [
            (kind, op, (self._kind_numbers[kind], _check_inputs(reduced, op)))
            for kind, op in zip(kinds, reduced.ops, strict=True)
        ]
        known = {key: self._numbers[key] for _, _, key in keyed if key in self._numbers}
        unchecked = [entry for entry in keyed if entry[2] not in known]
        found = {op.name: self._launches.bundled_kernel(op) for _, op, _ in unchecked}
        contracts = {op.name: self._launches.contract(op, found[op.name]) for _, op, _ in unchecked}
        covers_whole = verify_extents(reduced, [op for _, op, _ in unchecked], lambda op: contracts[op.name])
        covers_whole = covers_whole and all(_uses(contracts[op.name]) == self._uses[kind] for kind, op, _ in unchecked)
        self._verify(reduced, output_mode, covers_whole and all(one.whole for one in known.values()))
        yield
        for kind, op, key in unchecked:
            yield from self._made(kind, found[op.name])
            series = self._series[kind, found[op.name].name]
            numbers, early = self._launches.numbers(reduced, op, series), may_overlap(reduced, op, contracts[op.name])
            known[key] = self._numbers[key] = _CheckedKind(series, numbers, covers_whole, early)
            yield
        checked_kinds = {key[0]: known[key] for _, _, key in keyed}
        order = [
            (checked_kinds[number].series, index, checked_kinds[number].overlaps) for number, index in self._order[output_mode]
        ]
        inputs = {buffer.name: buffer for buffer in reduced.of_kind(Kind.INPUT)}
        return Prepared(tuple([(entry.series, entry.numbers) for entry in checked_kinds.values()]), tuple(order), inputs)

    def _form(self, output_mode: OutputMode, layers: int) -> Form:
        return self._step.form(self._mode, output_mode, tokens=self.largest, layers=self._step.few_layers(layers))

    def _verify(self, reduced: StepGraph, output_mode: OutputMode, whole: bool) -> None:
        """GraphError unless the whole step of this length is valid and needs no more memory than the largest chunk. `whole`:
        the views of every kind cover their buffers whole, and the extents were verified."""
        for buffer in reduced.of_kind(Kind.ACTIVATION):
            if buffer.bytes > self._bytes.get(_any_layer(buffer.name), 0):
                what = f"buffer `{buffer.name}` is larger than that of {self.largest} tokens"
                raise GraphError(what, where=f"step `{self._mode}`")
        if not (whole and self._covers_whole[output_mode]):
            verify_operations(self._form(output_mode, ALL_PAIRS).at(reduced.tokens), self._contract)

    def _made(self, kind: _Kind, found: BundledKernel) -> Generator[None, None, None]:
        """Make the series of a kind with a kernel, if it is not there, with pauses. A prompt that needs one that is under way
        ends it."""
        key = (kind, found.name)
        while key not in self._series:
            if key not in self._making:
                self._making[key] = self._launches.series(self.whole, self._members[kind], self._pointers, found)
            try:
                next(self._making[key])
            except StopIteration as made:
                del self._making[key]
                self._series[key] = made.value
            except BaseException:
                del self._making[key]
                raise
            yield

    def _contract(self, op: Op) -> Contract | Manifest:
        return self._launches.contract(op, self._launches.bundled_kernel(op))


def union(graphs: Iterable[StepGraph]) -> StepGraph:
    """A graph with the union of the operations, each once, in an order consistent with every graph. The graphs have a common
    prefix."""
    first, *others = graphs
    union = StepGraph(first.name, first.tokens, dict(first.buffers), list(first.ops))
    seen = {_operation_key(op) for op in union.ops}
    for graph in others:
        union.buffers |= graph.buffers
        union.ops += [op for op in graph.ops if _operation_key(op) not in seen]
        seen |= {_operation_key(op) for op in graph.ops}
    return union


def _uses(contract: Contract | Manifest) -> _Uses:
    return [(spec.name, spec.access, spec.resident) for spec in contract.tensors]


def _check_inputs(graph: StepGraph, op: Op) -> _CheckInputs:
    buffers = graph.buffers
    views = [(view.shape, view.offset, buffers[view.buffer]) for view in op.tensors.values()]
    return (
        *[
            (shape, offset, buffer.shape, buffer.low, buffer.high, buffer.distinct, buffer.distinct_in_rows)
            for shape, offset, buffer in views
        ],
        *op.scalars.values(), *op.constants.values(),
    )  # fmt: skip


def _operation_key(op: Op) -> _Kind:
    return op.name, op.kernel, tuple(view.buffer for view in op.tensors.values())


def _kind(op: Op) -> _Kind:
    name, kernel, buffers = _operation_key(op)
    return _any_layer(name), kernel, tuple(map(_any_layer, buffers))


@cache
def _any_layer(name: str) -> str:
    return _NUMBER.sub(".*", name)
