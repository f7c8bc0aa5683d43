"""The command that renews a result stamps what the command of the result wrote, and nothing else; CUBINs are held against the
record."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from ci.evidence import Digests, Entry, Result, status
from ci.evidence.products import DIGITS
from tests.evidence.repository import entry, record, repository, write
from tests.files import ROOT

__all__ = ["repository"]

_spec = importlib.util.spec_from_file_location("renew", ROOT / "ci" / "renew.py")
assert _spec is not None and _spec.loader is not None
renew = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(renew)

JUDGE = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
folder.mkdir(exist_ok=True)
{}
sys.exit({})
"""
WRITES = 'folder.joinpath("judged.json").write_text(json.dumps([1, 2]))'
EDITS = 'pathlib.Path("tilec/judge.py").write_text("x = 2")'


def run(root: Path, monkeypatch: pytest.MonkeyPatch, script: str, *options: str, found: Entry | None = None) -> int:
    """The status of renewing `judged` by a script."""
    found = found or entry("source:tilec")
    write(root / "judge.py", script)
    monkeypatch.setattr(renew, "ROOT", root)
    monkeypatch.setattr(renew, "read_registry", lambda: {"judged": found})
    monkeypatch.setattr(renew, "Result", lambda name, device="": Result(name, device, root=root, entry=found))
    monkeypatch.setattr(sys, "argv", ["renew.py", "judged", *options, "--out", str(root / "out")])
    return renew.main()


def test_what_the_command_wrote_is_stamped(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(repository, monkeypatch, JUDGE.format(WRITES, 0)) == 0
    data = json.loads((repository / "out/judged.json").read_text())
    assert data["rows"] == [1, 2]
    assert status(entry("source:tilec"), data, Digests(repository)).state == "fresh"


def test_what_a_program_of_bench_leaves_without_a_stamp_stays_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository / "ci/bench/judges.py", JUDGE.format(WRITES, 0))
    found = Entry("judged", ("source:tilec",), "python ci/bench/judges.py judged")
    assert run(repository, monkeypatch, "", found=found) == 3
    assert json.loads((repository / "out/judged.json").read_text()) == [1, 2]


def test_a_word_in_capitals_is_the_first_argument(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = JUDGE.format('folder.joinpath("judged.json").write_text(json.dumps([sys.argv[1]]))', 0)
    found = Entry("judged", ("source:tilec",), "python judge.py FOLDER")
    assert run(repository, monkeypatch, script, "tokenizer", found=found) == 0
    assert json.loads((repository / "out/judged.json").read_text())["rows"] == ["tokenizer"]


def test_a_result_of_a_gpu_names_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renew, "gpu_name", lambda: "NVIDIA H200")
    for gpu, name in ((True, "NVIDIA H200"), (False, f"{os.cpu_count()} processors")):
        run(
            repository,
            monkeypatch,
            JUDGE.format(WRITES, 0),
            found=Entry("judged", ("source:tilec",), "python judge.py", gpu=gpu),
        )
        assert json.loads((repository / "out/judged.json").read_text())["device"] == name


def test_a_stamp_of_the_command_itself_stays(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that names the device of a recorded measurement."""
    stamp = {"rests_on": Digests(repository).all_of(("source:tilec",)), "device": "a GPU", "found": 1}
    assert (
        run(repository, monkeypatch, JUDGE.format(f'folder.joinpath("judged.json").write_text({json.dumps(stamp)!r})', 0)) == 0
    )
    assert json.loads((repository / "out/judged.json").read_text()) == stamp


def test_a_command_that_fails_leaves_its_status(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(repository, monkeypatch, JUDGE.format(WRITES, 1)) == 1
    data = json.loads((repository / "out/judged.json").read_text())
    assert status(entry("source:tilec"), data, Digests(repository)).state == "failed"


@pytest.mark.parametrize("script", [JUDGE.format("", 0), JUDGE.format(f"{WRITES}; {EDITS}", 0)])
def test_nothing_is_stamped_without_json_or_of_two_sources(
    script: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(repository, monkeypatch, script) == 3
    path = repository / "out/judged.json"
    assert not path.exists() or "rests_on" not in path.read_text()


def test_an_old_json_is_not_stamped_for_a_command_that_wrote_none(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository / "out/judged.json", "{}")
    assert run(repository, monkeypatch, JUDGE.format("", 0)) == 3
    assert (repository / "out/judged.json").read_text() == "{}"


def test_cubins_that_are_not_those_of_the_record_are_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = repository / "built" / "sm_90a"
    for name in ("add-N=1", "mul-N=1"):
        write(built / f"{name}.cubin", name)
    digests = {name: hashlib.sha256(name.encode()).hexdigest()[:DIGITS] for name in ("add-N=1", "mul-N=1")}
    record(repository, {"cubin:sm_90a": digests})
    assert run(repository, monkeypatch, JUDGE.format(WRITES, 0), "--cubins", str(built)) == 0
    write(built / "add-N=1.cubin", "another")
    assert run(repository, monkeypatch, JUDGE.format(WRITES, 0), "--cubins", str(built)) == 3
    (built / "add-N=1.cubin").unlink()
    assert run(repository, monkeypatch, JUDGE.format(WRITES, 0), "--cubins", str(built)) == 3
    assert capsys.readouterr().out.count("has other CUBINs than the record: add-N=1 (1 in all)") == 2
