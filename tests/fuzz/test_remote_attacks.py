"""Attacks on data from other machines, a few of each kind; `ci/bench/judges.py remote_attacks` runs thousands."""

from __future__ import annotations

import pytest

from tests.fuzz.remote_attacks import campaign

WIRES = [pytest.param(name, 12, marks=pytest.mark.campaign) for name in ("registry", "HTTP cache", "Redis cache")]


@pytest.mark.parametrize(("part", "count"), [("farm", 60), ("shared folder", 10), *WIRES])
def test_whatever_is_sent_it_is_right_or_refused(part: str, count: int) -> None:
    found = campaign(count, 7, [part])["attacks"][part]
    assert not [text for row in found.values() for text in row["wrong"]]
    assert sum(row["tried"] for row in found.values()) == count
