"""`tilec tune --predict`: a table of predicted times, what reads it, and what it does not replace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuning import tuned_project
from tilec.cli import commands
from tilec.project.read.buildfile import read_build_file
from tilec.tuning.table import read_table

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path("kernels_src/tuning/double-sm_90a.json")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tuned_project.entered(tmp_path, monkeypatch)


def test_builds_read_the_table_and_say_that_it_was_predicted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["tune", "--predict", "h200"]) == 0
    assert "H200 SXM, predicted by the model of time and never measured" in capsys.readouterr().out
    table = read_table(root / TABLE)
    assert table is not None and table.predicted
    assert (table.candidates, table.shapes, table.arch) == (3, 4, "sm_90a")
    assert not (root / TABLE).with_suffix(".jsonl").exists(), "predictions are no measurements"

    build = read_build_file(root / "build.toml")
    (served,) = [one for one in build.served if one.target.name == "sm_90a"]
    assert not build.notes
    assert served.predicted and "predicted by the model of time and never measured" in served.table["measured"]
    assert commands.run(["check", "--schedule"]) == 0
    assert "double for sm_90a: 1 choices; predicted: 3 candidates at 4 shapes on H200 SXM" in capsys.readouterr().out
    kept = TABLE.read_bytes()
    assert commands.run(["tune", "--predict", "h200"]) == 0
    assert TABLE.read_bytes() == kept


def test_a_build_notes_which_choices_are_predicted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["tune", "--predict", "h200"]) == 0
    capsys.readouterr()
    note = "note[N0104]: the choices of `double` for sm_90a are predicted, not measured"
    assert commands.run(["build"]) == 0
    assert note in capsys.readouterr().err
    assert commands.run(["build", "--deny", "notes"]) == 1
    assert note in capsys.readouterr().err
    assert commands.run(["build", "--arch", "sm_100"]) == 0
    assert "N0104" not in capsys.readouterr().err, "the table of another architecture was not used"

    table = json.loads((root / TABLE).read_text())
    table["kept"][0]["cubins"] = dict.fromkeys(table["kept"][0]["cubins"], "0" * 64)
    (root / TABLE).write_text(json.dumps(table))
    assert commands.run(["build", "--deny", "notes"]) == 1
    err = capsys.readouterr().err
    assert "for sm_90a has other machine code than the predicted one" in err
    assert "; without such a GPU, `tilec tune --kernel double --predict h200`" in err


def test_accepted_predictions_are_reported_and_fail_no_build(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root / "build.toml"
    unaccepted = file.read_text()
    file.write_text(unaccepted + 'predicted = ["sm_90", "sm_100"]\n')
    assert commands.run(["tune", "--predict", "h200"]) == 0
    capsys.readouterr()
    note = "note[N0104]: the choices of `double` for sm_90a are predicted, not measured"
    monkeypatch.setenv("TILEC_CACHE_DIR", str(root / "another store"))
    assert commands.run(["build"]) == 0
    assert capsys.readouterr().err.count(note) == 1
    assert commands.run(["build"]) == 0
    assert "N0104" not in capsys.readouterr().err, "it is reported for what was built"
    assert commands.run(["build", "--deny", "notes"]) == 0
    assert note in capsys.readouterr().err
    assert commands.run(["check", "--schedule"]) == 0
    assert "predicted: 3 candidates at 4 shapes on H200 SXM" in capsys.readouterr().out

    table = json.loads((root / TABLE).read_text())
    table["kept"][0]["cubins"] = dict.fromkeys(table["kept"][0]["cubins"], "0" * 64)
    (root / TABLE).write_text(json.dumps(table))
    assert commands.run(["build", "--deny", "notes"]) == 0
    assert "other machine code than the predicted one" in capsys.readouterr().err
    (root / TABLE).write_text(json.dumps(table | {"driver": "580"}))
    assert commands.run(["build", "--deny", "notes"]) == 1, "measurements are not accepted as predictions"
    (root / TABLE).write_text(json.dumps(table | {"cost": "1"}))
    assert commands.run(["build", "--deny", "notes"]) == 1, "stale predictions are not used"
    assert "the predictions of `double` for sm_90a are not used: `cost` changed" in capsys.readouterr().err
    (root / TABLE).write_text(json.dumps(table))
    file.write_text(unaccepted + 'predicted = ["sm_100"]\n')
    assert commands.run(["build", "--deny", "notes"]) == 1, "those of another architecture are"


def test_the_shipped_predictions_are_accepted_and_valid() -> None:
    build = read_build_file(ROOT / "build.toml")
    predicted = [one for one in build.served if one.predicted]
    assert {one.target.name for one in predicted} == {"sm_100a", "sm_120a"} and all(one.accepted for one in predicted)
    assert {one.tuned.kernel for one in predicted} == {"matmul", "matmul_silu_mul"} and len(predicted) == 4
    (gate_up,) = [one for one in predicted if (one.target.name, one.tuned.kernel) == ("sm_100a", "matmul_silu_mul")]
    assert 80 not in {one.constants["BN"] for one in gate_up.candidates}, "tiles of 80 columns do not use tensor memory"


@pytest.mark.parametrize("malformed", [False, True])
def test_a_stale_prediction_is_reported_as_one(root: Path, malformed: bool) -> None:
    assert commands.run(["tune", "--predict", "h200"]) == 0
    if malformed:
        (root / TABLE).write_text("{}")
    (root / "kernels_src/double.py").write_text(tuned_project.KERNEL + "\n")
    (note,) = read_build_file(root / "build.toml").notes
    assert note.code == "N0104" and "`tilec tune --kernel double --predict h200`" in (note.hint or "")
    kind, reason = ("measurements", "`double-sm_90a.json`") if malformed else ("predictions", "`kernels_src/double.py`")
    assert note.message.startswith(f"the {kind} of `double` for sm_90a are not used: {reason} is not ")


@pytest.mark.parametrize(("card", "arch"), [("b200", "sm_100a"), ("rtx5090", "sm_120a")])
def test_each_card_has_a_table_of_its_architecture(root: Path, card: str, arch: str) -> None:
    assert commands.run(["tune", "--predict", card]) == 0
    build = read_build_file(root / "build.toml")
    assert [one.target.name for one in build.served if one.predicted] == [arch] and not build.notes


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
