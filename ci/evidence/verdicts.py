"""Caches the verdicts of a campaign by digests of the case and of the checkers, so that a change only invalidates what it
affects.

In: cases by name or number, each with keys. Out: `ci/bench/results/verdicts/NAME.txt`, a line for each case:

    CASE KEY[,KEY] VERDICT [JSON]        1207 5f0c31aa accepted 24

A key is eight digits of a digest of everything that the verdict depends on. A case is looked up by name and key, so two cases
never share a verdict, and a changed case keeps an old verdict by chance once in four billion times. A case may have several
keys, some costly and some cheap to compute (the compiler's source and a program's text; the program's PTX): any match is
sufficient.

Lines are appended as verdicts arrive, so that an interrupted run keeps its verdicts; `close` leaves one line per case.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from ci.evidence.registry import RESULTS

FOLDER: Final = RESULTS / "verdicts"
DIGITS: Final = 8
SEPARATORS: Final = (",", ":")


class Verdict(NamedTuple):
    """The verdict on a case, and other data for its table: any JSON value, or None."""

    word: str
    detail: Any = None


class Line(NamedTuple):
    """The cached keys and verdict of a case."""

    keys: tuple[str, ...]
    verdict: Verdict


def key(*parts: object) -> str:
    """The key of everything that a verdict depends on, in order."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:DIGITS]


def read_lines(path: Path) -> dict[str, Line]:
    """The last line of each case of a file; empty if there is no file. Truncated lines are skipped."""
    found: dict[str, Line] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        case, *rest = line.split(" ", 3)
        if len(rest) < 2:
            continue
        try:
            detail = json.loads(rest[2]) if len(rest) > 2 else None
        except ValueError:
            continue
        found[case] = Line(tuple(rest[0].split(",")), Verdict(rest[1], detail))
    return found


class Verdicts:
    """The verdicts of one campaign, in the file `path`."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self.path = folder / f"{name}.txt"
        self.lines = read_lines(self.path)

    def known(self, case: object) -> Line | None:
        """The cached line of a case, whatever its keys."""
        return self.lines.get(str(case))

    def find(self, case: object, *keys: str) -> Verdict | None:
        """The verdict on a case if one of the keys matches."""
        line = self.lines.get(str(case))
        return line.verdict if line is not None and {*keys} & {*line.keys} else None

    def add(self, case: object, keys: Iterable[str], verdict: Verdict) -> None:
        """Store a verdict."""
        self.lines[str(case)] = line = Line(tuple(keys), verdict)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(str(case), line))

    def close(self, cases: Collection[object] | None = None) -> None:
        """Leave one line per case, sorted; only those of `cases` if it is given, as the complete list of today's cases."""
        names = {str(case) for case in cases} if cases is not None else self.lines.keys()
        kept = sorted((name for name in self.lines if name in names), key=_in_order)
        self.lines = {name: self.lines[name] for name in kept}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text("".join(_text(name, line) for name, line in self.lines.items()), encoding="utf-8")
        new.replace(self.path)


def _in_order(case: str) -> tuple[int, str]:
    return (len(case), case) if case.isdigit() else (sys.maxsize, case)


def _text(case: str, line: Line) -> str:
    detail = "" if line.verdict.detail is None else f" {json.dumps(line.verdict.detail, separators=SEPARATORS)}"
    return f"{case} {','.join(line.keys)} {line.verdict.word}{detail}\n"


class Budget:
    """A time limit of a run in seconds, checked between cases, so that a started case is finished and stored."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def is_spent(self) -> bool:
        """Whether no further case should begin."""
        return self.end is not None and time.monotonic() >= self.end
