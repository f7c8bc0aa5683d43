"""Fail if no run of pytest includes a test file of git, or a test.  Run: python ci/check_tests.py [ROOT]

pytest skips folders named `build`, `dist` or `venv`, folders outside `testpaths`, and files that a `conftest.py` ignores. Test
files there are silently never run, nor are tests whose marks no run selects. So this script asks pytest for all tests, and for
those selected by each of `RUNS`, and asks git for every file named like a test. A function whose cases are all in a campaign,
and a file whose tests are, must also have a case in the default run, so that breakage is found there; a function may be too
slow for that, but no file. Few functions may lack a recorded time (`tests/times.py`), since `core` leaves them out.

Status: 0 every test file has a collected test and every test has a run, 1 some have none (each is named), too many have no
recorded time, or pytest cannot collect.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

TEST_FILES: Final = ("test_*.py", "*_test.py")
"""pytest's default of `python_files`."""

DEFAULT: Final[tuple[str, ...]] = ()
CAMPAIGNS: Final = ("-m", "campaign")
RUNS: Final = (DEFAULT, CAMPAIGNS, ("-m", "gpu"))
"""Options of the existing runs: two of the gate, and the one on a GPU."""


LONG: Final = ("-m", "long")
"""Functions that are too slow for the default run."""
UNTIMED: Final = ("-m", "untimed")
MOST_UNTIMED: Final = 100
"""How many test functions may lack a recorded time."""
ALONE: Final = ("--collect-only", "-n", "0", "-p", "no:cacheprovider")
"""Options of a collection in a single process, without side effects."""

COLLECT: Final = """
import json, sys, pytest
class Selected:
    def pytest_collection_finish(self, session):
        self.tests = [item.nodeid for item in session.items]
found = []
for options in json.loads(sys.argv[1]):
    selected = Selected()
    status = pytest.main(options, [selected])
    if status not in (0, 5):  # 5: nothing collected
        sys.exit(1)
    found.append(selected.tests)
print()
print(json.dumps(found))
"""
"""A process for all runs, which imports the test files only once."""


class CannotCollect(Exception):
    """pytest failed during collection."""


def test_files(root: Path) -> set[str]:
    """Files tracked by git, in any folder, that are named like tests; relative to `root`."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name and (root / name).is_file()}
    return {name for name in names if any(fnmatch.fnmatch(PurePosixPath(name).name, form) for form in TEST_FILES)}


def collected(root: Path, runs: Iterable[tuple[str, ...]]) -> list[set[str]]:
    """Tests that pytest selects with the project's options plus those of each run, as `file::test`, files relative to `root`.

    CannotCollect with pytest's output.
    """
    option_lists = [[*ALONE, *options] for options in runs]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, json.dumps(option_lists)], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotCollect(done.stdout[-4000:] + done.stderr[-2000:])
    return [set(tests) for tests in json.loads(done.stdout.splitlines()[-1])]


def function(test: str) -> str:
    """A test's name without the parameters of its case."""
    return test.partition("[")[0]


def faults(files: set[str], every: set[str], long: set[str], runs: dict[tuple[str, ...], set[str]]) -> list[str]:
    """A line for each file without a test, each test without a run, and each function or file that has cases only in campaigns.
    A test without cases, or one of `long`, may be a campaign on its own, in a file with other tests."""
    tested = {test.partition("::")[0] for test in every}
    found = [f"{name}: pytest collects no test of it" for name in sorted(files - tested)]
    found += [f"{test}: no run selects it" for test in sorted(every.difference(*runs.values()))]
    default_runs = {name for test in runs[DEFAULT] for name in (function(test), test.partition("::")[0])}
    alone = {function(test) for test in runs[CAMPAIGNS] if "[" in test} - default_runs - {function(test) for test in long}
    alone |= {test.partition("::")[0] for test in runs[CAMPAIGNS]} - default_runs
    return found + [f"{name}: the default run has no case of it" for name in sorted(alone)]


def without_time(untimed: set[str]) -> list[str]:
    """A line for each function without a recorded time, if they are more than MOST_UNTIMED."""
    names = sorted({function(test) for test in untimed})
    if len(names) <= MOST_UNTIMED:
        return []
    return [f"{name}: no recorded time; `pytest -m untimed --record-times` records it" for name in names]


def main(root: Path) -> int:
    """Print what is never run; returns the exit status."""
    wanted = test_files(root)
    try:
        every, untimed, long, *selected = collected(root, (("-m", ""), UNTIMED, LONG, *RUNS))
    except CannotCollect as error:
        print(f"pytest cannot collect the tests:\n{error}")
        return 1
    found = faults(wanted, every, long, dict(zip(RUNS, selected, strict=True))) + without_time(untimed)
    for line in found:
        print(line)
    if not found:
        print(f"{len(wanted)} test files, each collected; {len(every)} tests, each in a run")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)))
