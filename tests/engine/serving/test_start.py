"""What happens first when a server or a generation starts: what is imported before what, and what ends if it goes wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import cli
from engine.early_device import wake_device
from engine.errors import DeviceError, EngineError
from engine.options import WEIGHT_FORMATS
from engine.phases import Phases
from engine.serving.beginning import EngineProcess
from engine.serving.loop import EngineLoop
from engine.serving.options import INTERPRETED_ROWS
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.step import BATCHES

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 240

SPEAKS_HTTP = {"starlette", "uvicorn", "h11", "prometheus_client", "engine.serving.http", "engine.serving.server"}
RUNS_MODELS = {"engine.api", "engine.backends", "engine.loading", "tilec.runtime", "cuda"}
LATER = {"llguidance", "jinja2", "rich", "engine.tools.profile", "engine.tools.dummy_weights"}
"""Packages that no first generation needs."""
TAKES_TIME = {*SPEAKS_HTTP, *RUNS_MODELS, *LATER, "numpy", "msgspec", "tokenizers", "asyncio"}


def python(code: str) -> str:
    """What a program prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("engine.cli", TAKES_TIME), ("engine.generate_command", TAKES_TIME), ("engine.serving.command", TAKES_TIME),
        ("engine.serving.worker", TAKES_TIME), ("engine.serving.server", {*RUNS_MODELS, *LATER}),
        ("engine.serving.work", {*SPEAKS_HTTP, *LATER}), ("engine.api", {*SPEAKS_HTTP, *LATER, "msgspec"}),
    ],
)  # fmt: skip
def test_what_a_module_does_not_import(module: str, without: set[str]) -> None:
    assert python(f"import sys, {module}; print(sorted({without!r} & {{*sys.modules}}))") == "[]"


def test_the_engine_s_process_starts_before_the_server_is_imported(tmp_path: Path) -> None:
    """A server of one GPU also lets that process wake it; one of two does not, since each has a process of its own."""
    code = f"""
import sys
from engine import cli
from engine.serving.beginning import EngineProcess

def start(*, wake):
    print(sorted({TAKES_TIME!r} & {{*sys.modules}}), wake)
    raise SystemExit

EngineProcess.start = start
for options in ([], ["--gpus", "2"], ["--backend", "interpreter"]):
    cli.run(["serve", {str(tmp_path)!r}, "--port", "0", *options])
"""
    assert python(code).splitlines() == ["[] True", "[] False", "[] False"]


def test_the_gpu_is_woken_before_the_engine_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from engine import cli, generate_command

def wake():
    print(sorted({TAKES_TIME!r} & {{*sys.modules}}))
    raise SystemExit

generate_command.wake_device = wake
cli.run(["--model", {str(tmp_path)!r}, "--prompt", "x"])
generate_command.wake_device = lambda: print("woken")
for option in (["--gpus", "2"], ["--backend", "interpreter"]):
    assert cli.run(["--model", {str(tmp_path)!r}, "--prompt", "x", *option]) == 3
"""
    assert python(code) == "[]"


def test_an_engine_s_process_that_dies_at_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EngineProcess, "module", "engine.nowhere")
    assert cli.run(["serve", str(tiny), "--backend", "interpreter", "--port", "0"]) == 6
    assert capfd.readouterr().err.splitlines()[-1] == "error: the engine's process ended"


def test_the_engine_s_process_ends_if_the_server_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started, start = list[EngineProcess](), EngineProcess.start

    def recorded(*, wake: bool) -> EngineProcess:
        started.append(start(wake=wake))
        return started[-1]

    monkeypatch.setattr(EngineProcess, "start", recorded)
    assert cli.run(["serve", str(tmp_path), "--backend", "interpreter", "--port", "0"]) == 3
    assert [one.process.returncode is not None for one in started] == [True]
    assert capfd.readouterr().err.count("\n") == 1


def test_a_package_that_only_the_engine_s_process_lacks(tiny: Path) -> None:
    """One line says so, and no traceback."""
    code = f"""
import sys
from engine import cli
from engine.serving.beginning import EngineProcess
EngineProcess.module = "tests.engine.serving.without_a_package"
sys.exit(cli.run(["serve", {str(tiny)!r}, "--backend", "interpreter", "--port", "0"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: the package `ml_dtypes` is not installed"), done.stderr


def test_waking_a_gpu_makes_its_context_and_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, raised = list[Any](), list[Any]()
    monkeypatch.setattr(threading, "excepthook", raised.append)

    class Bindings:
        @staticmethod
        def cuInit(flags: int) -> None:  # the driver's names
            calls.append(("cuInit", flags))

        @staticmethod
        def cuDeviceGet(ordinal: int) -> tuple[int, str]:
            return 0, f"device {ordinal}"

        @staticmethod
        def cuDevicePrimaryCtxRetain(device: str) -> None:
            calls.append(("retain", device))

    for bindings in (Bindings, None):  # the second as if the package were not installed
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
        wake_device().join(SECONDS)
    assert calls == [("cuInit", 0), ("retain", "device 0")] and not raised


def test_what_cannot_be_made_ready_is_an_error_of_the_request_that_needs_it() -> None:
    """Unless nothing can run any more."""
    for error, closed, goes_on in (
        (EngineError("a step"), False, True),
        (DeviceError("no GPU"), False, False),
        (EngineError("a step"), True, False),
    ):

        def prepare(error: EngineError = error) -> bool:
            raise error

        loop: Any = EngineLoop.__new__(EngineLoop)
        loop._rows, loop._backend = SimpleNamespace(prepare=prepare), SimpleNamespace(closed=closed)
        if goes_on:
            assert loop.prepare()
            continue
        with pytest.raises(EngineError, match=str(error)):
            loop.prepare()


def test_phases_are_of_the_first_model(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("engine.phases.time", SimpleNamespace(perf_counter=lambda: now[0]))
    phases = Phases()
    for seconds, name in ((1.0, "imports"), (1.25, "bundle"), (9.0, "imports")):
        now[0] = seconds
        phases.ended(name)
    assert phases.rounded() == {"imports": 1.0, "bundle": 0.25}


def test_names_that_are_written_twice_so_that_they_need_no_import() -> None:
    assert WEIGHT_FORMATS[0] == SIXTEEN_BIT and BATCHES[-1] == INTERPRETED_ROWS
