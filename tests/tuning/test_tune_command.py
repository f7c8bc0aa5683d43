"""`tilec tune` from a build file to the table, with a process that only prints what one with a GPU would; and readers of the
table."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.tuning import tuned_project
from tilec.cli import commands, tune_command
from tilec.project.read.buildfile import read_build_file
from tilec.target.targets import TARGETS

CHILD = Path(__file__).with_name("fake_child.py")
TABLE = Path("kernels_src/tuning/double-sm_90a.json")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tuned_project.entered(tmp_path, monkeypatch)
    monkeypatch.setattr(tune_command, "CHILD", (sys.executable, str(CHILD), str(tmp_path)))
    modes(folder)
    return folder


def modes(root: Path, **given: Any) -> None:
    (root.parent / "modes.json").write_text(json.dumps(given))


def jobs(root: Path) -> list[dict[str, Any]]:
    """The jobs requested since the last look."""
    path = root.parent / "jobs"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def tune(*options: str) -> int:
    return commands.run(["tune", "--prebuilt", *options])


def test_everything_is_measured_once_and_the_build_reads_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    out = capsys.readouterr().out
    assert jobs(root) == [
        {"check": [64, 128, 256], "time": [[n, [64, 128, 256]] for n in (1000, 20000, 400000, 17000)]}
    ]  # fmt: skip
    assert "N=1000    BLOCK=64 warps=2" in out
    assert "double for sm_90a: 3 candidates, 4 shapes measured now\n" in out
    table = TABLE.read_bytes()
    assert tune() == 0
    assert jobs(root) == []
    assert TABLE.read_bytes() == table
    assert "(as it was)" in capsys.readouterr().out

    build = read_build_file(root / "build.toml")
    (served,) = [one for one in build.served if one.target.name == "sm_90a"]
    assert not build.notes
    kept = [one.constants["BLOCK"] for one in served.candidates]
    assert sorted(kept) == [64, 256]  # the middle one is never fastest
    assert served.table["measured"].startswith("3 candidates at 4 shapes on Fake H200, driver 1.2.3")
    assert {entry.constants["BLOCK"] for entry in build.entries if entry.among(None)} == {(64,), (256,)}
    assert commands.run(["check", "--schedule"]) == 0
    assert "double for sm_90a: 2 choices; measured: 3 candidates at 4 shapes" in capsys.readouterr().out


def test_the_declared_cost_decides_where_nothing_was_measured(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = read_build_file(root / "build.toml")
    assert [one.table["measured"] for one in build.served] == ["nothing: by the cost that build.toml declares"] * len(TARGETS)
    assert build.served[0].table["choices"][0] == {"BLOCK": 64, "at_once": 132}
    assert [one.table["choices"][0]["at_once"] for one in build.served[:3]] == [132, 148, 170]
    assert all(one.table["choices"][0]["at_once"] > 0 for one in build.served)
    assert len(build.entries) == 3
    assert commands.run(["check", "--schedule", "--arch", "sm_90"]) == 0
    assert "double for sm_90a: 3 choices; measured: nothing" in capsys.readouterr().out


def test_a_run_continues_where_the_last_one_ended(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--budget", "0") == 1
    assert jobs(root) == []
    reported = "nothing was measured yet, so there is no table; without such a GPU, `tilec tune --kernel double --predict h200`"
    assert reported in capsys.readouterr().out
    modes(root, **{"shape 400000": "dies"})
    assert tune() == 0
    assert "left out: N=400000: its process ended with status 9" in capsys.readouterr().err
    assert [[shape for shape, _ in job["time"]] for job in jobs(root)] == [[1000, 20000, 400000, 17000], [17000]]
    modes(root)
    assert tune() == 0
    assert jobs(root) == [{"check": [], "time": [[400000, [64, 128, 256]]]}]
    assert tune("--again") == 0
    assert [len(job["time"]) for job in jobs(root)] == [4]


def test_other_machine_code_is_measured_and_the_rest_is_not(root: Path) -> None:
    assert tune() == 0
    jobs(root)
    before = tuned_project.artifacts(root)
    tuned_project.make(root, salt=1)
    for name, path in list(before.items())[:2]:  # two of the three are unchanged
        manifest = json.loads(path.read_text())
        path.with_suffix(".cubin").write_bytes(tuned_project.samples.cubin("double", 10 * manifest["constants"]["BLOCK"]))
        path.write_text(json.dumps(manifest | {"digests": manifest["digests"] | {"cubin": name}}))
    assert tune() == 0
    assert jobs(root) == [{"check": [256], "time": [[n, [256]] for n in (1000, 20000, 400000, 17000)]}]


def test_wrong_candidates_are_named_and_excluded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes(root, **{"check 64": "it is off by one", "check 128": "dies"})
    assert tune() == 1
    captured = capsys.readouterr()
    assert "left out: BLOCK=64 warps=2: it is off by one" in captured.err
    assert "wrong: BLOCK=128 warps=2: its process ended with status 9" in captured.out
    assert [job["check"] for job in jobs(root)] == [[64, 128, 256], [256]]
    assert {one["constants"]["BLOCK"] for one in json.loads(TABLE.read_text())["kept"]} == {256}
    assert tune("--json") == 1
    (data,) = json.loads(capsys.readouterr().out)["tuned"]
    assert data["wrong"] == {"BLOCK=64 warps=2": "it is off by one", "BLOCK=128 warps=2": "its process ended with status 9"}
    assert jobs(root) == []


def test_a_hanging_candidate_is_ended_and_named(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = root.parent / "hung"

    def hears(stopped: threading.Event) -> bool:
        while not stopped.wait(0.01):
            if hung.exists():
                hung.unlink()
                return False
        return True

    monkeypatch.setattr(tune_command, "hears", hears)
    modes(root, **{"check 128": "hangs"})
    assert tune() == 1
    assert "wrong: BLOCK=128 warps=2: it hung" in capsys.readouterr().out
    assert [job["check"] for job in jobs(root)] == [[64, 128, 256], [256]]


def test_without_a_gpu_what_is_recorded_is_enough(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes(root, greeting={"failed": "no NVIDIA driver on this machine"})
    assert tune() == 2
    err = capsys.readouterr().err
    assert "3 candidates are not checked and 4 shapes not measured yet, and no GPU can do it here: no NVIDIA driver" in err
    modes(root)
    assert tune() == 0
    table = TABLE.read_bytes()
    TABLE.unlink()
    modes(root, greeting={"failed": "no NVIDIA driver on this machine"})
    assert tune() == 0
    assert TABLE.read_bytes() == table


def test_stale_measurements_are_reported_and_ignored(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    before = (root / "build.toml").read_text()
    source = root / "kernels_src/double.py"

    def stale_notes() -> list[str]:
        build = read_build_file(root / "build.toml")
        assert bool(build.notes) == all(not one.cubins for one in build.served)
        return [note.message for note in build.notes]

    assert stale_notes() == []
    source.write_text(tuned_project.KERNEL + "\n")
    front = "the measurements of `double` for sm_90a are not used: "
    assert stale_notes() == [front + "`kernels_src/double.py` is not what was measured"]
    capsys.readouterr()
    commands.run(["check"])
    assert "note[N0104]: " + front in capsys.readouterr().err
    source.write_text(tuned_project.KERNEL)
    (root / "build.toml").write_text(before.replace("at_once * BLOCK", "at_once * BLOCK * 2"))
    assert stale_notes() == [front + "`cost` changed"]
    (root / "build.toml").write_text(
        before.replace("{ BLOCK = 256, schedule = { warps = 2 } }", "{ BLOCK = 256, schedule = { warps = 4 } }")
    )
    assert stale_notes() == [front + "the choice BLOCK = 256, warps = 2 is no longer declared"]
    (root / "build.toml").write_text(before)
    TABLE.write_text("{}")
    assert stale_notes() == [front + "`double-sm_90a.json` is not a table of format 1"]


@pytest.mark.parametrize(
    ("old", "new", "status", "text"),
    [
        ('kernel = "double"', 'kernel = "twice"', 2, "no `[[kernel]]` of `twice` takes BLOCK = 64"),
        ("shapes = ", "# ", 2, "has no `shapes` to measure at"),
        ("[[tuning]]", "[[model]]", 2, "error[E0802]"),
    ],
)
def test_what_cannot_be_tuned_is_reported(
    root: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, status: int, text: str
) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace(old, new))
    assert tune() == status
    assert text in capsys.readouterr().err


def test_options_that_contradict_each_other(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--build-only") == 2
    assert tune("--kernel", "another") == 2
    assert "no `[[tuning]]` of kernel `another`" in capsys.readouterr().err
    assert tune("--arch", "sm_100") == 2
    assert "this machine has Fake H200 (sm_90a)" in capsys.readouterr().err
