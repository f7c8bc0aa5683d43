"""Verdicts of a campaign over numbered cases, kept as JSON and continued where it ended.

In: a file, the numbers that were judged, how often each verdict came, the cases that are noted. Out: the file, with the ranges
of numbers so far, all counts, all noted cases; the same numbers are not counted twice.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def following(path: Path) -> int:
    """The number behind the last one that was judged."""
    ranges: list[list[int]] = _kept(path)["ranges"]
    return sum(ranges[-1]) if ranges else 0  # they are sorted


def add(path: Path, first: int, count: int, counts: Counter[str], noted: list[dict[str, Any]]) -> dict[str, Any]:
    """Add what was found of the numbers from `first` on, `count` of them. ValueError where some were judged before."""
    kept = _kept(path)
    ranges: list[list[int]] = kept["ranges"]
    if any(first < start + size and start < first + count for start, size in ranges):
        raise ValueError(f"numbers from {first} to {first + count - 1} are in {path.name} already, some of them")
    kept["ranges"] = _joined(sorted([*ranges, [first, count]]))
    before: dict[str, int] = kept["counts"]
    kept["counts"] = dict(sorted((Counter(before) + counts).items()))
    kept["noted"] += noted
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return kept


def _kept(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"ranges": [], "counts": {}, "noted": []}
    return json.loads(path.read_text(encoding="utf-8"))


def _joined(ranges: list[list[int]]) -> list[list[int]]:
    found: list[list[int]] = []
    for first, count in ranges:
        if found and sum(found[-1]) == first:
            found[-1][1] += count
        else:
            found.append([first, count])
    return found
