"""The ratchet: a record worse than the golden files fails with a reason, any other passes; and the project meets its own."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.bundle import samples
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError
from tilec.ship.bundle.ratchet import Record, changes, read, verdict, write
from tilec.untrusted.output import Output

ROOT = Path(__file__).resolve().parents[2]


def record(change: Any = None, name: str = "scale-N=1") -> Record:
    """A record of one artifact, its manifest changed."""
    data = copy.deepcopy(samples.manifest("scale", b"", {}))
    if change is not None:
        change(data)
    result = Record()
    result.add(name, manifest_from_json(data))
    return result


def registers(count: int) -> Any:
    return lambda data: data["resources"].update(registers=count)


WORSE = {
    "weaker rung": (lambda data: data["obligations"][0].update(rung="launch"), "bounds of load from `x`: set -> launch"),
    "trust": (lambda data: data["obligations"][1].update(rung="unsafe"), "race of `out`: static -> unsafe"),
    "unknown rung": (lambda data: data["obligations"][1].update(rung="hope"), "race of `out`: static -> hope"),
    "one more, weaker": (
        lambda data: data["obligations"].append({**data["obligations"][0], "rung": "value"}),
        "bounds of load from `x`: set -> set + value",
    ),
    "new at launch": (
        lambda data: data["obligations"].append({**data["obligations"][0], "subject": "store", "rung": "launch"}),
        "bounds of store: now proven by launch",
    ),
    "launch check": (
        lambda data: data["launch_checks"].append({"condition": ["<=", "T", 9], "text": "T is at most 9"}),
        "new condition of launch: T is at most 9",
    ),
    "unsafe block": (
        lambda data: data["unsafe"].append("k.py:1:1: because"),
        "new condition of launch: trust: k.py:1:1: because",
    ),
    "spills": (lambda data: data["resources"].update(spill_bytes=8), "spill bytes 0 -> 8"),
    "stack": (lambda data: data["resources"].update(stack_bytes=16), "stack bytes 0 -> 16"),
    "registers": (registers(41), "registers 40 -> 41"),
}


@pytest.mark.parametrize("name", WORSE)
def test_worse_fails_with_a_readable_difference(name: str) -> None:
    change, note = WORSE[name]
    (only,) = verdict(record(), record(change))
    assert only.code == "E0708"
    assert only.message.startswith("`scale-N=1")
    assert only.notes == (note,)
    assert verdict(record(change), record()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["obligations"][0].update(rung="static"),
        lambda data: data["obligations"][0].update(location="k.py:99:1"),
        lambda data: data["obligations"].append({**data["obligations"][0], "rung": "interval"}),
        lambda data: data["obligations"].pop(),
        lambda data: data["launch_checks"].clear(),
        lambda data: data["resources"].update(dynamic_shared_bytes=4096),
        registers(33),
    ],
)
def test_better_or_as_good_passes(change: Any) -> None:
    assert verdict(record(), record(change)) == []


def test_kernel_without_a_record_is_refused() -> None:
    (only,) = verdict(record(), record(name="scale-N=2"))
    assert only.message == "no artifact of `scale` is in the golden files"


def test_golden_files_round_trip_and_read_as_one_fact_per_line(tmp_path: Path) -> None:
    write(Output(tmp_path, None), record())
    assert read(Output(tmp_path, None)) == record()
    text = (tmp_path / "proofs.json").read_text()
    assert '  "bounds of load from `x`": "set",\n' in text
    (tmp_path / "proofs.json").write_text(text[:-5])
    with pytest.raises(CompileError) as caught:
        read(Output(tmp_path, None))
    assert caught.value.diagnostics[0].code == "E0708"


def test_a_project_holds_to_its_golden_files_until_one_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shipped_store: Path
) -> None:
    """Two shipped kernels on one architecture; the gate's `tilec ratchet` checks all of them on all architectures."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(shipped_store))
    project, golden = tmp_path / "p", ROOT / "tests" / "golden"
    shutil.copytree(ROOT / "kernels_src", project / "kernels_src", ignore=shutil.ignore_patterns("__pycache__"))
    head, *tables = re.split(r"(?m)^(?=\[\[)", (ROOT / "build.toml").read_text(encoding="utf-8"))
    some = [table for table in tables if re.search(r'name = "(add|argmax_reduce)"', table)]
    (project / "build.toml").write_text("".join([head.replace('steps = "engine/models"\n', ""), *some]), encoding="utf-8")
    ratchet = ["ratchet", "--project", str(project), "--arch", "sm_90"]
    assert commands.run([*ratchet, "--golden", str(golden)]) == 0, capsys.readouterr().err
    assert "artifacts hold" in capsys.readouterr().out
    golden_copy = tmp_path / "golden"
    shutil.copytree(golden, golden_copy)
    text = (golden_copy / "proofs.json").read_text()
    assert '"coverage of `out`": "set"' in text
    (golden_copy / "proofs.json").write_text(text.replace('"coverage of `out`": "set"', '"coverage of `out`": "static"', 1))
    command = [*ratchet, "--golden", str(golden_copy)]
    assert commands.run(command) == 1
    err = capsys.readouterr().err
    assert "error[E0708]" in err and "coverage of `out`: static -> set" in err
    assert commands.run([*command, "--update"]) == 0
    known = read(Output(golden, None))
    assert all(not change.worse for change in changes(known, read(Output(golden_copy, None))))
    assert commands.run(command) == 0
