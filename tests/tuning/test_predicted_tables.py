"""`tilec tune --predict`: a table of predicted times, what reads it, and what it does not replace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuning import tuned_project
from tilec.cli import commands
from tilec.project.read.buildfile import read_build_file
from tilec.tuning.predicted import is_predicted
from tilec.tuning.table import read_table

TABLE = Path("kernels_src/tuning/double-sm_90a.json")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tuned_project.entered(tmp_path, monkeypatch)


def test_builds_read_the_table_and_say_that_it_was_predicted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["tune", "--predict", "h200"]) == 0
    assert "H200 SXM, predicted by the model of time and never measured" in capsys.readouterr().out
    table = read_table(root / TABLE)
    assert table is not None and is_predicted(table)
    assert (table.candidates, table.shapes, table.arch) == (3, 4, "sm_90a")
    assert not (root / TABLE).with_suffix(".jsonl").exists(), "predictions are no measurements"

    build = read_build_file(root / "build.toml")
    (served,) = [one for one in build.served if one.target.name == "sm_90a"]
    assert not build.notes
    assert "predicted by the model of time and never measured" in served.table["measured"]
    kept = TABLE.read_bytes()
    assert commands.run(["tune", "--predict", "h200"]) == 0
    assert TABLE.read_bytes() == kept


def test_measurements_are_not_replaced(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["tune", "--predict", "h200"]) == 0
    measured = json.loads((root / TABLE).read_text()) | {"device": "NVIDIA H200", "driver": "580"}
    (root / TABLE).write_text(json.dumps(measured))
    capsys.readouterr()
    assert commands.run(["tune", "--predict", "h200"]) == 2
    assert "holds measurements, which a prediction does not replace" in capsys.readouterr().err
    assert json.loads((root / TABLE).read_text()) == measured


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--predict", "a100"], "unknown GPU `a100`"), (["--predict", "b200", "--again"], "leave out the other options")],
)
def test_wrong_usage_is_status_2(root: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert commands.run(["tune", *options]) == 2
    assert message in capsys.readouterr().err
