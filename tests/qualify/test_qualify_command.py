"""`tilec qualify` as its users see it: text, report, exit status. No GPU: the process that launches has a fake device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.qualify import bundles
from tilec.artifact.bundle_format import canonical
from tilec.cli import commands
from tilec.qualify import session
from tilec.tuning.records import read_records


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = bundles.written(tmp_path_factory.mktemp("command"), "add", "advance")
    bundles.prepared(found, timed=True, edges=2)
    return found


@pytest.fixture
def path(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_TRUST", "none")
    on_fake(made, monkeypatch)
    return made


def on_fake(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "none", kernel: str = "") -> None:
    command = (sys.executable, "-P", "-m", "tests.qualify.fake_device", str(path), "interpreter", fault, kernel)
    monkeypatch.setattr(session, "CHILD", command)


def test_a_right_bundle_is_status_0(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert commands.run(["qualify", str(path), "--json", str(report), "--repeats", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("bundle   tiny-1b for sm_90a, sha256 ")
    assert lines[1].startswith("device   fake device (sm_90a), driver ")
    assert lines[2] == "checker  the tile interpreter, from the tile IR of the bundle"
    assert lines[3].startswith("rates    a copy: ")
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("ad")}
    assert rows["add"][:4] == ["add", "right", "2", "5.00"]
    assert rows["advance"] == ["advance", "right", "2"]
    assert lines[-1].endswith(": 2 right")
    text = report.read_bytes()
    data = json.loads(text)
    assert text == canonical(data) + b"\n"
    assert data["summary"] == {
        "artifacts": 2, "launches": 4, "status": 0,
        "verdicts": {"right": 2, "wrong": 0, "wrote outside": 0, "not repeatable": 0, "failed": 0, "not tried": 0},
    }  # fmt: skip
    assert data["device"]["capability"] == "9.0"
    assert data["bundle"]["sha256"] == bundles.bundle_of(path).digest
    first, second = data["artifacts"]
    assert first["times"][0]["us"] == [5.0, 5.0, 5.0]
    assert first["times"][0]["share"] == pytest.approx(first["times"][0]["floor_us"] / 5, abs=1e-4)
    assert second["times"] == []
    assert second["untimed"] == "each launch changes `positions`, whose values its contract bounds"


def test_a_wrong_bundle_is_status_1_with_the_reason(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fake(path, monkeypatch, "element", "add")
    report = tmp_path / "report.json"
    assert commands.run(["qualify", str(path), "--json", str(report), "--no-times"]) == 1
    out, _ = capsys.readouterr()
    assert "add, smallest: wrong: `out[0]` is " in out
    assert out.splitlines()[-1].endswith("1 right, 1 wrong")
    data = json.loads(report.read_bytes())
    assert data["artifacts"][0]["launches"][0]["verdict"] == "wrong"
    assert data["rates"] == {}


def test_what_time_leaves_is_status_3(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["qualify", str(path), "--time-limit", "0"]) == 3
    assert "not tried: the time limit was reached" in capsys.readouterr().out


def test_a_kernel_that_the_side_file_lacks_is_status_3(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = tmp_path / "some.qualify"
    assert commands.run(["qualify", str(path), "--prepare", "-k", "add", "-o", str(side)]) == 0
    assert "1 artifacts" in capsys.readouterr().out
    assert commands.run(["qualify", str(path), "--with", str(side), "--no-times"]) == 3
    assert "advance, all: not tried: the side file has no launches of it" in capsys.readouterr().out
    assert commands.run(["qualify", str(path), "--with", str(side), "--no-times", "-k", "add"]) == 0


def test_a_side_file_of_other_tile_ir_is_not_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = bundles.written(tmp_path, "add")
    monkeypatch.setattr(session, "CHILD", (*session.CHILD[:4], str(other), *session.CHILD[5:]))
    side = path.with_suffix(".qualify")
    assert commands.run(["qualify", str(other), "--with", str(side), "--no-times"]) == 0
    assert "note     the side file was prepared from another bundle" in capsys.readouterr().out
    text = side.read_bytes()
    from tests.qualify.test_side_file import at, header, with_header

    wrong = tmp_path / "wrong.qualify"
    wrong.write_bytes(with_header(text, at(header(text), "artifacts.0.tir", "00" * 32)))
    assert commands.run(["qualify", str(other), "--with", str(wrong), "--no-times"]) == 3
    assert "the side file was prepared for other tile IR" in capsys.readouterr().out


def test_a_side_file_cannot_leave_the_contract(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.qualify.test_side_file import at, header, with_header

    text = path.with_suffix(".qualify").read_bytes()
    for values, reason in (
        ({"N": 0}, "its sizes are none"),
        ({"N": 1 << 47}, "MiB"),
        ({}, "its sizes are none"),
        ({"N": 5}, "its inputs are not those"),
    ):
        wrong = tmp_path / "wrong.qualify"
        wrong.write_bytes(with_header(text, at(header(text), "artifacts.0.launches.0.values", values)))
        assert commands.run(["qualify", str(path), "--with", str(wrong), "--no-times", "-k", "add"]) == 3
        assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--prepare", "--json", "x"], "`--prepare` launches nothing"),
        (["-o", "x"], "`--output` and `--references` are for `--prepare`"),
        (["--with", "nowhere.qualify"], "there is no `nowhere.qualify`"),
        (["--repeats", "0"], "'--repeats'"),
        (["--time-limit", "nan"], "is not a number"),
        (["-k", "nonsense"], "has no kernel `nonsense`"),
    ],
)
def test_wrong_usage_is_one_message(
    path: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert commands.run(["qualify", str(path), *arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err


def test_a_damaged_side_file_is_status_2(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.qualify"
    wrong.write_bytes(path.with_suffix(".qualify").read_bytes()[:-1])
    assert commands.run(["qualify", str(path), "--with", str(wrong)]) == 2
    assert capsys.readouterr().err == f"error: `{wrong}` is damaged: its digest does not match its bytes\n"
    assert commands.run(["qualify", str(path), "--with", str(tmp_path)]) == 2


def test_no_gpu_is_status_2(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = 'print(\'{"failed": "no NVIDIA driver on this machine"}\')'
    monkeypatch.setattr(session, "CHILD", (sys.executable, "-c", answer))
    assert commands.run(["qualify", str(path)]) == 2
    assert capsys.readouterr().err == "error: no NVIDIA driver on this machine\n"


def test_the_process_that_launches_needs_no_compiler() -> None:
    import subprocess

    lacking = ("ml_dtypes", "z3", "torch", "torch_mlir", "llvmlite", "islpy", "networkx")
    code = f"import sys; sys.modules.update(dict.fromkeys({lacking}))\n"
    code += "import tilec.qualify.child, tilec.qualify.session, tilec.qualify.report, tilec.qualify.records, tilec.cli.commands"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_preparing_twice_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.qualify", tmp_path / "2.qualify"
    assert commands.run(["qualify", str(path), "--prepare", "-o", str(first), "-j", "1"]) == 0
    assert commands.run(["qualify", str(path), "--prepare", "-o", str(second), "-j", "2"]) == 0
    assert first.read_bytes() == second.read_bytes()


def test_without_a_step_no_choices_are_timed(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["qualify", str(path), "--tune", str(tmp_path / "records"), "-k", "add"]) == 0
    err = capsys.readouterr().err
    assert f"note: `{path}` has no step, so it has no launches of a model to time choices at\n" in err
    assert not list(tmp_path.rglob("*.jsonl"))


def test_tuning_writes_records_that_tune_reads(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilec.qualify import tune

    def groups(*_: object) -> list[tune.Group]:
        return [{"kernel": "add", "launch": ["add", 0], "artifacts": ["add"]}]

    monkeypatch.setattr(tune, "groups", groups)
    folder = tmp_path / "records"
    assert commands.run(["qualify", str(path), "--tune", str(folder), "-k", "add"]) == 0
    assert "add-sm_90a.jsonl  1 launches" in capsys.readouterr().err
    records = read_records(folder / "add-sm_90a.jsonl", "fake device")
    cubin = bundles.bundle_of(path).kernel("add").manifest.digests["cubin"]
    assert records.wrong == {cubin: ""}
    assert list(records.times.values()) == [{cubin: (5.0, 5.0, 5.0)}]
    assert records.described == {cubin}
