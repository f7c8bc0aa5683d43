"""`tilec.op` in PyTorch on the device, and the launcher in C: all checks of `torch_ops` and `c_launcher` (`ci/bench/kernels`).

Needs a GPU, torch, and the output of both with `--build FOLDER`; `TILEC_OPS` names the folder. The benchmark prints the host
time of a call; here it is compared with that of a PyTorch operator in the same run.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from ci.bench.kernels import c_launcher, torch_ops

pytestmark = pytest.mark.gpu


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    ops_folder = os.environ.get("TILEC_OPS")
    assert ops_folder, "TILEC_OPS names no folder"
    monkeypatch.setenv("TILEC_PREBUILT", str(Path(ops_folder) / "artifacts" / "build"))
    return Path(ops_folder)


def test_ops_are_right_and_cost_little(folder: Path) -> None:
    result = torch_ops.measured()
    assert not result["failed"]
    assert set(result["checks"]) == set(importlib.import_module("ci.bench.kernels.torch_ops_checks").CHECKS)
    times = result["microseconds"]
    for kernel in ("add", "rms_norm"):
        assert times[f"tilec.op {kernel}"] < 1.7 * times["torch.add"], times


def test_a_program_in_c_launches_a_bundle(folder: Path, tmp_path: Path) -> None:
    assert c_launcher.right(c_launcher.measured(folder / "c" / "c_launcher", tmp_path / "data"))
