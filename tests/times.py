"""What runs where, by recorded times: the order of files, what the default run leaves to the campaigns, `core`, and shards.

`pytest -m 'not gpu' --record-times` writes `times.json`, whose times are processor time and sleep (`spent_time`), so that it
does not matter what else the machine does:

    functions     by file and function: seconds and number of its cases, first those that the source leaves to the default
                  run, then those that the source marks as campaign
    fixtures      by file and name: seconds of a fixture that several tests share

A run of some tests, by any options, records those and keeps the others that still exist. Of a function of which only some cases
ran, the record has as much for all of them.

A test without a record is in the default run, and not in `core`. It is marked `untimed`, and `pytest -m untimed --record-times`
records what is new; `ci/check_tests.py` fails if many tests are.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.spent_time import Watch

TESTS: Final = Path(__file__).resolve().parent
RECORD: Final = TESTS / "times.json"
SPENT: Final = "spent"
"""The property of a test that has its seconds so far."""
FAMILY_SECONDS: Final = 1.0
"""What the cases of one function may take in the default run; the campaigns have the others."""
SPARSEST: Final = 20
"""The default run has at least one case in this many of each function."""
DEFAULT_SECONDS: Final = 550.0
"""What the tests of the default run take together on one core, without collection and fixtures that are shared: with them, less
than 10 minutes on two cores. The campaigns have the slowest functions, of which not even one case fits."""
SHARD_SECONDS: Final = 180.0
"""What the tests of one shard of the campaigns take together on one core, without collection."""
CORE_SECONDS: Final = 45.0
"""What the tests of `core` take together, with the fixtures that they share and without collection: with the collection in two
processes, less than 40 seconds on two cores."""
COVER_SECONDS: Final = 0.5
"""`core` has the quickest test of each file first, if it takes no longer than this."""
SHARED_SECONDS: Final = 0.3
"""A test that uses a fixture slower than this is not in `core`."""


class Cases(NamedTuple):
    """Cases of one function: their seconds together, how many there are, and while a run records, how many ran."""

    seconds: float = 0.0
    count: int = 0

    ran: int = 0

    def plus(self, seconds: float, count: int) -> Cases:
        """With one more case that ran, of `count` that there are."""
        return Cases(self.seconds + seconds, count, self.ran + 1)

    def whole(self) -> Cases:
        """As if all cases had run, each as long as those that did."""
        return Cases(self.seconds / self.ran * self.count, self.count)

    @property
    def each(self) -> float:
        """Seconds of a case."""
        return self.seconds / max(self.count, 1)

    @property
    def every(self) -> int:
        """One case in how many fits in FAMILY_SECONDS; at most SPARSEST."""
        return min(max(math.ceil(self.seconds / FAMILY_SECONDS), 1), SPARSEST)

    @property
    def sampled(self) -> float:
        """Seconds of one case in `every`, the first among them."""
        return self.each * math.ceil(self.count / self.every)


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
        """One case in how many is in the default run, of the cases that the source does not mark, if it has any of them."""
        return self.functions.get(function, Function()).plain.every

    def long(self) -> set[str]:
        """The functions of which the default run has no case, the slowest: it has the quickest of each file, then the quickest
        of all, until they would take more than DEFAULT_SECONDS."""
        sampled = {name: plain.sampled for name, (plain, _) in self.functions.items() if plain.count}
        quickest: dict[str, str] = {}
        known = sorted(sampled, key=lambda name: (sampled[name], name))
        for name in known:
            quickest.setdefault(name.partition("::")[0], name)
        left, total = set(sampled), 0.0
        for name in dict.fromkeys((*quickest.values(), *known)):
            if quickest[name.partition("::")[0]] == name or total + sampled[name] <= DEFAULT_SECONDS:
                left.remove(name)
                total += sampled[name]
        return left

    def of_files(self, *, campaign: bool) -> dict[str, float]:
        """Seconds of each file in the default run, or in the campaigns."""
        found, long = defaultdict[str, float](float), self.long()
        for name, (plain, marked) in self.functions.items():
            here = 0.0 if name in long else plain.sampled
            found[name.partition("::")[0]] += marked.seconds + plain.seconds - here if campaign else here
        return dict(found)

    def of_case(self, function: str, *, marked: bool) -> float:
        """Seconds of a case of a function, which the source marks as campaign or does not."""
        record = self.functions.get(function, Function())
        return (record.campaign if marked else record.plain).each

    def core(self, functions: Mapping[str, Collection[str]]) -> list[str]:
        """The functions of `core`, of these, each with the fixtures that it shares with others: the quickest of each file,
        then the quickest of all, until they would take more than CORE_SECONDS with their fixtures. None without a record."""

        def of(name: str) -> float:
            return self.functions[name].plain.each

        known = sorted((name for name in functions if name in self.functions), key=lambda name: (of(name), name))
        quickest: dict[str, str] = {}
        for name in known:
            if of(name) <= COVER_SECONDS:
                quickest.setdefault(name.partition("::")[0], name)
        chosen, ready, total = list[str](), set[str](), 0.0
        for name in dict.fromkeys((*quickest.values(), *known)):
            more = set(functions[name]) - ready
            seconds = of(name) + sum(self.fixtures.get(fixture, 0.0) for fixture in more)
            if total + seconds <= CORE_SECONDS:
                chosen.append(name)
                ready, total = ready | more, total + seconds
        return chosen


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
        numbers = [round(plain.seconds, 3), plain.count, round(marked.seconds, 3), marked.count]
        file, _, function = name.partition("::")
        functions[file][function] = numbers if marked.count else numbers[:2]
    for name, seconds in sorted(times.fixtures.items()):
        file, _, fixture = name.partition("::")
        fixtures[file][fixture] = round(seconds, 3)
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
    """Mark cases that the default run leaves to the campaigns, functions of which it has none (`long`), cases of `core`, and
    those without a record. A record needs to know of each test whether the source marks it, and how many such cases its
    function has."""
    seen, long = Counter[str](), times.long()
    counts = Counter((function_of(item), is_campaign(item)) for item in items)
    for item in items:
        name = function_of(item)
        item.user_properties += [("campaign", is_campaign(item)), ("cases", counts[name, is_campaign(item)])]
        if not is_campaign(item):
            if name in long:
                item.add_marker(pytest.mark.long)
            if name in long or seen[name] % times.every(name):
                item.add_marker(pytest.mark.campaign)
            seen[name] += 1
    plain = [item for item in items if not is_campaign(item) and item.get_closest_marker("gpu") is None]
    for item in plain:
        if not times.functions.get(function_of(item), Function()).plain.count:
            item.add_marker(pytest.mark.untimed)
    slow = {name for name, seconds in times.fixtures.items() if seconds > SHARED_SECONDS}
    first: dict[str, pytest.Item] = {}
    for item in plain:
        if slow.isdisjoint(_fixtures(item)):
            first.setdefault(function_of(item), item)
    for name in times.core({name: _fixtures(item) for name, item in first.items()}):
        first[name].add_marker(pytest.mark.core)


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
    """A plugin of the process that reports: adds up what each test took that did not fail, and writes the record, with what is
    known of the others."""

    def __init__(self, path: Path = RECORD) -> None:
        self.path = path
        self.functions: dict[str, Function] = {}
        self.fixtures: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a case at its teardown: all its phases, without fixtures that tests share."""
        if report.failed:
            self.failed.add(report.nodeid)
        if report.when != "teardown" or report.nodeid in self.failed:
            return
        properties: dict[str, Any] = dict(report.user_properties)
        seconds = float(properties[SPENT])
        shared: list[tuple[str, float]] = [value for name, value in report.user_properties if name == "fixture"]  # pyright: ignore
        for fixture, value in shared:
            self.fixtures[fixture] = max(self.fixtures.get(fixture, 0.0), value)
            seconds -= value
        name = report.nodeid.partition("[")[0].removeprefix("tests/")
        plain, marked = self.functions.get(name, Function())
        cases = (marked if properties["campaign"] else plain).plus(max(seconds, 0.0), properties["cases"])
        self.functions[name] = Function(plain, cases) if properties["campaign"] else Function(cases, marked)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the record if the run reached its end."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            earlier = read_times(self.path)
            functions = {name: each for name, each in earlier.functions.items() if _exists(self.path.parent, name)}
            for name, (plain, marked) in self.functions.items():
                old = functions.get(name, Function())
                functions[name] = Function(
                    plain.whole() if plain.ran else old.plain, marked.whole() if marked.ran else old.campaign
                )
            write_times(Times(functions, {**earlier.fixtures, **self.fixtures}), self.path)


def _exists(tests: Path, function: str) -> bool:
    file, _, name = function.partition("::")
    return (tests / file).is_file() and f"def {name}(" in (tests / file).read_text(encoding="utf-8")


class Meter:
    """A plugin of each process that runs tests: adds to every report what its test has taken so far."""

    def __init__(self) -> None:
        self._watch = Watch()
        self._before = 0.0

    def pytest_sessionstart(self) -> None:
        """Watch for sleep from here on."""
        self._watch.start()

    def pytest_sessionfinish(self) -> None:
        """The watch is a thread of this process."""
        self._watch.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """A test begins."""
        self._before = self._watch.spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, object, object]:
        """A phase has ended. A later report has the values of the earlier ones as well."""
        item.user_properties.append((SPENT, self._watch.spent() - self._before))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Times a fixture that tests share, with those that it uses; the reports of the first of these tests carry it."""
        start = self._watch.spent()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function" and isinstance(item := request._pyfuncitem, pytest.Function):  # pyright: ignore
                item.user_properties.append(("fixture", (fixture_name(fixturedef), self._watch.spent() - start)))
