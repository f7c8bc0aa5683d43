"""A few builds under faults in every test run; `ci/bench/judges.py hostile --only builds` runs any number."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign import first
from tests.fuzz.builds import campaign, draw


@pytest.mark.parametrize("count", first(1, [2, 6]))
def test_starved_and_killed_builds_end_in_order(tmp_path: Path, count: int) -> None:
    record = campaign(tmp_path, count, seed=5)
    assert record["wrong"] == []
    assert record["builds"] == count


def test_every_kind_of_fault_is_drawn() -> None:
    rng = random.Random(0)
    faults = [draw(rng, number, 1.0) for number in range(300)]
    assert len({fault.kind for fault in faults}) == 7
    assert sum(fault.real for fault in faults) == 30
