"""Recorded times decide what runs where: what the default run leaves to campaigns, `core`, shards; and a run records them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.files import ROOT
from tests.times import (
    CORE_SECONDS,
    COVER_SECONDS,
    DEFAULT_SECONDS,
    FAMILY_SECONDS,
    SHARD_SECONDS,
    SPARSEST,
    Cases,
    Function,
    Recorder,
    Times,
    consecutive,
    read_times,
    write_times,
)

Phase = Literal["setup", "call", "teardown"]
Outcome = Literal["passed", "failed", "skipped"]
PHASES: Final[tuple[Phase, ...]] = ("setup", "call", "teardown")
NAMES = st.from_regex(r"\Aroom/test_[a-d]\.py::test_[a-f]\Z")
SECONDS = st.floats(0, 40, allow_nan=False).map(lambda value: round(value, 2))
CASES = st.builds(Cases, SECONDS, st.integers(1, 9))
RECORDS = st.builds(Times, st.dictionaries(NAMES, st.builds(Function, CASES, CASES)))


def file_of(function: str) -> str:
    return function.partition("::")[0]


@given(RECORDS)
def test_the_default_run_takes_no_more_of_a_function_than_its_share(times: Times) -> None:
    for name, (plain, _) in times.functions.items():
        every = times.every(name)
        assert 1 <= every <= SPARSEST
        assert every == SPARSEST or plain.seconds / every <= FAMILY_SECONDS
        assert every == 1 or plain.seconds / (every - 1) > FAMILY_SECONDS


@given(RECORDS)
def test_the_default_run_takes_no_more_than_its_budget_and_all_that_fits(times: Times) -> None:
    long, sampled = times.long(), {name: plain.sampled for name, (plain, _) in times.functions.items() if plain.count}
    here = sampled.keys() - long
    quickest = {min(seconds for other, seconds in sampled.items() if file_of(other) == file_of(name)) for name in sampled}
    total = sum(sampled[name] for name in here)
    assert total <= DEFAULT_SECONDS + sum(quickest)
    assert {file_of(name) for name in sampled} == {file_of(name) for name in here}
    for name in long:
        assert total + sampled[name] > DEFAULT_SECONDS - 1e-6
        assert all(sampled[name] >= sampled[other] for other in here if file_of(other) == file_of(name))


def test_the_slowest_functions_are_left_to_the_campaigns() -> None:
    half = Function(Cases(DEFAULT_SECONDS / 2, 1))
    slow = {f"a/test_a.py::test_{name}": half for name in "abc"}
    alone = {"a/test_b.py::test_alone": Function(Cases(DEFAULT_SECONDS, 1))}
    marked = {"a/test_a.py::test_marked": Function(Cases(), Cases(1.0, 1))}
    assert Times(slow | marked).long() == {"a/test_a.py::test_c"}
    assert Times(slow | alone).long() == {"a/test_a.py::test_b", "a/test_a.py::test_c"}
    assert Times(slow | marked).of_files(campaign=False) == {"a/test_a.py": DEFAULT_SECONDS}


def test_what_is_recorded_fits_into_ten_minutes() -> None:
    """The record of this project, its quickest functions of files and shared fixtures included, on two cores."""
    times = read_times()
    assert sum(times.of_files(campaign=False).values()) + sum(times.fixtures.values()) < 2 * 600 * 0.7


@given(st.lists(SECONDS.map(lambda value: value * 5), max_size=40))
def test_shards_are_consecutive_full_and_not_too_long(seconds: list[float]) -> None:
    shards = consecutive(seconds)
    assert shards == sorted(shards) and set(shards) == set(range(len(set(shards))))
    loads = [sum(each for each, shard in zip(seconds, shards, strict=True) if shard == number) for number in set(shards)]
    for number, load in enumerate(loads):
        assert (
            load <= SHARD_SECONDS or sum(each > 0 for each, shard in zip(seconds, shards, strict=True) if shard == number) == 1
        )
        if number + 1 < len(loads):
            assert load + seconds[shards.index(number + 1)] > SHARD_SECONDS


@given(RECORDS)
def test_default_run_and_campaigns_are_all(times: Times) -> None:
    both = [times.of_files(campaign=campaign) for campaign in (False, True)]
    whole = sum(plain.seconds + marked.seconds for plain, marked in times.functions.values())
    assert sum(sum(seconds.values()) for seconds in both) == pytest.approx(whole)


@st.composite
def _shared(draw: st.DrawFn) -> tuple[Times, dict[str, list[str]]]:
    """A record with fixtures, and functions with those that they use, of which some are not recorded."""
    times, fixtures = draw(RECORDS), draw(st.dictionaries(st.sampled_from("uvw"), st.floats(0, 20)))
    some = st.lists(st.sampled_from("uvwx"), max_size=3, unique=True)
    names = st.dictionaries(NAMES | st.sampled_from([*times.functions, "room/test_z.py::test_z"]), some)
    return Times(times.functions, fixtures), draw(names)


def cost(times: Times, functions: Mapping[str, Collection[str]], chosen: Collection[str]) -> float:
    """What functions take together with the fixtures that they share."""
    fixtures = {fixture for name in chosen for fixture in functions[name]}
    return sum(times.functions[name].plain.each for name in chosen) + sum(times.fixtures.get(one, 0) for one in fixtures)


@given(_shared())
def test_core_takes_no_more_than_its_budget_and_all_that_fits(made: tuple[Times, dict[str, list[str]]]) -> None:
    times, functions = made
    chosen = times.core(functions)
    assert len(set(chosen)) == len(chosen) and set(chosen) <= set(functions)
    assert cost(times, functions, chosen) <= CORE_SECONDS + 1e-6
    for name in functions.keys() - set(chosen):
        assert name not in times.functions or cost(times, functions, [*chosen, name]) > CORE_SECONDS - 1e-6


def test_core_has_a_test_of_each_file_before_a_second_of_any() -> None:
    quick = {f"a/test_a.py::test_{number}": Function(Cases(0.4, 1)) for number in range(200)}
    slower = {f"a/test_{number}.py::test_b": Function(Cases(0.45, 1)) for number in range(80)}
    slow = {f"a/test_slow_{number}.py::test_c": Function(Cases(COVER_SECONDS + 0.1, 1)) for number in range(9)}
    times = Times(quick | slower | slow)
    chosen = times.core(dict.fromkeys([*slow, *quick, *slower], ()))
    assert set(slower) < set(chosen)
    assert set(chosen) - set(slower) == set(sorted(quick)[: int((CORE_SECONDS - 80 * 0.45) / 0.4 + 1e-6)])


def test_core_grows_by_recorded_tests_only() -> None:
    assert Times().core({"a/test_a.py::test_a": []}) == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    plain = Function(Cases(2.5, 3))
    times = Times(
        {"a/test_a.py::test_a": plain, "a/test_a.py::test_b": Function(Cases(0.5, 1), Cases(9.25, 40))}, {"a::f": 0.75}
    )
    write_times(times, tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == times
    quick = Times({"a/test_a.py::test_quick": Function(Cases(0.0002, 2))})
    write_times(quick, tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == Times({"a/test_a.py::test_quick": Function(Cases(0.0, 2))})
    assert read_times(tmp_path / "nothing.json") == Times()


def report(name: str, when: Phase, outcome: Outcome = "passed", /, **properties: object) -> pytest.TestReport:
    """The report of a phase of a test."""
    return pytest.TestReport(
        f"tests/{name}", ("", 0, ""), {}, outcome, None, when, user_properties=[*properties.items()]
    )  # fmt: skip


def test_a_run_adds_up_cases_without_the_fixtures_that_they_share(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "times.json")
    for name, marked, seconds, shared in (
        ("test_a[1]", False, 5.0, {"fixture": ("a/test_a.py::made", 3.0)}),
        ("test_a[2]", False, 1.0, {}),
        ("test_a[3]", True, 4.0, {}),
    ):
        properties: dict[str, object] = {"campaign": marked, "cases": 1 if marked else 2, **shared, "spent": seconds}
        for when in PHASES:
            recorder.pytest_runtest_logreport(report(f"a/test_a.py::{name}", when, **properties))
    recorder.pytest_sessionfinish(pytest.ExitCode.INTERRUPTED)
    assert not recorder.path.exists()
    recorder.pytest_sessionfinish(pytest.ExitCode.OK)
    expected = Times({"a/test_a.py::test_a": Function(Cases(3.0, 2), Cases(4.0, 1))}, {"a/test_a.py::made": 3.0})
    assert read_times(recorder.path) == expected


def test_a_run_of_some_tests_keeps_the_record_of_others(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(number): ...\ndef test_b(): ...\ndef test_c(): ...\n")
    both = Function(Cases(8.0, 4), Cases(9.0, 1))
    write_times(
        Times({"test_a.py::test_a": both, "test_a.py::test_b": both, "test_a.py::test_gone": both, "test_z.py::test_a": both}),
        tmp_path / "times.json",
    )
    recorder = Recorder(tmp_path / "times.json")
    for name, cases, outcome in (("test_a[3]", 6, "passed"), ("test_c", 1, "failed")):
        for when in PHASES:
            one: Outcome = "failed" if outcome == "failed" and when == "call" else "passed"
            recorder.pytest_runtest_logreport(report(f"test_a.py::{name}", when, one, campaign=False, cases=cases, spent=0.5))
    recorder.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED)
    expected = {"test_a.py::test_a": Function(Cases(3.0, 6), Cases(9.0, 1)), "test_a.py::test_b": both}
    assert read_times(recorder.path) == Times(expected)


PROJECT = """
import pytest

@pytest.fixture(scope="module")
def shared(): ...

@pytest.mark.parametrize("number", range(4))
def test_quick(number): ...

@pytest.mark.parametrize("number", range(4))
def test_slow(number): ...

def test_that_shares(shared): ...

def test_new(): ...

@pytest.mark.parametrize("number", range(2))
def test_endless(number): ...

@pytest.mark.campaign
def test_of_a_campaign(): ...
"""
RECORD = """{"functions": {"test_b.py": {"test_slow": [100.0, 1]}, "test_a.py": {
 "test_slow": [3.0, 4, 170.0, 1], "test_quick": [0.4, 4], "test_that_shares": [0.1, 1],
 "test_endless": [1190.0, 2], "test_of_a_campaign": [0.0, 0, 179.0, 1]}},
 "fixtures": {"test_a.py": {"shared": 9.0}}}"""
RUN = """
import sys
from pathlib import Path
import pytest
from tests import times

times.TESTS = Path(sys.argv[1])
MARKS = ("core", "campaign", "long", "untimed")

class Plugin:
    def pytest_collection_modifyitems(self, items):
        record = times.read_times(times.TESTS / "times.json")
        times.mark(items, record)
        for item in items:
            print("item", item.name, *sorted(mark.name for mark in item.iter_markers() if mark.name in MARKS))
        for number in range(7):
            print("shard", *(item.name for item in times.in_shard(items, record, number)))

pytest.main([sys.argv[1], "--collect-only", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"], [Plugin()])
"""


def test_marks_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(PROJECT)
    (tmp_path / "times.json").write_text(RECORD)
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True)
    lines = done.stdout.splitlines()
    assert [line.removeprefix("item ") for line in lines if line.startswith("item ")] == [
        "test_quick[0] core", "test_quick[1]", "test_quick[2]", "test_quick[3]",
        "test_slow[0] core", "test_slow[1] campaign", "test_slow[2] campaign", "test_slow[3]",
        "test_that_shares", "test_new untimed", "test_endless[0] campaign long", "test_endless[1] campaign long",
        "test_of_a_campaign campaign",
    ]  # fmt: skip
    shards = [line.split()[1:] for line in lines if line.startswith("shard")]
    parts = [["test_slow[1]", "test_slow[2]"], ["test_endless[0]"], ["test_endless[1]"], ["test_of_a_campaign"]]
    assert shards == [*parts, *parts[:3]]


SPENDING = """
import time
import pytest

@pytest.fixture(scope="module")
def shared():
    time.sleep(1)

@pytest.mark.parametrize("number", range(4))
def test_working(shared, number):
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
"""
RECORDING = """
import sys
from pathlib import Path
import pytest
from tests import times

times.TESTS = Path(sys.argv[1])

class Plugin:
    def pytest_collection_modifyitems(self, items):
        times.mark(items, times.Times())

plugins = [Plugin(), times.Meter(), times.Recorder(times.TESTS / "times.json")]
sys.exit(pytest.main([sys.argv[1], "-q", "-k", "0 or 1", "-p", "no:cacheprovider", "-c", "/dev/null"], plugins))
"""


def test_a_run_measures_work_and_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SPENDING)
    subprocess.run([sys.executable, "-c", RECORDING, str(tmp_path)], capture_output=True, cwd=ROOT, check=True)
    found = read_times(tmp_path / "times.json")
    ((plain, marked),), (shared,) = found.functions.values(), found.fixtures.values()
    assert 0.7 < plain.seconds < 2 and plain.count == 4 and marked == Cases()
    assert 0.4 < shared < 1.5
