"""`[[tuning]]` of a kernel in the build file: its candidates, their cost model, and the shapes for measurements.

    [[tuning]]
    kernel = "matmul"
    cost = { turn = "cdiv(cdiv(out[0], BM) * cdiv(out[1], BN), at_once) * a[1]", tile = "cdiv(out[0], BM) * a[1]" }
    choices = [
      { BM = 128, BN = 256, schedule = { copy = "tma", consumers = 2, stages = 4 } },
      { BM = 64, BN = 64 },
    ]
    constants = { E = "bf16" }
    shapes = [{ M = [16, 512, 2048], N = 6144, K = 2560 }]

`cost` is an expression over extents of tensors and the constants and numbers of a choice, or a table of named terms, which are
added. `at_once` is the number of concurrent blocks. The choices for a target and their weights come from the measurements of
`tilec tune` (`tilec.tuning`) if these are valid for the sources, else from `cost` as declared. A `[[kernel]]` that omits
constants is built with those of the selected choices. A choice is skipped for targets that its `schedule` or `[[kernel]]`
excludes. `predicted = ["sm_100"]` names targets for which a table of predictions is accepted (`tilec tune --predict`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, cast

from tilec.cost_model.cards import CARDS
from tilec.diagnostics.diagnostic import Span
from tilec.project.read.architectures import Architectures, named_targets
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant, Locate, Refuse
from tilec.project.read.schedules import Rule, read_schedule
from tilec.step.expressions import StepError, parse
from tilec.step.tuning import MAX_CHOICES, read_tuning, require_numbers
from tilec.target.schedule import merged
from tilec.target.targets import TARGETS, Target

AT_ONCE: Final = "at_once"
START: Final = "start"
TIME_NUMBER: Final = "time"
MAX_SHAPES: Final = 1000
NOT_MEASURED: Final = "nothing: by the cost that build.toml declares"
MULTIPROCESSORS: Final = {card.arch: card.multiprocessors for card in reversed(CARDS.values())} | {
    "sm_80": 108, "sm_86": 82, "sm_89": 128, "sm_100f": 148, "sm_103a": 148, "sm_120f": 170, "sm_121a": 48,
}  # fmt: skip
"""Multiprocessors of the first card of each architecture, for costs without measurements; without a card, of an A100, an RTX
3090, an RTX 4090 and a DGX Spark (NVIDIA's data sheets and whitepapers). A family has those of its largest member here. A B300
counts as a B200: costs compare choices on one chip, and a few multiprocessors more or fewer do not order them otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of `choices`: its constants, numbers for its cost, and schedule rules (None: those of its `[[kernel]]`)."""

    constants: Mapping[str, Constant]
    numbers: Mapping[str, float]
    rules: tuple[Rule, ...] | None

    def is_for(self, target: Target) -> bool:
        """Whether a schedule rule of the candidate applies to the target, or it has none."""
        return self.rules is None or not self.rules or any(_for(rule, target) for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Tuned:
    """One table. `terms` are the parts of the cost by name. `family` restricts it to the models of one family. Candidates are
    measured with `constants` at `shapes` (launch values). At most `keep` candidates are selected. `measured_by` is the author's
    text on the origin of the numbers. `predicted`: the targets for which predictions are accepted."""

    kernel: str
    family: str | None
    terms: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    constants: Mapping[str, Constant]
    shapes: tuple[Mapping[str, int], ...]
    keep: int
    measured_by: str
    predicted: tuple[Target, ...]
    span: Span

    def entry(self, candidate: Candidate, entries: Iterable[KernelEntry]) -> KernelEntry | None:
        """The `[[kernel]]` with which a candidate is measured, or None."""
        wanted = {**candidate.constants, **self.constants}
        return next((one for one in entries if one.name == self.kernel and admits(one, wanted)), None)

    def serves(self, candidate: Candidate, entries: Iterable[KernelEntry], target: Target) -> bool:
        """Whether the target is included by a candidate's schedule and by a `[[kernel]]` that builds it, if there is one."""
        wanted = {**candidate.constants, **self.constants}
        built = [one for one in entries if one.name == self.kernel and admits(one, wanted)]
        return candidate.is_for(target) and (not built or any(one.among((target,)) for one in built))

    def fixed(self, candidate: Candidate, entries: Iterable[KernelEntry], target: Target) -> dict[str, int | str | bool]:
        """The schedule overrides of a candidate on a target."""
        entry = self.entry(candidate, entries)
        wanted = {**candidate.constants, **self.constants}
        rules = candidate.rules if candidate.rules is not None else entry.schedule if entry else ()
        overrides = tuple(
            rule.overrides for rule in rules if all(name in wanted for name in rule.constants) and rule.applies_to(wanted)
        )
        return merged(overrides, target).given()


def admits(entry: KernelEntry, wanted: Mapping[str, Constant]) -> bool:
    return all(name not in entry.constants or value in entry.constants[name] for name, value in wanted.items())


def _for(rule: Rule, target: Target) -> bool:
    return rule.overrides.target in (None, target.name)


def read_tuned(
    tables: Sequence[tuple[int, dict[str, Any]]], architectures: Architectures, refuse: Refuse, span: Locate
) -> list[Tuned]:
    """Read the tables of kernels, given with their index in the file; a malformed one is a problem."""
    found: list[Tuned] = []
    for index, table in tables:

        def span_of(key: str = "", inner: str = "", index: int = index) -> Span:
            return span("tuning", index, key, inner)

        one = _tuned(table, architectures, refuse, span_of)
        if one is not None and any(other.kernel == one.kernel for other in found):
            refuse("E0806", f"`{one.kernel}` is tuned twice", span_of("kernel"), "write one table with all of its choices")
        elif one is not None:
            found.append(one)
    return found


def _tuned(table: dict[str, Any], architectures: Architectures, refuse: Refuse, span_of: Callable[..., Span]) -> Tuned | None:
    kernel, cost, rows = table.get("kernel"), table.get("cost"), table.get("choices")
    given: Any = {TIME_NUMBER: cost} if isinstance(cost, str) else cost
    terms: dict[str, str] = cast("dict[str, str]", given) if isinstance(given, dict) else {}
    if not terms or any(type(text) is not str for text in terms.values()):
        hint = 'write `cost = "cdiv(out[0], BM)"`'
        refuse("E0802", "`cost` is neither an expression nor a table of expressions", span_of("cost"), hint)
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in cast("list[Any]", rows)):
        refuse(
            "E0802", "`choices` is not a list of tables", span_of("choices"), "write `choices = [{ BM = 64 }, { BM = 128 }]`"
        )
        return None
    candidates: list[Candidate] = []
    for row in cast("list[dict[str, Any]]", rows):
        constants = {name: value for name, value in row.items() if name.isupper()}
        numbers = {name: value for name, value in row.items() if not name.isupper() and name != "schedule"}
        blocks = numbers.get(AT_ONCE, 1)
        if type(blocks) is not int or not 0 < blocks < 1 << 31:
            hint = "write how many blocks run at the same time, at least 1, or leave it out"
            refuse("E0802", f"`{AT_ONCE}` is not a number of blocks", span_of("choices", AT_ONCE), hint)
            return None
        rules = None
        if "schedule" in row:
            own_constants = {name: (value,) for name, value in constants.items()}
            rules = read_schedule(
                row["schedule"], own_constants, architectures, refuse, lambda key, inner: span_of("choices", inner or key)
            )
        candidates.append(Candidate(constants, numbers, rules))
    measured_by = table.get("measured")
    if measured_by is None and any(name != AT_ONCE for one in candidates for name in one.numbers):
        refuse("E0802", "`measured` does not name the source of the choices' numbers", span_of("choices"), "")
        return None
    constants = table.get("constants", {})
    if not isinstance(constants, dict) or not all(
        isinstance(one, (int, float, str)) for one in cast("dict[str, Any]", constants).values()
    ):
        refuse(
            "E0802", "`constants` is not a table of one value each", span_of("constants"), 'write `constants = { E = "bf16" }`'
        )
        constants = {}
    keep = table.get("keep", 8)
    if type(keep) is not int or not 1 <= keep <= MAX_CHOICES:
        refuse("E0802", f"`keep` is not a number from 1 to {MAX_CHOICES}", span_of("keep"), "write `keep = 8`")
        keep = 8
    measured_by = measured_by if isinstance(measured_by, str) else NOT_MEASURED if measured_by is None else ""
    tuned = Tuned(
        kernel if isinstance(kernel, str) else "", table.get("family"), terms, tuple(candidates),
        cast("dict[str, Constant]", constants), _shapes(table.get("shapes", []), refuse, span_of), keep, measured_by,
        _targets(table.get("predicted", []), refuse, span_of), span_of("kernel"),
    )  # fmt: skip
    try:
        _check(tuned)
    except StepError as error:
        refuse("E0802", str(error), span_of(), "`tilec explain E0810` shows a table")
        return None
    return tuned


def _check(tuned: Tuned) -> None:
    """StepError if the cost cannot be evaluated for some choice."""
    for text in tuned.terms.values():
        for one in tuned.candidates:
            require_numbers(parse(text), {AT_ONCE, *one.constants, *one.numbers}, description(one.constants))
    read_tuning([as_declared(tuned, TARGETS[0], tuned.candidates, {})])


def _shapes(value: Any, refuse: Refuse, span_of: Callable[..., Span]) -> tuple[Mapping[str, int], ...]:
    """All combinations of the values of each table, without duplicates."""
    found: dict[str, dict[str, int]] = {}
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
    for item in items:
        lists = {
            name: cast("list[Any]", one) if isinstance(one, list) else [one]
            for name, one in (cast("dict[str, Any]", item).items() if isinstance(item, dict) else ())
        }
        if not lists or any(type(one) is not int or not 0 < one < 1 << 31 for some in lists.values() for one in some):
            refuse(
                "E0802",
                "`shapes` is not a list of tables of extents",
                span_of("shapes"),
                "write `shapes = [{ M = [16, 512], K = 2560 }]`",
            )
            return ()
        if len(found) + prod(map(len, lists.values())) > MAX_SHAPES:
            refuse("E0514", f"`shapes` has more than {MAX_SHAPES} combinations", span_of("shapes"), "leave some out")
            return ()
        for values in itertools.product(*lists.values()):
            shape = dict(zip(lists, values, strict=True))
            found[repr(sorted(shape.items()))] = shape
    return tuple(found.values())


def _targets(value: Any, refuse: Refuse, span_of: Callable[..., Span]) -> tuple[Target, ...]:
    """The targets that `predicted` names."""

    def problem(key: str, what: str, hint: str) -> None:
        refuse("E0802", what, span_of(key), hint)

    hint = 'write `predicted = ["sm_100"]`, or leave it out'
    found = tuple(target for _, target in named_targets(value, "predicted", problem, hint))
    if len(set(found)) < len(found):
        refuse("E0806", "`predicted` names an architecture twice", span_of("predicted"), "remove one of them")
    return found


def cost_text(terms: Mapping[str, str]) -> str:
    """The cost expression with a weight per term, to be fitted to measurements."""
    weights = {TIME_NUMBER: "scale"} if list(terms) == [TIME_NUMBER] else {name: name for name in terms}
    return f"{START} + " + " + ".join(f"{weights[name]} * ({text})" for name, text in terms.items())


def weight_names(terms: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the weights in `cost_text`, in order."""
    return (START, "scale") if list(terms) == [TIME_NUMBER] else (START, *terms)


def at_once(candidate: Candidate, fixed: Mapping[str, int | str | bool], multiprocessors: int) -> int:
    """Concurrent tiles of a candidate: its own number, or the schedule's blocks per multiprocessor on all of them, of which a
    cluster has one tile."""
    own_number = candidate.numbers.get(AT_ONCE)
    if own_number is not None:
        return int(own_number)
    return multiprocessors * int(fixed.get("blocks", 1)) // int(fixed.get("cluster", 1))


def as_declared(
    tuned: Tuned, target: Target, candidates: Sequence[Candidate], fixed: Mapping[int, Mapping[str, int | str | bool]]
) -> dict[str, Any]:  # fmt: skip
    cost = (
        " + ".join(f"({text})" for text in tuned.terms.values()) if len(tuned.terms) > 1 else next(iter(tuned.terms.values()))
    )
    rows: list[dict[str, Any]] = [{**one.constants, **one.numbers} for one in candidates]
    if AT_ONCE in cost:
        for row, one in zip(rows, candidates, strict=True):
            row[AT_ONCE] = at_once(one, fixed.get(id(one), {}), MULTIPROCESSORS[target.name])
    return {"kernel": tuned.kernel, "cost": cost, "choices": rows, "measured": tuned.measured_by}


def description(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
