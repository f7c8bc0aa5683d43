"""The count of words that are no longer used: what is prose, what a name, and that a count may only fall."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evidence.repository import write
from tests.files import ROOT

TABLE = """
[[word]]
word = "way_out"
find = "ways? out"
write = "suggestion"

[[word]]
word = "is told"
write = "is reported"
only = ["src"]
allow = { "src/old.py" = "it goes" }
"""
SOURCE = '''"""A way
out of it."""

way_out = "the way out"  # no name is
# told, nor a way
# out, nor `way_out`, and it is
# told here
def f(way_out: int, WayOut: int) -> None:
    """Text.

        ``way out``
    """
'''


def run(root: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "ci/check_words.py"), str(root), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path / "ci/words.toml", TABLE)
    write(tmp_path / "src/a.py", SOURCE)
    write(tmp_path / "src/old.py", '"""It is told."""\n')
    write(tmp_path / "page.md", "It is told. A [way\nout](way/out.md), `way out`.\n\n```text\nway out\n```\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    return tmp_path


def test_places_of_prose_names_and_strings(repository: Path) -> None:
    status, out = run(repository, "--list")
    found = {line.partition(": write")[0] for line in out.splitlines()}
    assert status == 0
    assert found == {
        "src/a.py:1: `way out` (prose)", "src/a.py:4: `way_out` (identifiers)", "src/a.py:4: `way out` (strings)",
        "src/a.py:4: `is told` (prose)", "src/a.py:5: `way out` (prose)", "src/a.py:6: `is told` (prose)",
        "src/a.py:8: `Way_Out` (identifiers)", "page.md:1: `way out` (prose)",
    }  # fmt: skip
    assert len(run(repository, "--list", "is told")[1].splitlines()) == 2
    assert len(run(repository, "--list", "--under", "page.md")[1].splitlines()) == 1


def test_a_count_may_only_fall(repository: Path) -> None:
    def recorded() -> dict[str, dict[str, int]]:
        return json.loads((repository / "ci/word_counts.json").read_text())

    assert run(repository, "--record")[0] == 0
    assert recorded()["prose"] == {"is told": 2, "way_out": 3}
    write(repository / "page.md", "Nothing.\n")
    assert run(repository)[0] == 0
    run(repository, "--record")
    assert recorded()["prose"]["way_out"] == 2
    write(repository / "page.md", "A way out.\n")
    for options in ((), ("--record",)):
        status, out = run(repository, *options)
        assert status == 1
        assert "error: `way_out` in prose: 3, 2 are recorded" in out
        assert "page.md:1: `way out` (prose): write suggestion" in out
    assert run(repository, "--record", "--force")[0] == 0
    assert recorded()["prose"]["way_out"] == 3


def test_a_word_may_count_in_some_kinds_alone(repository: Path) -> None:
    (repository / "ci/words.toml").write_text('[[word]]\nword = "way out"\nwrite = "fix"\nkinds = ["identifiers"]\n')
    found = {line.partition(": write")[0] for line in run(repository, "--list")[1].splitlines()}
    assert found == {"src/a.py:4: `way_out` (identifiers)", "src/a.py:8: `Way_Out` (identifiers)"}


def test_names_of_files_count(repository: Path) -> None:
    write(repository / "src/way_out.py", "x = 1\n")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    (repository / "src/a.py").unlink()
    assert run(repository, "--list", "--under", "src/way_out.py")[1].startswith("src/way_out.py:1: `way_out` (identifiers)")
