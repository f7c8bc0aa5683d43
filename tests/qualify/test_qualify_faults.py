"""Whatever a launch does wrong is found, and named; what is right is right. No GPU: a fake device launches."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from tests.qualify import bundles, fake_device
from tilec.qualify.session import Session
from tilec.runtime import DriverError
from tilec.tuning.measure import NoDevice

KERNELS = ("add", "advance", "rms_norm")
WRONG = {
    "constant": ("wrong", r"`out\[0, 0\]` is \S+, not \S+ \(tolerance"),
    "element": ("wrong", "1 elements are wrong"),
    "last block": ("wrong", "1 elements are wrong"),
    "unwritten": ("wrong", "is nan, not"),
    "after the end": ("wrote outside", "0 bytes after the end of `out`"),
    "before the start": ("wrote outside", "1 bytes before `out`"),
    "far after": ("wrote outside", "5000 bytes after the end of `out`"),
    "input": ("wrote outside", "which is only read"),
    "varies": ("not repeatable", "element 0 is"),
    "varies late": ("not repeatable", "repetition 48"),
    "no module": ("failed", "CUDA_ERROR_INVALID_IMAGE"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = bundles.written(tmp_path_factory.mktemp("faults"), *KERNELS)
    bundles.prepared(found)
    return found


def test_right_kernels_are_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = bundles.launched(path, monkeypatch)
    assert bundles.verdicts(lines) == dict.fromkeys(KERNELS, "right")
    assert all(len(line["launches"]) >= 2 for line in lines if "done" in line)


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_is_found_and_named(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    lines = bundles.launched(path, monkeypatch, fault=fault, kernel="rms_norm", repeats=50)
    verdict, reason = WRONG[fault]
    assert bundles.verdicts(lines) == {"add": "right", "advance": "right", "rms_norm": verdict}
    reasons = [one["reason"] for line in lines if line.get("done") == "rms_norm" for one in line["launches"]]
    assert any(re.search(reason, text) for text in reasons), reasons


@pytest.mark.parametrize("kernel", ["add", "advance"])
def test_a_wrong_integer_or_sum_is_found(path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    found = bundles.verdicts(bundles.launched(path, monkeypatch, fault="element", kernel=kernel))
    assert found == dict.fromkeys(KERNELS, "right") | {kernel: "wrong"}


@pytest.mark.parametrize("fault", ["illegal address", "refused"])
def test_an_error_of_the_driver_loses_the_device(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with pytest.raises(DriverError):
        bundles.launched(path, monkeypatch, fault=fault, kernel="advance")


def session(path: Path, fault: str, kernel: str) -> Session:
    bundle, side = bundles.bundle_of(path), path.with_suffix(".qualify")
    from tilec.qualify.side_file import read

    command = (sys.executable, "-P", "-m", "tests.qualify.fake_device", str(path), "interpreter", fault, kernel)
    names = [one.name for one in bundle.kernels]
    return Session(bundle, read(side), str(side), names, 3, 1e6, False, command=command, hears=lambda heard: heard.wait())


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("illegal address", "CUDA_ERROR_ILLEGAL_ADDRESS"), ("death", "status 9"), ("refused", "LAUNCH_OUT_OF_RESOURCES")],
)
def test_a_lost_process_loses_only_its_artifact(path: Path, fault: str, reason: str) -> None:
    found = session(path, fault, "advance")
    found.run()
    assert {name: one["verdict"] for name, one in found.records.items()} == dict.fromkeys(KERNELS, "right") | {
        "advance": "failed"
    }
    assert reason in found.records["advance"]["launches"][0]["reason"]
    assert found.device["device"] == "fake device"


def test_a_hang_is_bounded_and_loses_only_its_artifact(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    hanging = tmp_path / "hanging"
    monkeypatch.setenv(fake_device.HANGING, str(hanging))
    found = session(path, "hang", "advance")

    def hears(heard: threading.Event) -> bool:
        while not heard.wait(0.05):
            if hanging.exists():
                hanging.unlink()
                return False
        return True

    found.hears = hears
    found.run()
    assert found.records["advance"]["verdict"] == "failed"
    assert found.records["advance"]["launches"] == [{"launch": "smallest", "verdict": "failed", "reason": "it hung"}]
    assert {found.records[name]["verdict"] for name in ("add", "rms_norm")} == {"right"}


def test_time_that_is_up_leaves_the_rest_untried(path: Path) -> None:
    found = session(path, "none", "")
    found.time_limit = 0
    found.run()
    assert {one["verdict"] for one in found.records.values()} == {"not tried"}
    assert "time limit" in found.records["add"]["launches"][0]["reason"]


def test_a_machine_of_another_architecture_is_refused(path: Path) -> None:
    found = session(path, "none", "")
    found.bundle.arch = "sm_100a"
    with pytest.raises(NoDevice, match="the bundle is for `sm_100a`"):
        found.run()


def test_a_command_that_does_not_start_is_no_device(path: Path) -> None:
    found = session(path, "none", "")
    found.command = (sys.executable, "-c", "")
    with pytest.raises(NoDevice, match="does not start"):
        found.run()


PTX_FAULTS = {
    "the mean": {"0f3A800000": "0f3A900000"},
    "a load's row": {"%rd9, %r1, 2048": "%rd9, %r1, 1024"},
    "a lane's place": {"%rd11, %r15, 16": "%rd11, %r15, 8"},
    "a place outside": {"%rd11, %r15, 16": "%rd11, %r15, 48"},
    "a partner of a shuffle": {"%r49, 16, 31": "%r49, 8, 31"},
    "a shift": {"%r16, %r15, 3": "%r16, %r15, 2"},
    "an offset of shared memory": {"[%rd16+512]": "[%rd16+256]"},
    "an operand": {"fma.rn.f32 \t%r36, %r20, %r20": "fma.rn.f32 \t%r36, %r20, %r19"},
    "an operation": {"rsqrt.approx.f32": "sqrt.approx.f32"},
    "half of a pair": {"cvt.f32.bf16 \t%r18, %rs1": "cvt.f32.bf16 \t%r18, %rs2"},
    "a weight": {"mul.f32 \t%r67, %r59, %r26": "mul.f32 \t%r67, %r59, %r27"},
}
"""One wrong constant or operand each in the PTX of `rms_norm`."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = bundles.with_ptx(tmp_path_factory.mktemp("ptx"), "rms_norm")
    bundles.prepared(found, edges=2)
    return found


def test_machine_code_in_the_emulator_agrees_with_the_interpreter(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bundles.launched(compiled, monkeypatch, oracle="emulator", repeats=2)
    assert bundles.verdicts(found) == {"rms_norm": "right"}


@pytest.mark.parametrize("fault", PTX_FAULTS)
def test_a_wrong_constant_in_machine_code_is_found(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:  # fmt: skip
    wrong = bundles.with_ptx(tmp_path, "rms_norm", PTX_FAULTS[fault])
    wrong.with_suffix(".qualify").write_bytes(compiled.with_suffix(".qualify").read_bytes())
    try:
        found = bundles.verdicts(bundles.launched(wrong, monkeypatch, oracle="emulator", repeats=1))["rms_norm"]
    except DriverError as error:
        found = error.name
    assert found in ("wrong", "wrote outside", "CUDA_ERROR_ILLEGAL_ADDRESS")
