"""Fail when pytest passes over a test file of git.  Run: python ci/check_tests.py [ROOT]

pytest has its own rules for what it looks into: it skips folders named `build`, `dist` or `venv`, folders outside `testpaths`,
files that a `conftest.py` ignores. A file that falls under one of them is never run, and nothing says so. Here pytest is asked
for every test that it would collect, the GPU's included, and git for every file that is named like a test.

Status: 0 every test file has a collected test, 1 some have none (each is named), or pytest cannot collect.
"""

from __future__ import annotations

import fnmatch
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Final

TEST_FILES: Final = ("test_*.py", "*_test.py")
"""pytest's own default of `python_files`."""


class CannotCollect(Exception):
    """pytest stopped with an error before it knew every test."""


def test_files(root: Path) -> set[str]:
    """Files that git knows, in any folder, whose names are those of tests; relative to `root`."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name and (root / name).is_file()}
    return {name for name in names if any(fnmatch.fnmatch(PurePosixPath(name).name, form) for form in TEST_FILES)}


def collected_files(root: Path) -> set[str]:
    """Files of which pytest collects a test, marks aside; relative to `root`. CannotCollect with what pytest said."""
    # One process and no mark expression; the rest of the project's options (its `testpaths` above all) stay as they are.
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "-o", "addopts="], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):  # 5: nothing collected
        raise CannotCollect(done.stdout[-4000:] + done.stderr[-2000:])
    # With -qq a line is `path: number of tests`.
    return {line.rpartition(":")[0] for line in done.stdout.splitlines() if line.rpartition(":")[2].strip().isdecimal()}


def main(root: Path) -> int:
    """Print the test files that are never run; the exit status."""
    wanted = test_files(root)
    try:
        missed = wanted - collected_files(root)
    except CannotCollect as error:
        print(f"pytest cannot collect the tests:\n{error}")
        return 1
    for name in sorted(missed):
        print(f"{name}: pytest collects no test of it")
    if not missed:
        print(f"{len(wanted)} test files, each collected")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)))
