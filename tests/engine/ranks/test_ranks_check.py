"""The check of two GPUs, as far as processes without GPUs go: no wait without an end, and parts that fail leave the others."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.bench.engine import ranks_check
from engine.ranks.gpus import GpuRanks

WAITING = "import time; time.sleep(600)"
STUCK = "import faulthandler, time; faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(600)"


@pytest.fixture
def programs() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []

    def start(text: str) -> subprocess.Popen[bytes]:
        found.append(subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL))
        return found[-1]

    yield start
    for process in found:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("texts", "seconds", "message"),
    [
        ([WAITING, WAITING], 0.2, "the part had not ended after 0 s, and was killed"),
        ([WAITING, "import sys; sys.exit(3)"], 600, "the part ended with status 3"),
        ([WAITING, "import os; os.kill(os.getpid(), 9)"], 600, "the part ended with status -9"),
        ([STUCK], 600, "the part ended with status 1"),
    ],
)
def test_a_part_that_hangs_or_fails_is_over_and_leaves_no_process(
    programs: Callable[[str], subprocess.Popen[bytes]], texts: list[str], seconds: float, message: str
) -> None:
    started = [programs(text) for text in texts]
    with pytest.raises(ranks_check.Failed, match=message):
        ranks_check._waited(started, seconds, "the part")  # pyright: ignore[reportPrivateUsage]
    assert all(one.returncode is not None for one in started)


def test_parts_that_end_well(programs: Callable[[str], subprocess.Popen[bytes]]) -> None:
    ranks_check._waited([programs("pass"), programs("pass")], 600, "both")  # pyright: ignore[reportPrivateUsage]


RECORD: dict[str, Any] = {
    "speed": {"decode_at_18_tok_s": 100.0, "prefill_18_ms": 2.0}, "rows": {"same": True, "step_of_16_rows_ms": 3.0},
    "load_s": 1.0, "rounding": 0.1, "same": True,
}  # fmt: skip
KILL = {"seconds": 0.3, "gone_seconds": 0.4, "message": "rank 1 (process 7) ended by SIGKILL, so the other rank is stopped too"}


def outcomes(monkeypatch: pytest.MonkeyPatch, fails: str = "", **kill: Any) -> list[Any]:
    """All outcomes of the check, one part of which fails."""

    def part(which: str, model: str, *_: Any) -> Any:
        if which == fails:
            raise ranks_check.Failed(f"part `{which}` of {model} ended with status 1")
        return (KILL | kill, {}) if which == "kill" else (RECORD, {"logits_17": np.ones((2, 3))})

    monkeypatch.setattr(ranks_check, "_part", part)
    options = argparse.Namespace(child=None, bundles=Path(), models="a,b", skip_all_reduce=True)
    found: Any = ranks_check.measure(options)
    return list(found)


def test_an_outcome_after_each_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes(monkeypatch)
    assert [one.status for one in found] == [0, 0, 0] and found[-1].data["models"].keys() == {"a", "b"}
    page = capsys.readouterr().out
    assert "step_of_16_rows_ms | 3.00 | 3.00 | 1.00" in page and "ended by SIGKILL" in page and "Failed" not in page


@pytest.mark.parametrize("fails", ["kill", "one", "two"])
def test_a_failed_part_is_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    last = outcomes(monkeypatch, fails)[-1]
    assert last.status == 1 and f"Failed: part `{fails}` of a ended with status 1." in last.pages["ranks_check.md"]
    assert len(last.data["models"]) == (2 if fails == "kill" else 0)


@pytest.mark.parametrize("change", [{"seconds": 1.5}, {"gone_seconds": 1.5}, {"message": "the engine is closed"}])
def test_a_kill_that_takes_too_long_or_says_something_else_is_no_success(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:  # fmt: skip
    assert outcomes(monkeypatch, **change)[-1].status == 1


def test_what_is_measured_of_two_processes(started: Callable[..., GpuRanks], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part at small sizes, on drivers that launch nothing."""
    sizes = {"SLOTS": (18,), "PREFILLS": (18,), "LENGTHS": (3, 5, 7), "STEPS": 1, "COUNTED": 4, "AGAIN": 1, "ROWS": (2, 3)}
    for name, value in (sizes | {"ROW_TOKENS": 4, "ROW_STEPS": 2}).items():
        monkeypatch.setattr(ranks_check, name, value)
    monkeypatch.setattr(ranks_check, "relative", lambda *_: 0.0)  # the fake devices' logits are 0
    found = ranks_check._measured(started(), 1.0)  # pyright: ignore[reportPrivateUsage]
    assert found["same"] and found["rows"]["same"]
    assert found["rows"].keys() == {"same", "step_of_2_rows_ms", "step_of_3_rows_ms"}
    assert found["speed"].keys() == {"decode_at_18_tok_s", "prefill_18_ms"} and found["logits_3"].shape == (2, 2048)


def test_a_rank_is_killed_as_the_check_does_it(started: Callable[..., GpuRanks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_check, "COUNTED", 4)
    monkeypatch.setattr(ranks_check, "_shared", lambda *_: started())
    found = ranks_check.killed(Path(), "")
    assert "rank 1" in found["message"] and "SIGKILL" in found["message"] and 0 < found["seconds"] <= found["gone_seconds"]


def test_a_kill_that_nobody_notices_ends_the_part(started: Callable[..., GpuRanks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_check, "COUNTED", 4)
    monkeypatch.setattr(ranks_check, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(ranks_check, "_shared", lambda *_: started())
    monkeypatch.setattr(ranks_check, "os", SimpleNamespace(kill=lambda *_: None))
    with pytest.raises(SystemExit, match="processes of ranks are there"):
        ranks_check.killed(Path(), "")
