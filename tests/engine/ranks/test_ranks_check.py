"""The check of two GPUs, as far as processes without GPUs go: it refuses a machine without them and writes nothing, no wait is
without an end, and parts that fail leave the others and what they found."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.bench import front
from ci.bench.engine import CASES, ranks_check, ranks_parts
from ci.bench.engine.ranks_parts import Asked, Found
from ci.bench.engine.ranks_report import right, wrong
from engine.errors import DeviceError
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


class Machine:
    """`DriverCalls` of a machine with some GPUs; `without`: it has no driver."""

    def __init__(self, gpus: int, reached: bool = True, without: bool = False) -> None:
        self.gpus, self.reached, self.without = gpus, reached, without

    def __call__(self) -> Machine:
        if self.without:
            raise DeviceError("no NVIDIA driver on this machine", fix="take another")
        return self

    def call(self, name: str, *arguments: int) -> int:
        return {"cuDeviceGetCount": self.gpus, "cuDeviceGet": sum(arguments), "cuDeviceCanAccessPeer": self.reached}[name]


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Empty files by the names of all bundles."""
    folder = tmp_path / "bundles"
    folder.mkdir()
    for model in ranks_check.DEFAULT:
        for gpus in (1, 2):
            ranks_parts.bundle_of(folder, model, gpus).touch()
    return folder


def check(bundles: Path, *options: str) -> int:
    """The exit status of the whole program, which writes to `out` next to the bundles."""
    return front.run("engine", CASES, ["ranks_check", str(bundles), "--out", str(bundles.parent / "out"), *options])


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        (Machine(0, without=True), (), "needs 2 GPUs: no NVIDIA driver"),
        (Machine(0), (), "needs 2 GPUs, and CUDA shows 0"),
        (Machine(1), (), "needs 2 GPUs, and CUDA shows 1"),
        (Machine(2, reached=False), (), "needs GPUs that reach each other's memory"),
        (Machine(1), ("--one-gpu",), "`all_reduce` needs a GPU for each rank"),
        (
            Machine(2),
            ("--parts", "qwen3-7b"),
            r"7b-sm_90a.bundle, .*7b-2-gpus-sm_90a.bundle not found: `tilec",
        ),
    ],
)
def test_what_it_cannot_measure_is_refused_in_a_line_and_nothing_is_written(
    machine: Machine, options: tuple[str, ...], message: str, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_check, "DriverCalls", machine)
    with pytest.raises(SystemExit, match=message) as refused:
        check(bundles, *options)
    assert "\n" not in str(refused.value)
    assert not (bundles.parent / "out").exists()


ROUNDING = [0.1, 0.1]
HALF: dict[str, Any] = {
    "load_s": 1.0, "speed": {"decode_at_18_tok_s": 100.0, "prefill_18_ms": 2.0}, "finite": True, "rounding": ROUNDING,
    "same": True, "again": 20, "rows": {"same": True, "step_of_16_rows_ms": 3.0},
}  # fmt: skip
KILL = {"rank": 1, "seconds": 0.3, "gone_seconds": 0.4, "message": "rank 1 (process 7) ended by SIGKILL, so the other is too"}
SIZE = {"bytes": 16384, "all_reduce_us": 4.0, "all_reduce_add_us": 3.9, "nccl_us": 7.0, "GB_s": 4.1}
OTHERS: dict[str, dict[str, Any]] = {
    "all_reduce": {"sizes": [SIZE], "same": True, "repeats": 1000, "meet_us": 2.2},
    "kill": {"kills": [KILL]}, "repeats": {"repeats": 1000, "equal": 1000}, "planted": {"right": 0.02, "mistaken": 1.3},
}  # fmt: skip


@pytest.fixture
def parts(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the program with parts that find the above, but that of `failing`, which leaves `left` and ends with status 1."""

    def run(*options: str, failing: str = "", left: dict[str, Any] | None = None, status: int = 0) -> dict[str, Any]:
        asked = list[str]()
        monkeypatch.setattr(ranks_check, "DriverCalls", Machine(2))

        def started(command: list[str]) -> Any:
            if "--child" in command:
                part, _, file = command[command.index("--child") + 1 :][:3]
            else:
                part, file = "all_reduce", command[4]
            asked.append(part)
            found = left if part == failing else HALF if part in ("one", "two") else OTHERS[part]
            if found is not None:
                Path(file).write_text(json.dumps(found), encoding="utf-8")
            if part in ("one", "two"):
                np.savez(Path(file).with_suffix(".npz"), logits_17=np.ones((2, 3), np.float32))
            return SimpleNamespace(poll=lambda: int(part == failing), returncode=int(part == failing), wait=lambda _: None)

        monkeypatch.setattr(ranks_check, "_started", started)
        assert check(bundles, *options) == status
        data = json.loads((bundles.parent / "out" / "ranks_check.json").read_text(encoding="utf-8"))
        return {**data, "asked": asked, "page": (bundles.parent / "out" / "ranks_check.md").read_text(encoding="utf-8")}

    return run


def test_all_parts_in_their_order(parts: Callable[..., Any]) -> None:
    found = parts()
    assert found["asked"] == [
        *["one", "two"] * 2,
        "all_reduce",
        "all_reduce",
        *["one", "two"] * 2,
        "kill",
        "repeats",
        "planted",
    ]
    assert list(found["models"]) == [name for name in ranks_check.DEFAULT if name not in ranks_check.OF_MODEL]
    assert found["models"]["qwen3-4b"]["apart"] == [0.0, 0.0]
    page = found["page"]
    assert (
        "step_of_16_rows_ms | 3.00 | 3.00 | 1.00" in page and "ended by SIGKILL" in page and "16384 | 4.0 | 3.9 | 7.0" in page
    )
    assert "1000 of 1000 decode steps" in page and "Failed" not in page and "Wrong" not in page


@pytest.mark.parametrize("failing", ["one", "two", "all_reduce", "kill", "repeats", "planted"])
def test_a_failed_part_is_reported_and_the_others_run(parts: Callable[..., Any], failing: str) -> None:
    found = parts("--parts", "qwen3-4b,all_reduce,kill,repeats,planted", failing=failing, status=1)
    name = failing if failing in OTHERS else f"qwen3-4b, {failing}"
    assert found["failed"] == {name: f"{name} ended with status 1"} and f"Failed: {name} ended with status 1." in found["page"]
    assert {*found["asked"]} == {"one", "two", *OTHERS}
    assert (failing in found) is False


def test_what_a_part_found_before_it_failed_is_kept(parts: Callable[..., Any]) -> None:
    left = {"load_s": 2.5, "speed": {"prefill_18_ms": 4.0}, "error": "DeviceError: too little memory"}
    found = parts("--parts", "qwen3-4b", failing="two", left=left, status=1)
    assert found["models"]["qwen3-4b"]["two"] == {"load_s": 2.5, "speed": {"prefill_18_ms": 4.0}}
    assert found["failed"] == {"qwen3-4b, two": "qwen3-4b, two ended with status 1: DeviceError: too little memory"}
    assert "prefill_18_ms | 2.00 | 4.00 | 0.50" in found["page"] and "decode_at_18_tok_s | 100.00 |  |  |" in found["page"]


def test_parts_of_an_earlier_run_are_kept_if_that_is_asked_for(parts: Callable[..., Any]) -> None:
    parts("--parts", "qwen3-4b,kill", failing="kill", status=1)
    found = parts("--parts", "kill,repeats", "--resume")
    assert found["models"].keys() == {"qwen3-4b"} and found["repeats"]["equal"] == 1000 and not found["failed"]
    assert parts("--parts", "repeats")["models"] == {}


def test_no_part_begins_after_the_budget(parts: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The first takes no more than what is left, and the second does not begin."""
    clock = iter([0.0, 0.0, 0.0, 50.0, 90.0, *[100.0] * 20])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_check, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
        found = parts("--parts", "kill,repeats", "--budget", "40", status=front.UNFINISHED)
    assert found["asked"] == ["kill"] and "repeats" not in found
    printed = capsys.readouterr()
    assert "kill, at most 35 s" in printed.err and "1 parts have run within 40 s: run again to go on" in printed.out


def test_a_part_that_its_time_ended_says_so(parts: Callable[..., Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_check, "LIMITS", dict.fromkeys(ranks_check.LIMITS, 0.0))
        found = parts("--parts", "kill", failing="kill", left={"kills": [KILL]}, status=1)
    assert found["failed"] == {"kill": "kill ended with status 1, after its 0 s"} and found["kill"] == {"kills": [KILL]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kill": {"kills": [KILL | {"seconds": 1.5, "gone_seconds": 1.5}]}}, "kill: rank 1: 1.50 s"),
        (
            {"kill": {"kills": [KILL, KILL | {"message": "the engine is closed"}]}},
            "0.40 s, `the engine is closed`",
        ),
        ({"repeats": {"repeats": 1000, "equal": 999}}, "repeats: 999 of 1000"),
        ({"planted": {"right": 0.02, "mistaken": 0.03}}, "planted: logits do not show"),
        ({"all_reduce": OTHERS["all_reduce"] | {"same": False}}, "all_reduce: the bits of sums differ"),
        (
            {"models": {"m": {"one": HALF, "two": HALF, "apart": [0.0, 0.5]}}},
            "m: logits are 0.2500 apart, and rounding",
        ),
        ({"models": {"m": {"one": HALF, "two": HALF, "apart": [float("nan")]}}}, "m: logits are nan apart"),
        ({"models": {"m": {"one": HALF, "two": HALF, "apart": [0.0] * 9 + [1.2]}}}, "m: a row of logits is 1.2000 apart"),
        ({"models": {"m": {"one": HALF, "two": HALF | {"same": False}}}}, "m: prompts on two GPUs differ"),
        ({"models": {"m": {"one": HALF | {"finite": False}}}}, "m: logits on one GPU are not finite"),
        ({"models": {"m": {"two": HALF | {"rows": {"same": False}}}}}, "m: a row on two GPUs has other bits"),
    ],
)
def test_what_is_not_as_it_should_be_is_no_success(change: dict[str, Any], message: str) -> None:
    found: dict[str, Any] = {"models": {"m": {"one": HALF, "two": HALF, "apart": [0.2, 0.2]}}, "failed": {}, **OTHERS}
    assert right(found)
    found |= change
    assert not right(found) and any(message in line for line in wrong(found))


SIZES = {"SLOTS": (18,), "PREFILLS": (18,), "LENGTHS": (3, 5, 7), "STEPS": 2, "EVERY": 1, "COUNTED": 4, "AGAIN": 1, "TIMES": 1,
    "ROWS": (2, 3), "ROW_TOKENS": 4, "ROW_STEPS": 2, "KILL_AFTER": 4, "REPEATS": 3}  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    for name, value in SIZES.items():
        monkeypatch.setattr(ranks_parts, name, value)
    return Asked("two", "qwen3-0.6b", tmp_path, tmp_path / "found.json")


@pytest.fixture
def on_fake_gpus(asked: Asked, started: Callable[..., GpuRanks], monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Parts whose ranks are processes on drivers that launch nothing."""
    monkeypatch.setattr(ranks_parts, "on_two", lambda *_: started())
    monkeypatch.setattr(ranks_parts, "distances", lambda found, _: np.zeros(len(found)))  # the fake devices' logits are 0
    return asked


def test_what_is_measured_of_two_processes(on_fake_gpus: Asked) -> None:
    """Each measurement at small sizes."""
    ranks_parts.run_part(on_fake_gpus)
    found = json.loads(on_fake_gpus.file.read_text(encoding="utf-8"))
    assert found["same"] and found["rows"]["same"] and found["finite"] and "rounding" not in found
    assert found["rows"].keys() == {"same", "begun_s", "step_of_2_rows_ms", "step_of_3_rows_ms"}
    assert found["speed"].keys() == {"decode_at_18_tok_s", "prefill_18_ms"}
    with np.load(ranks_parts.array_file(on_fake_gpus.file)) as arrays:
        assert arrays["logits_3"].shape == (3, 2048)
    assert list(found["spent_s"]) == ["load_s", "speed", "finite", "same", "again", "rows"]


def test_an_error_is_written_next_to_what_was_found(on_fake_gpus: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise DeviceError("out of pages", fix="take fewer")

    monkeypatch.setattr(ranks_parts, "rows_over_pages", fails)
    with pytest.raises(DeviceError):
        ranks_parts.run_part(on_fake_gpus)
    found = json.loads(on_fake_gpus.file.read_text(encoding="utf-8"))
    assert found["error"].startswith("DeviceError: out of pages") and "prefill_18_ms" in found["speed"]


def test_decode_steps_are_repeated(on_fake_gpus: Asked) -> None:
    found = Found(on_fake_gpus.file)
    ranks_parts.repeated(on_fake_gpus, found)
    assert (found.data["repeats"], found.data["equal"]) == (3, 3)


def test_each_rank_is_killed(on_fake_gpus: Asked) -> None:
    found = Found(on_fake_gpus.file)
    ranks_parts.killed(on_fake_gpus, found)
    for kill, rank in zip(found.data["kills"], (1, 0), strict=True):
        assert kill["rank"] == rank and f"rank {rank}" in kill["message"] and "SIGKILL" in kill["message"]
        assert 0 < kill["seconds"] <= kill["gone_seconds"]


def test_a_kill_that_nobody_notices_ends_the_part(on_fake_gpus: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_parts, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(ranks_parts, "os", SimpleNamespace(kill=lambda *_: None))
    with pytest.raises(SystemExit, match="processes of ranks are there"):
        ranks_parts.killed(on_fake_gpus, Found(on_fake_gpus.file))


def test_a_part_is_a_process_with_an_end_of_its_own(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(ranks_check.faulthandler, "dump_traceback_later", lambda seconds, exit: seen.append((seconds, exit)))
    monkeypatch.setattr(ranks_check, "run_part", seen.append)
    options = argparse.Namespace(
        child=("one", "qwen3-30b-a3b-fp8", str(asked.file)), seconds=7.0, bundles=asked.bundles, one_gpu=True
    )
    assert ranks_check.measure(options) == 0
    part = seen[1]
    assert seen[0] == (7.0, True) and (part.name, part.form, part.config.num_hidden_layers) == ("qwen3-30b-a3b", "fp8", 4)
