"""Which functions of a file with references are found, without executing it."""

from __future__ import annotations

from pathlib import Path

from tilec.project.trial.author_code import defined_in, find_function

TEXT = """def first(x):
    return x


same = first
again = same
number = 5
other = unknown
before = late


def late(x):
    return x
"""


def test_functions_and_other_names_for_them(tmp_path: Path) -> None:
    path = tmp_path / "reference.py"
    path.write_text(TEXT, encoding="utf-8")
    assert defined_in(path) == {"first": 1, "same": 1, "again": 1, "late": 12}
    assert find_function(tmp_path, "again") == (path, "again") and find_function(tmp_path, "before") is None
