"""`tilec test --gpu` as its users see it: each fault of a device is reported by the tensor that it harms. No GPU: the process
that launches has a fake device."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tilec.cli import commands, gpu_trials
from tilec.project.trial import device
from tilec.project.trial.cases import Case, read_case, write_case
from tilec.project.trial.device_launch import DeviceTrial
from tilec.tuning.measure import NoDevice

pytestmark = pytest.mark.usefixtures("kept_workers")

SCALED = """
import tilec
from tilec import Const, Dim, Element, In, InOut, Out, Strides, bf16, bid, f32, grid, i32, load, store

class E(Element): "bf16 or f16"
class T(Dim): "rows"
class S(Dim): "elements from row to row"

@tilec.kernel
def scaled(
    x: In[E, T, 64, Strides[S, 1]], by: In[i32, T], total: InOut[f32, T, 64], out: Out[E, T, 64], factor: f32, *, E: Const
):
    grid(T)
    row = load(x, (bid(0), 0), shape=(1, 64)).astype(f32) * factor + load(by, bid(0)).astype(f32)
    store(out, (bid(0), 0), tilec.astype(row, E))
    store(total, (bid(0), 0), load(total, (bid(0), 0), shape=(1, 64)) + row)
"""
REFERENCE = """
def scaled(x, by, total, factor):
    row = x.astype(float) * factor + by[:, None]
    return total + row, row

def scaled_inputs(rng, dims):
    return {"factor": 1.5, "by": rng.integers(-9, 9, dims["T"])}
"""
BUILD = '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "scaled"\nconstants = { E = ["bf16", "f16"] }\n'
COMMAND = ["test", "--gpu", "--launches", "2", "-j", "1"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def project(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(store))
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/scaled.py").write_text(SCALED)
    (tmp_path / "kernels_src/reference.py").write_text(REFERENCE)
    (tmp_path / "build.toml").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    on_fake(tmp_path, monkeypatch)
    return tmp_path


def on_fake(project: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "none") -> None:
    command = (sys.executable, "-P", "-m", "tests.cli.fake_gpu", str(project / "kernels_src"), fault)
    monkeypatch.setattr(gpu_trials, "COMMAND", command)


def test_a_right_kernel_is_launched_with_the_same_inputs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(COMMAND) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("on the interpreter and on fake device (sm_90a")
    assert [line.split()[-1] for line in out[2:]] == ["right", "right"]
    assert commands.run([*COMMAND, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["device"]["arch"] == "sm_90a" and len(data["launches"]) == 4
    for one in data["launches"]:
        assert one["gpu"]["verdict"] == "right" and one["values"]["factor"] == 1.5
        assert [side["name"] for side in one["gpu"]["interpreter"]] == ["total", "out"]
        assert all(side["error"] == 0 for side in one["gpu"]["interpreter"])  # the fake device is the interpreter
        assert [side["error"] for side in one["gpu"]["reference"]] == [side["error"] for side in one["written"]]


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ("after the end", "wrote outside", "0 bytes after the end of `total`: 0x00"),
        ("before the start", "wrote outside", "1 bytes before `total`: 0x00"),
        ("far after", "wrote outside", "after the end of `"),
        ("input", "wrote outside", "`x`, which is only read: byte "),
        ("element", "wrong", "is "),
        ("constant", "wrong", "the interpreter has "),
        ("not finite", "wrong", "not finite in 7 of "),
        ("unwritten", "wrong", "which is nan; the reference says "),
        ("illegal address", "failed", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("death", "failed", "the process that launches ended with status 9"),
        ("no module", "not launched", "it cannot be loaded: "),
        ("refused", "failed", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    ],
)
def test_each_fault_is_reported(
    fault: str, verdict: str, words: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fake(project, monkeypatch, fault)
    assert commands.run([*COMMAND, "-c", "E=bf16"]) == 1
    out = capsys.readouterr().out
    assert f"  on the GPU: {verdict.upper()}" in out and words in out
    assert out.splitlines()[-1].endswith(verdict)
    assert commands.run(["test", "-c", "E=bf16"]) == 0  # the interpreter alone sees nothing


def test_the_launches_after_a_fault_are_tried(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fake(project, monkeypatch, "once")
    assert commands.run([*COMMAND, "--json"]) == 1
    launches = json.loads(capsys.readouterr().out)["launches"]
    assert [one["gpu"]["verdict"] for one in launches] == ["failed", "right", "right", "right"]


def test_a_launch_that_hangs_is_ended(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEST_HANGING", str(project / "hanging"))
    on_fake(project, monkeypatch, "hang")
    monkeypatch.setattr(gpu_trials, "on_device", lambda pairs, command: device.on_device(pairs, command, impatient(project)))  # pyright: ignore
    assert commands.run([*COMMAND, "-c", "E=bf16", "--launches", "1"]) == 1
    assert "on the GPU: FAILED: the launch hangs" in capsys.readouterr().out


def impatient(project: Path):
    """Waits for a line only until the device hangs."""

    def hears(heard: threading.Event) -> bool:
        while not heard.wait(0.05):
            if (project / "hanging").exists():
                return False
        return True

    return hears


def test_a_kernel_wrong_on_the_interpreter_is_launched_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "kernels_src/reference.py").write_text(REFERENCE.replace("* factor", "* (factor + 1)"))
    assert commands.run([*COMMAND, "-c", "E=bf16"]) == 1
    out = capsys.readouterr().out
    assert "  WRONG: `" in out and "on the GPU: WRONG" in out and out.splitlines()[-1].endswith("wrong")


def test_without_a_device_there_is_one_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fake(project, monkeypatch, "no device")
    assert commands.run(COMMAND) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("error") == 1 + err.count("error[E0915]")
    assert "`--gpu` launches on this machine's GPU, which cannot be used: " in err and "CUDA_ERROR_NO_DEVICE" in err


def test_a_kernel_for_other_architectures_is_left_out(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "build.toml").write_text(BUILD + 'arch = ["sm_100"]\n')
    assert commands.run(COMMAND) == 2
    assert "`scaled` is not built for sm_90a, the architecture of this GPU" in capsys.readouterr().err


def test_a_process_that_ends_at_once_is_no_device() -> None:
    with pytest.raises(NoDevice, match="does not start"):
        device.on_device([(Path("a"), Path("b"))], (sys.executable, "-c", ""))


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = Case(
        {"T": 3, "eps": 1.0}, {"x": np.arange(3, dtype=np.uint16)}, {"out": np.ones((3, 1), np.uint8)}, {"out": (0.5, 0.0)},
        {"out": np.array([[np.inf], [1], [2]])}, (None, 1e-3), {"out": np.array([[0.5], [np.inf], [0]])},
    )  # fmt: skip
    write_case(tmp_path / "0-1.npz", case)
    again = read_case(tmp_path / "0-1.npz")
    assert again.values == case.values and isinstance(again.values["eps"], float) and isinstance(again.values["T"], int)
    assert (again.allowances, again.tolerance) == (case.allowances, case.tolerance)
    for left, right in (
        (again.before, case.before),
        (again.interpreted, case.interpreted),
        (again.references, case.references),
        (again.bounds, case.bounds),
    ):
        assert left.keys() == right.keys()
        assert all(left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in right)


def test_a_trial_as_json_has_everything() -> None:
    from tilec.project.trial.comparison import Written

    nan, one = float("nan"), Written("out", "f32", (3,), "nothing finite", float("inf"), (1,), float("-inf"), 2.0, 3, 0)
    trial = DeviceTrial("wrong", "why", (one, Written("n", "i32", (0,), "")), ())
    assert DeviceTrial.from_json(json.loads(json.dumps(trial.to_json(), allow_nan=False))) == trial
    text = json.dumps(DeviceTrial("wrong", "", (Written("out", "f32", (1,), "", nan),), ()).to_json(), allow_nan=False)
    assert np.isnan(DeviceTrial.from_json(json.loads(text)).reference[0].error or 0.0)


def test_what_a_kernel_prints_on_the_gpu_is_not_among_answers() -> None:
    """The driver writes to the file descriptor, below Python."""
    script = (
        "import os, sys\nfrom tilec.project.trial.device_child import keep_answers_apart\nkeep_answers_apart()\n"
        "os.write(1, b'bid (0): x')\nprint('an answer', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "an answer\n" and done.stderr == "bid (0): x"
