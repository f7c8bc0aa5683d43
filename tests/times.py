"""What runs where, by recorded times: the order of files, what the default run leaves to the campaigns, `core`, and shards.

`pytest -m 'not gpu' --record-times` writes `times.json`, whose times are wall clock of two idle cores:

    functions     by file and function: seconds and number of its cases, first those that the source leaves to the default
                  run, then those that the source marks as campaign
    fixtures      by file and name: seconds of a fixture that several tests share

A test without a record counts as one that takes no time. So a new test is in the default run, and in `core`, until it is
recorded.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

TESTS: Final = Path(__file__).resolve().parent
RECORD: Final = TESTS / "times.json"
FAMILY_SECONDS: Final = 1.5
"""What the cases of one function may take in the default run; the campaigns have the others."""
SPARSEST: Final = 20
"""The default run has at least one case in this many of each function."""
SHARD_SECONDS: Final = 180.0
"""What the tests of one shard of the campaigns take together on one core, without collection."""
CORE_SECONDS: Final = 6.0
"""What the tests of `core` take together on one core, without collection."""
SHARED_SECONDS: Final = 0.3
"""A test that uses a fixture slower than this is not in `core`."""
SMALLEST: Final = 0.02
"""Times below this are not recorded, so that the record changes little."""


class Cases(NamedTuple):
    """Cases of one function: their seconds together, and how many there are."""

    seconds: float = 0.0
    count: int = 0

    def plus(self, seconds: float) -> Cases:
        """With one more case."""
        return Cases(self.seconds + seconds, self.count + 1)

    @property
    def each(self) -> float:
        """Seconds of a case."""
        return self.seconds / max(self.count, 1)


class Function(NamedTuple):
    """The record of a function: cases that the source leaves to the default run, and those that it marks as campaign."""

    plain: Cases = Cases()
    campaign: Cases = Cases()


@dataclass(frozen=True, slots=True)
class Times:
    """A record. Functions and fixtures are named `folder/test_file.py::name`, relative to `tests`."""

    functions: Mapping[str, Function] = field(default_factory=dict[str, Function])
    fixtures: Mapping[str, float] = field(default_factory=dict[str, float])

    def every(self, function: str) -> int:
        """One case in how many is in the default run, of the cases that the source does not mark."""
        seconds = self.functions.get(function, Function()).plain.seconds
        return min(max(math.ceil(seconds / FAMILY_SECONDS), 1), SPARSEST)

    def of_files(self, *, campaign: bool) -> dict[str, float]:
        """Seconds of each file in the default run, or in the campaigns."""
        found: dict[str, float] = defaultdict(float)
        for name, (plain, marked) in self.functions.items():
            share = 1 / self.every(name)
            found[name.partition("::")[0]] += (
                marked.seconds + plain.seconds * (1 - share) if campaign else plain.seconds * share
            )
        return dict(found)

    def of_case(self, function: str, *, marked: bool) -> float:
        """Seconds of a case of a function, which the source marks as campaign or does not."""
        record = self.functions.get(function, Function())
        return (record.campaign if marked else record.plain).each

    def core_limit(self, functions: Iterable[str]) -> float:
        """The longest time of a case in `core`, such that one case of each of these functions takes CORE_SECONDS at most."""
        total, limit = 0.0, 0.0
        for seconds in sorted(self.functions.get(name, Function()).plain.each for name in functions):
            total += seconds
            if total > CORE_SECONDS:
                break
            limit = seconds
        return limit


def read_times(path: Path = RECORD) -> Times:
    """The record of a file; without one, an empty record."""
    if not path.is_file():
        return Times()
    data = json.loads(path.read_text(encoding="utf-8"))
    functions = {
        f"{file}::{name}": Function(Cases(*numbers[:2]), Cases(*numbers[2:]))
        for file, names in data["functions"].items()
        for name, numbers in names.items()
    }
    return Times(
        functions, {f"{file}::{name}": seconds for file, names in data["fixtures"].items() for name, seconds in names.items()}
    )


def write_times(times: Times, path: Path = RECORD) -> None:
    """Write a record, with a line for each file."""
    functions, fixtures = defaultdict[str, dict[str, Any]](dict), defaultdict[str, dict[str, Any]](dict)
    for name, (plain, marked) in sorted(times.functions.items()):
        if plain.seconds + marked.seconds >= SMALLEST:
            numbers = [round(plain.seconds, 2), plain.count, round(marked.seconds, 2), marked.count]
            file, _, function = name.partition("::")
            functions[file][function] = numbers if marked.count else numbers[:2]
    for name, seconds in sorted(times.fixtures.items()):
        if seconds >= SMALLEST:
            file, _, fixture = name.partition("::")
            fixtures[file][fixture] = round(seconds, 2)
    parts = [f' "{kind}": {{\n' + _lines(data) + "\n }" for kind, data in (("functions", functions), ("fixtures", fixtures))]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(data: Mapping[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in data.items())


def function_of(item: pytest.Item) -> str:
    """A test's file and function; its file alone if it is outside of `tests`."""
    file = item.path.relative_to(TESTS).as_posix() if TESTS in item.path.parents else item.path.as_posix()
    return f"{file}::{getattr(item, 'originalname', '') or item.name}"


def is_campaign(item: pytest.Item) -> bool:
    return item.get_closest_marker("campaign") is not None


def _marked_by_source(item: pytest.Item) -> bool:
    return bool(dict(item.user_properties)["campaign"])


def mark(items: Sequence[pytest.Item], times: Times) -> None:
    """Mark the cases that the default run leaves to the campaigns, and those of `core`. Each test learns whether it was marked
    in the source, which a record needs."""
    seen: dict[str, int] = {}
    for item in items:
        name = function_of(item)
        item.user_properties.append(("campaign", is_campaign(item)))
        if not is_campaign(item):
            index = seen[name] = seen.get(name, -1) + 1
            if index % times.every(name):
                item.add_marker(pytest.mark.campaign)
    plain = [item for item in items if not is_campaign(item) and item.get_closest_marker("gpu") is None]
    slow = {name for name, seconds in times.fixtures.items() if seconds > SHARED_SECONDS}
    _mark_core([item for item in plain if slow.isdisjoint(_fixtures(item))], times)


def _mark_core(items: Sequence[pytest.Item], times: Times) -> None:
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(function_of(item), item)
    limit = times.core_limit(first)
    for name, item in first.items():
        if times.functions.get(name, Function()).plain.each <= limit:
            item.add_marker(pytest.mark.core)


def _fixtures(item: pytest.Item) -> list[str]:
    if not isinstance(item, pytest.Function):
        return []
    info = item._fixtureinfo  # pyright: ignore[reportPrivateUsage]
    return [fixture_name(definitions[-1]) for definitions in info.name2fixturedefs.values()]


def fixture_name(definition: pytest.FixtureDef[Any]) -> str:
    """A fixture's file, or folder, and name."""
    return f"{definition.baseid.removeprefix('tests').removeprefix('/') or 'conftest.py'}::{definition.argname}"


def in_shard(items: Sequence[pytest.Item], times: Times, number: int) -> list[pytest.Item]:
    """Tests of one shard of the campaigns, after `mark`. Shards are consecutive tests, so that few files are in two, and take
    SHARD_SECONDS or less. `number` counts on around them, so that consecutive numbers run all."""
    tests = [item for item in items if is_campaign(item) and item.get_closest_marker("gpu") is None]
    shards = consecutive([times.of_case(function_of(item), marked=_marked_by_source(item)) for item in tests])
    chosen = number % (max(shards, default=0) + 1)
    return [item for item, shard in zip(tests, shards, strict=True) if shard == chosen]


def consecutive(seconds: Sequence[float]) -> list[int]:
    """The shard of each test, from 0: a shard ends where the next test would take it beyond SHARD_SECONDS."""
    found, shard, load = list[int](), 0, 0.0
    for each in seconds:
        if load and load + each > SHARD_SECONDS:
            shard, load = shard + 1, 0.0
        load += each
        found.append(shard)
    return found


class Recorder:
    """A plugin of the process that reports: adds up what each test took and writes the record."""

    def __init__(self, path: Path = RECORD) -> None:
        self.path = path
        self.functions: dict[str, Function] = {}
        self.fixtures: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum setup, call and teardown of a case, without fixtures that tests share."""
        shared = [value for name, value in report.user_properties if name == "fixture"] if report.when == "setup" else []
        for name, seconds in shared:
            self.fixtures[name] = max(self.fixtures.get(name, 0.0), seconds)
        took = report.duration - sum(seconds for _, seconds in shared)
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + max(took, 0.0)
        if report.when == "teardown":
            self._add(report, self.seconds.pop(report.nodeid))

    def _add(self, report: pytest.TestReport, seconds: float) -> None:
        name = report.nodeid.partition("[")[0].removeprefix("tests/")
        plain, marked = self.functions.get(name, Function())
        if dict(report.user_properties).get("campaign"):
            self.functions[name] = Function(plain, marked.plus(seconds))
        else:
            self.functions[name] = Function(plain.plus(seconds), marked)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the record if all tests passed."""
        if exitstatus == pytest.ExitCode.OK:
            write_times(Times(self.functions, self.fixtures), self.path)
