"""A few hostile kernel files in every test run; `ci/bench/judges.py hostile --only kernels` checks any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import chosen
from tests.fuzz.hostile_kernels import CPU_SECONDS, hostile, judge

LONG = {14: ("E0401", "E0306"), 189: ("E0510",)}
"""Files that once exceeded the budget in a single isl operation: thirty divisions in one cover, numbers of a thousand bits."""


@pytest.mark.parametrize("seed", chosen(sorted({*range(16), *LONG}), lambda seed: seed < 8 or seed in LONG))
def test_it_ends_in_an_answer(seed: int, tmp_path: Path) -> None:
    verdict = judge(hostile(seed), tmp_path)
    assert verdict.kind in ("accepted", "refused"), verdict
    assert verdict.seconds < 5 * CPU_SECONDS  # on a slow machine; the budget is in steps
    assert verdict.codes == LONG.get(seed, verdict.codes)
