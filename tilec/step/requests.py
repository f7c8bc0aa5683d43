"""Every specialisation that a model's step can request, for all prompt lengths, cache lengths and output modes.

The launches are those of `Step.graph`, derived from the same statements. No graph requests a kernel that is missing from a
bundle with all requests, and every request is used by some graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.step.collectives import MEET
from tilec.step.declaration import LENGTHS, TOKENS, Condition, Items, Launch, Statement
from tilec.step.expressions import Expression, StepError
from tilec.step.form import item_count
from tilec.step.graph import CHUNK, SERVE, Constant
from tilec.step.step import BATCHES, BUCKETS, OUTPUT_MODES, Step, Variants
from tilec.step.tuning import Choice, Tuning

Values = Mapping[str, Any]
"""Values that conditions may use."""


@dataclass(frozen=True, slots=True)
class Request:
    """A specialisation of `kernel` that operation `op` of a mode requests, and the launch in the text that does so."""

    op: str
    kernel: str
    constants: Mapping[str, Constant]
    launch: Launch


def requests(step: Step, tuning: Tuning) -> Iterator[Request]:
    """Every request of a step once, in the order of the text. A step that ranks share ends with a kernel in which they meet."""
    for mode, statements in step.declaration.modes.items():
        for launch, lengths in _reachable(step, mode, statements):
            seen: set[str] = set()
            for constants in _constants(step, mode, launch, tuning, lengths):
                key = repr(sorted(constants.items()))
                if key not in seen:
                    seen.add(key)
                    yield Request(f"{mode}_{launch.name}", launch.kernel, constants, launch)
        if step.ranks > 1:
            yield Request(f"{mode}_meet", MEET, {"RANKS": step.ranks}, Launch("meet", MEET, {}, {}, {}, ast.Pass()))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tuned constants of operation `op` of a mode, a launch of `kernel`, from `first` to `last` tokens."""

    op: str
    kernel: str
    first: int
    last: int
    constants: Mapping[str, Constant]


def choices(step: Step, tuning: Tuning) -> Iterator[Chosen]:
    """The tuned constants for each range of lengths, for every tuned launch, in the order of the text."""
    for mode, statements in step.declaration.modes.items():
        for launch, lengths in _reachable(step, mode, statements):
            if launch.kernel in tuning.choices:
                for first, last, constants in _ranges(step, launch, tuning.choices[launch.kernel], lengths):
                    yield Chosen(f"{mode}_{launch.name}", launch.kernel, first, last, constants)


def _lengths(step: Step, mode: str) -> dict[Variants, Sequence[int]]:
    """Numbers of tokens of a step by the variants that it uses, ascending."""
    if mode == CHUNK:
        return {step.used_variants(CHUNK, 1): range(1, step.chunk_tokens + 1)}
    if mode == SERVE:
        return {step.used_variants(SERVE, 1): BUCKETS}
    if mode != "prefill":
        lengths = {"decode": (1,), "batch": BATCHES}[mode]
        return dict.fromkeys(step.all_decode_variants(), lengths)
    ends = step.prefills(step.chunk_tokens)
    ranges = (range(previous + 1, last + 1) for previous, last in zip((0, *ends), ends, strict=False))
    return {step.variants(TOKENS, lengths[-1]): lengths for lengths in ranges}


def _reachable(step: Step, mode: str, statements: tuple[Statement, ...]) -> list[tuple[Launch, Sequence[int]]]:
    """Launches that are reachable in some output mode and variant, in the order of the text, each with the numbers of tokens
    for which it is."""
    found: list[tuple[Launch, Sequence[int]]] = []
    lengths = _lengths(step, mode)
    joined: dict[frozenset[Variants], Sequence[int]] = {}

    def over(reached: tuple[tuple[Variants, Values], ...]) -> Sequence[int]:
        """The numbers of tokens of the variants with a case, sorted once: most launches have the same."""
        used = frozenset(one for one, _ in reached)
        if used not in joined:
            joined[used] = _joined([lengths[one] for one in used])
        return joined[used]

    def walk(inner: tuple[Statement, ...], reached: tuple[tuple[Variants, Values], ...]) -> None:
        for statement in inner:
            if isinstance(statement, Launch):
                found.append((statement, over(reached)))
            elif isinstance(statement, Condition):
                satisfying = tuple(case for case in reached if statement.test.value(case[1]))
                walk(statement.then, satisfying) if satisfying else None
                others = tuple(case for case in reached if not statement.test.value(case[1]))
                walk(statement.otherwise, others) if others else None
            elif isinstance(statement, Items):
                if item_count(statement.count, step.values(), statement.node):
                    walk(statement.body, reached)
            else:
                layers = step.layer_flags()
                walk(statement.body, tuple((used, {**values, **layer}) for used, values in reached for layer in layers))

    walk(statements, tuple((used, step.condition_values(mode, head, used)) for head in OUTPUT_MODES for used in lengths))
    return found


def _joined(lengths: Sequence[Sequence[int]]) -> Sequence[int]:
    """All numbers of tokens of some forms, ascending; a range if they have no gap."""
    joined = sorted({number for numbers in lengths for number in numbers})
    whole = range(joined[0], joined[-1] + 1)
    return whole if len(joined) == len(whole) else joined


def _constants(
    step: Step, mode: str, launch: Launch, tuning: Tuning, lengths: Sequence[int]
) -> Iterator[dict[str, Constant]]:  # fmt: skip
    """The constants of a launch, once per combination that occurs over its numbers of tokens."""
    values = step.values(mode=mode)
    choice = tuning.choices.get(launch.kernel)
    chosen: list[dict[str, Constant]] = [{}]
    if choice is not None:
        chosen = list({repr(tuned): tuned for _, _, tuned in _ranges(step, launch, choice, lengths)}.values())
    values[TOKENS] = lengths[0]
    constants: dict[str, Constant] = {name: value.value(values) for name, value in launch.constants.items()}
    changing = {name: value for name, value in launch.constants.items() if value.names & LENGTHS}
    seen: set[str] = set()
    for values[TOKENS] in lengths if changing else lengths[:1]:
        computed: dict[str, Constant] = {name: value.value(values) for name, value in changing.items()}
        if repr(computed) not in seen:
            seen.add(repr(computed))
            yield from (tuned | constants | computed for tuned in chosen)


def _ranges(step: Step, launch: Launch, choice: Choice, lengths: Sequence[int]) -> list[tuple[int, int, dict[str, Constant]]]:
    """The tuned constants of a launch for ranges of lengths; cached for launches with equal shapes."""
    values = step.values(tokens=1)
    shapes = {name: step.axes(launch.tensors[name]) for name in choice.tensors if name in launch.tensors}
    if len(shapes) < len(choice.tensors):
        raise StepError(f"the tuning of `{launch.kernel}` asks for a tensor that `{launch.name}` lacks", launch.node)
    key = (
        lengths[0], lengths[-1],
        *((id(axis), *((name, values.get(name)) for name in sorted(axis.names))) for axes in shapes.values() for axis in axes),
    )  # fmt: skip
    if key not in choice.over_lengths:
        ranges: list[tuple[int, int, dict[str, Constant]]] = []
        for first, last in _spans(choice, shapes, lengths):
            values[TOKENS] = first
            cheapest = choice.least({name: [axis.value(values) for axis in axes] for name, axes in shapes.items()})
            if ranges and ranges[-1][2] is cheapest:
                ranges[-1] = ranges[-1][0], last, cheapest
            else:
                ranges.append((first, last, cheapest))
        choice.over_lengths[key] = ranges
    return choice.over_lengths[key]


def _spans(
    choice: Choice, shapes: Mapping[str, Sequence[Expression]], lengths: Sequence[int]
) -> Iterable[tuple[int, int]]:  # fmt: skip
    """Ranges of lengths with equal cost. If the cost depends on the number of tokens only as `cdiv(out[0], BM)`, it changes
    only after multiples of BM; otherwise each length is evaluated."""
    tile_sizes: set[int] = set()
    for name, axes in shapes.items():
        for position, axis in enumerate(axes):
            extent = f"{name}[{position}]"
            if extent not in choice.cost.names or TOKENS not in axis.names:
                continue
            if not isinstance(axis.node, ast.Name) or not choice.sizes[extent]:
                return [(length, length) for length in lengths]
            tile_sizes.update(choice.sizes[extent])
    if not isinstance(lengths, range) or lengths.step != 1:
        return [(length, length) for length in lengths]
    firsts = sorted(
        {lengths.start, *(start for size in tile_sizes for start in range(1, lengths.stop, size) if start in lengths)}
    )
    return zip(firsts, [*(first - 1 for first in firsts[1:]), lengths.stop - 1], strict=True)
