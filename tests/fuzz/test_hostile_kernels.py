"""A few hostile kernel files in every test run; `ci/bench/judges.py hostile --only kernels` checks any number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign import chosen
from tests.fuzz import hostile_kernels
from tests.fuzz.hostile_kernels import CPU_SECONDS, examine, hostile

LONG = {14: ("E0401", "E0306"), 189: ("E0510",)}
"""Files that once exceeded the budget in a single isl operation: thirty divisions in one cover, numbers of a thousand bits."""


@pytest.mark.parametrize("seed", chosen(sorted({*range(16), *LONG}), lambda seed: seed < 8 or seed in LONG))
def test_it_ends_in_an_answer(seed: int, tmp_path: Path) -> None:
    verdict = examine(hostile(seed), tmp_path)
    assert verdict.kind in ("accepted", "refused"), verdict
    assert verdict.seconds < 5 * CPU_SECONDS  # on a slow machine; the budget is in steps
    assert verdict.codes == LONG.get(seed, verdict.codes)


def _spin(case: object, folder: object) -> hostile_kernels.Verdict:
    while True:
        pass


def _leave(case: object, folder: object) -> hostile_kernels.Verdict:
    os._exit(3)


@pytest.mark.parametrize(("does", "kind", "text"), [(_spin, "killed", ""), (_leave, "died", "exit status 3")])
def test_only_too_much_processor_time_is_killed(
    does: Callable[..., hostile_kernels.Verdict], kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile_kernels, hostile_kernels.examine.__name__, does)
    monkeypatch.setattr(hostile_kernels, "CPU_SECONDS", 1.0)
    verdict = hostile_kernels.examined(0)
    assert (verdict.kind, verdict.text) == (kind, text)
