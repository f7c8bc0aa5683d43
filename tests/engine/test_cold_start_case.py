"""The case of cold starts: seconds, however long, are figures; what processes write and how they end is checked."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fake_api import constant_call

from ci.bench.engine import cold_start
from ci.bench.front import Outcome, Unfinished
from engine.backends.device_memory import DeviceMemory
from engine.errors import DeviceError

ENGINE = """
import json, pathlib, sys
count = pathlib.Path({count!r})
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
{special}
seconds = dict.fromkeys(("load_seconds", "kernel_load_seconds", "first_token_seconds"), {seconds!r})
print(json.dumps({{"ids": [5, 6], **seconds}}) if "--json" in sys.argv else "Hello")
"""
"""A stand-in for the engine: `number` counts its processes, two for each run."""


class Case:
    """Runs the case with a stand-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        (folder / "model").mkdir()
        monkeypatch.setattr(cold_start, "write_weights", constant_call(lambda: 10**9))

    def __call__(self, special: str = "", seconds: float = 0.01) -> Outcome:
        text = ENGINE.format(count=str(self.folder / "count"), special=special, seconds=seconds)

        def command(model: Path, bundle: Path) -> list[str]:
            return [sys.executable, "-c", text]

        self.monkeypatch.setattr(cold_start, "command", command)
        return cold_start.measure(Namespace(folder=self.folder / "model", bundle=Path("b"), model="qwen3-4b", runs=2))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def page_of(outcome: Outcome) -> str:
    return outcome.pages["cold_start.md"]


def test_a_loaded_machine_changes_figures_alone(case: Case) -> None:
    outcome = case(seconds=100.0)
    assert outcome.status == 0 and outcome.data["faults"] == []
    assert [run["kernel_load_seconds"] for run in outcome.data["runs"]] == [100.0, 100.0]
    assert "not shown" in page_of(outcome) and "Seconds are figures" in page_of(outcome)


def test_goals_that_every_run_meets_are_reported(case: Case) -> None:
    outcome = case()
    (kernels,) = (line for line in page_of(outcome).splitlines() if line.startswith("| kernel_load_seconds"))
    assert outcome.status == 0 and kernels.split("|")[-2].strip() == "yes"


@pytest.mark.parametrize(
    ("special", "fault"),
    [
        ("if number == 5: sys.exit('error: cannot read weights')", "status 1: error: cannot read weights"),
        ("if number == 4: sys.exit(4)", "status 4: no message"),
        ("if number == 4: print('Goodbye')", "different tokens"),
        ("if number == 5: print('{\"ids\": [5, 7]}'.replace('}', ', \"load_seconds\": 1, \"kernel_load_seconds\": 1, "
         "\"first_token_seconds\": 1}')); sys.exit()", "different tokens"),
        ("if number == 4: sys.exit(0)", "no token"),
    ],
)  # fmt: skip
def test_what_a_process_writes_and_how_it_ends_is_checked(case: Case, special: str, fault: str) -> None:
    outcome = case(special)
    assert outcome.status == 1 and any(fault in line for line in outcome.data["faults"])
    assert fault in page_of(outcome)


def messages_without_memory() -> list[str]:
    """What the engine says of a card whose memory others hold."""

    class Full:
        def memory(self) -> tuple[int, int]:
            return 1 << 30, 80 << 30

    with pytest.raises(DeviceError) as refused:
        full: Any = Full()
        DeviceMemory(full, 0).require(8 << 30)
    return [str(refused.value), "the device cannot give 4096 bytes (CUDA_ERROR_OUT_OF_MEMORY)"]


@pytest.mark.parametrize("message", messages_without_memory())
def test_a_card_whose_memory_others_hold_gives_no_verdict(case: Case, message: str) -> None:
    with pytest.raises(Unfinished, match="other processes hold the card"):
        case(f"if number == 3: print({json.dumps('error: ' + message)}, file=sys.stderr); sys.exit(5)")
