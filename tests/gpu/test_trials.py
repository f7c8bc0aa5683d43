"""`tilec test --gpu` on this device: a new project is right, another reference is not. Needs a GPU and the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilec.cli import commands
from tilec.project.trial.scaffold import scaffold

pytestmark = pytest.mark.gpu


def test_a_new_project_is_right_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scaffold(tmp_path / "softmax", "softmax")
    monkeypatch.chdir(tmp_path / "softmax")
    assert commands.run(["test", "--gpu", "--json"]) == 0
    launches = json.loads(capsys.readouterr().out)["launches"]
    assert launches and all(one["right"] and one["gpu"]["verdict"] == "right" for one in launches)
    assert all(side["error"] <= 1 for one in launches for side in one["gpu"]["interpreter"])


def test_another_reference_is_wrong_on_the_device_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scaffold(tmp_path / "softmax", "softmax")
    monkeypatch.chdir(tmp_path / "softmax")
    reference = Path("kernels_src/reference.py")
    reference.write_text(
        reference.read_text(encoding="utf-8") + "\nright = softmax\ndef softmax(x):\n    return 2 * right(x)\n"
    )
    assert commands.run(["test", "--gpu", "-c", "E=bf16,N=1000", "--json"]) == 1
    launches = json.loads(capsys.readouterr().out)["launches"]
    assert {one["gpu"]["verdict"] for one in launches} == {"wrong"}
    assert all(side["error"] <= 1 for one in launches for side in one["gpu"]["interpreter"])
