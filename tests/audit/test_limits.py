"""An audit survives its subjects, and ends early on request: a task that hangs, dies or exhausts memory gives unknown."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.audit import samples
from tests.audit.test_emulation import compiled
from tilec.artifact.bundle_format import canonical, encode
from tilec.artifact.records import to_json
from tilec.audit import work
from tilec.audit.run import audit
from tilec.audit.tasks import Unit, run_unit
from tilec.audit.work import Options
from tilec.progress import Limits, stage
from tilec.runtime import open_bundle
from tilec.workers import scheduler


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
    """`add` allocates all memory it gets."""
    if unit.name.startswith("add"):
        with stage("s", Limits(100, 20)):
            allocated = []
            while True:
                allocated.append(bytes(range(256)) * 4096)
                time.sleep(0.001)
    run_unit(unit, emit)


@pytest.mark.parametrize(("runner", "reason"), [(die, "killed by SIGABRT"), (eat, "more than 8192 MiB of memory")])
def test_a_task_that_fails_is_unknown_and_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Any, reason: str
) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "rms_norm")}))
    monkeypatch.setattr(work, "run_unit", runner)
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(jobs=2, launches=0))
    add, norm = report["artifacts"]
    assert {one["verdict"] for one in norm["obligations"]} == {"confirmed"}
    assert {one["verdict"] for one in add["obligations"]} == {"unknown"}
    assert all("not checked: " in one["reason"] and reason in one["reason"] for one in add["obligations"])
    assert report["summary"]["status"] == 3


class Clock:
    """The clock of `tilec.workers.scheduler`: the real one until the message `until` has been shown, then past any limit."""

    def __init__(self, shown: list[str], until: str) -> None:
        self.shown, self.until = shown, until

    def monotonic(self) -> float:
        return 1e12 if self.until in self.shown else time.monotonic()


def test_a_time_limit_leaves_verdicts_open_and_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "rms_norm")}))
    shown: list[str] = []
    monkeypatch.setattr(work, "run_unit", hang)
    monkeypatch.setattr(scheduler, "time", Clock(shown, "proved rms_norm"))
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(jobs=2, launches=0, time_limit=1e9), show=shown.append)
    add, norm = report["artifacts"]
    assert {one["verdict"] for one in norm["obligations"]} == {"confirmed"}
    assert {(one["verdict"], one["reason"]) for one in add["obligations"]} == {
        ("unknown", "stopped by --time-limit after 1e+09 s")
    }
    assert report["run"]["not_judged"]["proof"] == ["add"]
    assert report["summary"]["status"] == 3


def test_no_verdict_depends_on_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is an hour after the previous one, as on an overloaded machine."""
    path = tmp_path / "a.bundle"
    path.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "rms_norm")}))
    hours = count()
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(hours))
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(launches=0))
    assert next(hours) > 2
    assert {one["verdict"] for artifact in report["artifacts"] for one in artifact["obligations"]} == {"confirmed"}
    assert report["summary"]["status"] == 0


def test_verdict_code_uses_no_clock() -> None:
    """Except for the durations in a report, and for a requested time limit."""
    folder = Path(work.__file__).parent
    clocks = [
        path.name for path in sorted(folder.glob("*.py")) if re.search(r"^(?:import|from) time\b", path.read_text(), re.M)
    ]
    assert clocks == ["run.py"]
    assert "timeout" not in (folder / "smt.py").read_text()


@pytest.mark.campaign
def test_a_report_is_the_same_on_an_idle_and_on_a_busy_machine(tmp_path: Path) -> None:
    """Proofs and launches of a small bundle, twice, the second time next to eight busy processes."""
    path = tmp_path / "a.bundle"
    manifest, ptx = compiled("add")
    tir = samples.text("add")
    data = to_json(manifest) | {"digests": {"cubin": "", "tir": sha256(tir.encode()), "ptx": sha256(ptx.encode())}}
    code = samples.samples.cubin("add")
    data["digests"]["cubin"] = sha256(code)
    kernels = [{"name": "add", "blob": data["digests"]["cubin"], "steps": ["norm"], "manifest": data}]
    texts = {data["digests"]["tir"]: tir.encode(), data["digests"]["ptx"]: ptx.encode()}
    description = {"model": "tiny-1b", "arch": "sm_90a", "config": {}, "kernels": kernels, **samples.samples.STEP}
    path.write_bytes(encode(description, {data["digests"]["cubin"]: code}, texts))

    def report() -> bytes:
        with open_bundle(path) as bundle:
            found = audit(bundle, Options(jobs=2))
        assert found.pop("run")["reused"]["proof"] == 0
        assert found["summary"]["status"] == 0
        return canonical(found)

    idle = report()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        assert report() == idle
    finally:
        for process in busy:
            process.kill()
            process.wait()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
