"""`tilec tune` on the device: built candidates of `matmul` are right and timed, and one is chosen. Needs a GPU and the
compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.files import copy_kernels
from tilec.cli import commands
from tilec.runtime import Device
from tilec.target.targets import Target

pytestmark = pytest.mark.gpu
BUILD = """
[build]
arch = ["ARCH"]

[[kernel]]
name = "matmul"
constants = { E = "bf16", BK = 64, GROUP = 8 }

[[tuning]]
kernel = "matmul"
cost = { turn = "cdiv(cdiv(out[0], BM) * cdiv(out[1], BN), at_once) * at_once * a[1] * (BM * BN + 64 * (BM + BN))" }
choices = [{ BM = 64, BN = 64 }, { BM = 64, BN = 128 }, { BM = 128, BN = 128, schedule = { warps = 8 } }]
constants = { E = "bf16" }
shapes = [{ M = [64, 512, 2048], N = 2048, K = 1024 }]
"""


def test_choices_are_measured_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target.parse(Device().architecture)
    copy_kernels(tmp_path / "kernels_src", "matmul", "reference")
    (tmp_path / "build.toml").write_text(BUILD.replace("ARCH", target.name))
    monkeypatch.chdir(tmp_path)
    assert commands.run(["tune", "--json"]) == 0
    (first,) = json.loads(capsys.readouterr().out)["tuned"]
    assert (first["candidates"], first["timed"], first["left"], first["wrong"]) == (3, 3, 0, {})
    assert all(0 < choice["fastest_us"] <= choice["us"] < 10_000 for choice in first["chosen"])
    assert commands.run(["tune", "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["tuned"]
    assert again["timed"] == 0
    assert not again["written"]
