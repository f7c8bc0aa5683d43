"""An audit ends in time and survives what it looks at: what hangs, dies or eats its budget is unknown, the rest judged."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.audit import samples
from tilec.audit import run as audit_run
from tilec.audit.run import Options, audit
from tilec.audit.tasks import Unit, run_unit
from tilec.progress import Limits, stage
from tilec.runtime import open_bundle


def hang(unit: Unit, emit: Any) -> None:
    """`add` never ends."""
    if unit.name.startswith("add"):
        time.sleep(1000)
    run_unit(unit, emit)


def die(unit: Unit, emit: Any) -> None:
    """`add` ends its process."""
    if unit.name.startswith("add"):
        os.abort()
    run_unit(unit, emit)


def eat(unit: Unit, emit: Any) -> None:
    """`add` takes all memory it gets."""
    if unit.name.startswith("add"):
        with stage("s", Limits(100, 20)):
            held = []
            while True:
                held.append(bytes(range(256)) * 4096)
                time.sleep(0.001)
    run_unit(unit, emit)


@pytest.mark.parametrize(
    ("runner", "limit", "reason"),
    campaign.chosen(
        [(hang, 0.0, "the time limit was reached"), (die, 600.0, "killed by SIGABRT"), (eat, 600.0, "its budget of memory")],
        lambda case: case[0] is not hang,  # which waits for a limit
    ),
)
def test_a_task_that_fails_is_unknown_and_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Any, limit: float, reason: str
) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "rms_norm")}))
    monkeypatch.setattr(audit_run, "run_unit", runner)
    monkeypatch.setattr(audit_run, "GRACE", 0.0)
    with open_bundle(path) as bundle:
        if runner is hang:  # a limit that leaves time for the other task, on a machine as busy as this one is
            start = time.monotonic()
            audit(bundle, Options(600.0, kernels=("rms_norm",), jobs=2, launches=0))
            limit = 2 + 4 * (time.monotonic() - start)
        report = audit(bundle, Options(limit, jobs=2, launches=0))
    add, norm = report["artifacts"]
    assert {one["verdict"] for one in norm["obligations"]} == {"confirmed"}
    assert {one["verdict"] for one in add["obligations"]} == {"unknown"}
    assert reason in str(add["contract"])
    assert report["summary"]["status"] == 3
