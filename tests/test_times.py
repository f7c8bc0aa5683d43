"""Recorded times decide what runs where: what the default run leaves to campaigns, `core`, shards; and a run records them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.files import ROOT
from tests.times import (
    CORE_SECONDS,
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

NAMES = st.from_regex(r"\Aroom/test_[a-d]\.py::test_[a-f]\Z")
SECONDS = st.floats(0, 40, allow_nan=False).map(lambda value: round(value, 2))
CASES = st.builds(Cases, SECONDS, st.integers(1, 9))
RECORDS = st.builds(Times, st.dictionaries(NAMES, st.builds(Function, CASES, CASES)))


@given(RECORDS)
def test_the_default_run_takes_no_more_of_a_function_than_its_share(times: Times) -> None:
    for name, (plain, _) in times.functions.items():
        every = times.every(name)
        assert 1 <= every <= SPARSEST
        assert every == SPARSEST or plain.seconds / every <= FAMILY_SECONDS
        assert every == 1 or plain.seconds / (every - 1) > FAMILY_SECONDS


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


@given(RECORDS)
def test_core_is_as_much_as_fits(times: Times) -> None:
    limit = times.core_limit(times.functions)
    each = sorted(plain.each for plain, _ in times.functions.values())
    inside = [seconds for seconds in each if seconds <= limit]
    assert sum(inside) <= CORE_SECONDS + each.count(limit) * limit
    assert len(inside) == len(each) or sum(inside) + each[len(inside)] > CORE_SECONDS


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    plain = Function(Cases(2.5, 3))
    times = Times(
        {"a/test_a.py::test_a": plain, "a/test_a.py::test_b": Function(Cases(0.5, 1), Cases(9.25, 40))}, {"a::f": 0.75}
    )
    write_times(times, tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == times
    write_times(
        Times({"a/test_a.py::test_a": plain, "a/test_a.py::test_quick": Function(Cases(0.01, 2))}), tmp_path / "times.json"
    )
    assert read_times(tmp_path / "times.json") == Times({"a/test_a.py::test_a": plain})
    assert read_times(tmp_path / "nothing.json") == Times()


def report(name: str, when: str, seconds: float, *properties: tuple[str, object]) -> pytest.TestReport:
    """The report of a phase of a test."""
    return pytest.TestReport(f"tests/{name}", ("", 0, ""), {}, "passed", None, when, (), seconds, user_properties=properties)  # type: ignore[arg-type]


def test_a_run_adds_up_the_phases_of_cases_without_the_fixtures_that_they_share(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "times.json")
    for name, marked, times, shared in (
        ("a/test_a.py::test_a[1]", False, (3.5, 1.0, 0.5), [("fixture", ("a/test_a.py::made", 3.0))]),
        ("a/test_a.py::test_a[2]", False, (0.0, 1.0, 0.0), []),
        ("a/test_a.py::test_a[3]", True, (0.0, 4.0, 0.0), []),
    ):
        for when, seconds in zip(("setup", "call", "teardown"), times, strict=True):
            recorder.pytest_runtest_logreport(report(name, when, seconds, ("campaign", marked), *shared))
    recorder.pytest_sessionfinish(1)
    assert not recorder.path.exists()
    recorder.pytest_sessionfinish(0)
    expected = Times({"a/test_a.py::test_a": Function(Cases(3.0, 2), Cases(4.0, 1))}, {"a/test_a.py::made": 3.0})
    assert read_times(recorder.path) == expected


PROJECT = """
import pytest

@pytest.fixture(scope="module")
def shared(): ...

@pytest.mark.parametrize("number", range(4))
def test_quick(number): ...

@pytest.mark.parametrize("number", range(4))
def test_slow(number): ...

def test_that_shares(shared): ...

@pytest.mark.campaign
def test_of_a_campaign(): ...
"""
RECORD = """{"functions": {"test_b.py": {"test_slow": [1e9, 1]}, "test_a.py": {
 "test_slow": [4.5, 4, 170.0, 1], "test_quick": [0.4, 4], "test_of_a_campaign": [0.0, 0, 178.0, 1]}},
 "fixtures": {"test_a.py": {"shared": 9.0}}}"""
RUN = """
import sys
from pathlib import Path
import pytest
from tests import times

times.TESTS = Path(sys.argv[1])

class Plugin:
    def pytest_collection_modifyitems(self, items):
        record = times.read_times(times.TESTS / "times.json")
        times.mark(items, record)
        for item in items:
            print("item", item.name, *sorted(mark.name for mark in item.iter_markers() if mark.name in ("core", "campaign")))
        for number in range(5):
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
        "test_that_shares", "test_of_a_campaign campaign",
    ]  # fmt: skip
    shards = [line.split()[1:] for line in lines if line.startswith("shard")]
    assert shards[:2] == [["test_slow[1]", "test_slow[2]"], ["test_of_a_campaign"]]
    assert shards[2:] == [shards[0], shards[1], shards[0]]
