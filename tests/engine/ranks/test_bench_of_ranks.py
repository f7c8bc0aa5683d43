"""`python -m engine.bench --gpus 2` on two processes whose drivers launch nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_gpus import RUN, WORKER

from engine.ranks import load
from engine.tools.bench.command import run
from engine.tools.bench.result import Report


def test_a_measurement_of_two_gpus(
    bundle_folder: Path, shipped_ranks_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = [sys.executable, "-c", f"{WORKER}\n{RUN}"]
    original, target = load.load_gpus, tmp_path / "out.json"
    monkeypatch.setattr(
        load, "load_gpus", lambda *given, **named: original(*given, **named, command=lambda _, fd: [*command, str(fd)])
    )
    arguments = ["--model", str(bundle_folder), "--bundle", str(shipped_ranks_bundle), "--dummy-weights", "--gpus", "2"]
    policy = ["--pp", "3,5", "--tg", "2,4", "--reps", "2", "--warmup-reps", "1", "--json", str(target)]
    assert run([*arguments, *policy]) == 0
    data, printed = json.loads(target.read_text()), capsys.readouterr()
    assert (data["model"]["gpus"], data["machine"]["gpu"]) == (2, "fake device") and printed.err == ""
    assert [(cell["pp"], cell["tg"]) for cell in data["cells"]] == [(3, 2), (3, 4), (5, 2)]
    assert all(cell["repeatable"] and cell["decode_seconds"]["n"] == 2 for cell in data["cells"])
    assert data["measured_bandwidth"] is None and Report.from_json(data).bandwidth is None
    assert run([*arguments, *policy, "--batch", "2"]) == 0
    with_batch = json.loads(target.read_text())["cells"][0]
    assert with_batch["batch"] == 2 and with_batch["bytes_per_decode_step"] > data["cells"][0]["bytes_per_decode_step"]
