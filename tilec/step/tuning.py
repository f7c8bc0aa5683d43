"""Tuning of a step: takes the tables that bundles carry, returns numbers and launch constants.

    {"numbers": {"parts": 32}, "measured": "where the values come from"}
    {"kernel": "matmul", "cost": "cdiv(cdiv(out[0], BM) * cdiv(out[1], BN), at_once) * time", "measured": "...",
     "choices": [{"BM": 64, "BN": 64, "at_once": 264, "time": 5.0}, {"BM": 128, "BN": 256, "at_once": 132, "time": 15.8}]}

The build creates them from `[[tuning]]` in build.toml and from the measurements of `tilec tune` (`tilec.project.read.served`).
`numbers` are names that the text of a step uses. A kernel with `choices` is launched with the constants (in capitals) of the
cheapest choice for the extents of its tensors; the first on a tie.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from tilec.step.expressions import Expression, StepError, divisors, parse
from tilec.step.graph import Constant

KEYS: Final = ("numbers", "kernel", "cost", "choices", "measured")
MAX_CHOICES: Final = 100
MAX_MEASURED: Final = 1000


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices for a kernel: the constants and the other numbers of each, and the cost to minimize. Results are cached,
    because the steps of a family repeat the same queries."""

    cost: Expression
    of: tuple[tuple[dict[str, Constant], dict[str, Any]], ...]
    tensors: tuple[str, ...]
    """Parameters whose extents the cost uses."""
    sizes: Mapping[str, tuple[int, ...]]
    """Extents that the cost uses; for those used only as `cdiv(out[0], BM)`, all values of BM."""
    over_lengths: dict[tuple[Any, ...], list[tuple[int, int, dict[str, Constant]]]] = field(default_factory=dict[Any, Any])
    """Cached results over all lengths (`requests`): constants for each range (first, last)."""
    cached: dict[tuple[int, ...], dict[str, Constant]] = field(default_factory=dict[tuple[int, ...], "dict[str, Constant]"])

    def least(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Constant]:
        """The cheapest constants for tensors of these shapes, given by parameter."""
        key = tuple([extent for name in self.tensors for extent in shapes[name]])
        found = self.cached.get(key)
        if found is None:
            names = [f"{name}[{axis}]" for name in self.tensors for axis in range(len(shapes[name]))]
            equivalent = tuple(map(self._equivalent_extent, names, key))
            found = self.cached.get(equivalent)
            if found is None:
                extents = dict(zip(names, equivalent, strict=True))
                costs = [self.cost.value(extents | row_constants | numbers) for row_constants, numbers in self.of]
                found = self.cached[equivalent] = self.of[costs.index(min(costs))][0]
            self.cached[key] = found
        return found

    def _equivalent_extent(self, name: str, extent: int) -> int:
        """The smallest extent with the same cost, based on tile counts; 0 if the cost does not use the extent."""
        sizes = self.sizes.get(name)
        if sizes is None:
            return 0
        return max([(extent - 1) // size * size + 1 for size in sizes]) if sizes and extent > 0 else extent


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers by name, and choices by kernel."""

    numbers: Mapping[str, int | float] = field(default_factory=dict[str, "int | float"])
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])

    def constants(self, kernel: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, Constant]:
        """The constants chosen for a launch; empty for a kernel without choices."""
        return self.choices[kernel].least(shapes) if kernel in self.choices else {}


def read_tuning(tables: Iterable[Any]) -> Tuning:
    """The tuning that tables define; StepError names the invalid key."""
    numbers: dict[str, int | float] = {}
    choices: dict[str, Choice] = {}
    for table in tables:
        if not isinstance(table, dict) or any(key not in KEYS for key in cast("dict[Any, Any]", table)):
            raise StepError(f"`tuning` is not a list of tables with {', '.join(KEYS)}")
        entry = cast("dict[str, Any]", table)
        measured = entry.get("measured")
        if not isinstance(measured, str) or not 0 < len(measured) <= MAX_MEASURED:
            raise StepError("`measured` does not say where the values come from")
        for name, value in _numbers(entry.get("numbers", {}), "numbers").items():
            if name in numbers:
                raise StepError(f"`{name}` is there twice")
            numbers[name] = value
        if "kernel" in entry:
            kernel = entry["kernel"]
            if not isinstance(kernel, str) or kernel in choices:
                raise StepError("`kernel` is not the name of one that has no choices yet")
            choices[kernel] = _choice(entry)
        elif "cost" in entry or "choices" in entry:
            raise StepError("`kernel` does not say whose `choices` they are")
    return Tuning(numbers, choices)


def _choice(entry: Mapping[str, Any]) -> Choice:
    cost, rows = entry.get("cost"), entry.get("choices")
    if not isinstance(cost, str):
        raise StepError("`cost` is not an expression")
    if not isinstance(rows, list) or not 1 <= len(cast("list[Any]", rows)) <= MAX_CHOICES:
        raise StepError("`choices` is not a list of tables")
    parsed_rows: list[tuple[dict[str, Constant], dict[str, Any]]] = []
    for row in cast("list[Any]", rows):
        values = _numbers(row, "choices")
        constants: dict[str, Constant] = {name: value for name, value in values.items() if name.isupper()}
        parsed_rows.append((constants, {name: value for name, value in values.items() if not name.isupper()}))
    cost_expression = parse(cost)
    for number, (constants, numbers) in enumerate(parsed_rows, 1):
        require_numbers(cost_expression, {**constants, **numbers}, str(number))
    sizes = {name: _sizes(cost_expression, name, parsed_rows) for name in cost_expression.names if "[" in name}
    return Choice(cost_expression, tuple(parsed_rows), tuple(sorted({name.partition("[")[0] for name in sizes})), sizes)


def require_numbers(cost: Expression, names: Collection[str], choice: str) -> None:
    """StepError if `cost` uses a number that is none of `names`, those of a choice; `choice` says which one."""
    for name in sorted(cost.names):
        if "[" not in name and name not in names:
            raise StepError(f"`cost` uses `{name}`, which choice {choice} does not set")


def _sizes(cost: Expression, extent: str, rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> tuple[int, ...]:
    """The divisors with which the cost uses an extent in `cdiv`; empty if the cost uses it in another way, or with another
    number."""
    names = divisors(cost.node, extent) or ()
    values: set[Any] = {{**constants, **numbers}.get(name) for constants, numbers in rows for name in names}
    return tuple(sorted(values)) if all(type(name) is int and name > 0 for name in values) else ()


def _numbers(value: Any, key: str) -> dict[str, int | float]:
    table: dict[Any, Any] = cast("dict[Any, Any]", value) if isinstance(value, dict) else {None: None}
    for name, number in table.items():
        if (
            not isinstance(name, str)
            or not name.isidentifier()
            or type(number) not in (int, float)
            or not abs(number) < 1 << 62
        ):
            raise StepError(f"`{key}` is not a table of numbers")
    return table
