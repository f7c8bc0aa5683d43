"""What of `ci/bench/new_project_gpu.py` needs no GPU: its steps up to the benchmark, a step that fails, the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.bench import new_project_gpu as bench
from tests.files import ROOT

NO_GPU = 3


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(folder / "store"), "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.campaign
def test_the_project_is_made_and_tested_and_the_first_step_that_fails_ends_it(tmp_path: Path) -> None:
    done = bench.run(bench.STEPS, tmp_path, environment=environment(tmp_path))
    assert [(one.name, one.status) for one in done] == [
        ("tilec new softmax", 0),
        ("tilec test", 0),
        ("tilec bench softmax", NO_GPU),
    ]
    assert done[0].said == "next: cd softmax && tilec test"
    assert done[1].said.endswith("right")
    assert bench.seconds_to_goal(done) == sum(one.seconds for one in done)
    assert not bench.is_good(done)


def test_a_step_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STEP_SECONDS", 0.2)
    (done,) = bench.run([bench.Step("sleep", ("-c", "import time; time.sleep(60)"), False)], tmp_path, environment={})
    assert done.status == -1
    assert "still at work" in done.said
    assert done.seconds < 30


def steps(seconds: float, status: int = 0) -> list[bench.Done]:
    return [bench.Done(step.name, seconds, status, "a  | b", step.counts) for step in bench.STEPS]


def test_only_what_leads_to_the_benchmark_counts_towards_the_goal() -> None:
    assert bench.seconds_to_goal(steps(2.0)) == 6.0
    assert bench.is_good(steps(2.0))
    assert not bench.is_good(steps(bench.GOAL_SECONDS / 3))
    assert not bench.is_good(steps(2.0, status=1))
    assert not bench.is_good(steps(2.0)[:-1])


def test_the_table_has_a_row_for_each_step_and_the_sum() -> None:
    rows = bench.report(steps(2.0, status=1), "GPU", "2.11").splitlines()[-len(bench.STEPS) - 1 :]
    assert rows[0] == r"| `tilec new softmax` | 2.00 | a \| b (exit status 1) |"
    assert rows[-1] == "| from `tilec new` to the benchmarked kernel | 6.00 | |"
    assert all(row.replace(r"\|", "").count("|") == 4 for row in rows)
