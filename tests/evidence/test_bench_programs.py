"""The programs of `ci/bench`: every case can be called, writes its files, and is what its result rests on."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.bench import front, markdown
from ci.bench.front import Case, Outcome, Unfinished
from ci.bench.judges import clones, hostile
from ci.evidence import Digests, read_registry, status
from ci.evidence.result import Changed
from tests.evidence.repository import entry, record, repository, write
from tests.files import ROOT

__all__ = ["repository"]

BENCH = ROOT / "ci" / "bench"
PROGRAMS = ("engine", "judges", "kernels")
CASES: dict[str, dict[str, Case]] = {program: import_module(f"ci.bench.{program}").CASES for program in PROGRAMS}
EACH = [(program, name) for program in PROGRAMS for name in CASES[program]]
SHARED = {
    *("ci/bench/front.py", "ci/bench/markdown.py"), *(f"ci/bench/{program}.py" for program in PROGRAMS),
    *(f"ci/bench/{program}/__init__.py" for program in PROGRAMS),
}  # fmt: skip
COMMANDS = {name: shlex.split(one.command)[1:] for name, one in read_registry().items()}
REGISTERED = {name: command for name, command in COMMANDS.items() if command[0] in {f"ci/bench/{one}.py" for one in PROGRAMS}}


def file_of(program: str, name: str) -> Path:
    """The module of a case."""
    return BENCH / program / f"{CASES[program][name].module or name}.py"


def parts(path: Path) -> set[Path]:
    """A module of a program, and those of the program that it imports, directly or not, in a function or by name."""
    package, found, todo = f"ci.bench.{path.parent.name}", set[Path](), [path]
    while todo:
        one = todo.pop()
        if one in found or not one.is_file():
            continue
        found.add(one)
        for node in ast.walk(ast.parse(one.read_text(encoding="utf-8"))):
            names = list[str]()
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(package):
                names = [str(node.module), *(f"{node.module}.{name.name}" for name in node.names)]
            elif isinstance(node, ast.Constant) and str(node.value).startswith(f"{package}."):
                names = [str(node.value)]
            todo += [file for name in names if (file := ROOT / f"{name.replace('.', '/')}.py").parent == path.parent]
    return found


@pytest.mark.parametrize(("program", "name"), EACH)
def test_every_case_has_options_and_says_what_it_does(program: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine without a GPU, PyTorch or transformers."""
    with pytest.raises(SystemExit) as ended:
        front.parse(program, CASES[program], [name, "--help"])
    assert ended.value.code == 0
    module = import_module(f"ci.bench.{program}.{CASES[program][name].module or name}")
    assert str(module.__doc__).split("\n")[0] in capsys.readouterr().out


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_module_is_a_case_or_a_part_of_one(program: str) -> None:
    used = set[Path]().union(*(parts(file_of(program, name)) for name in CASES[program]))
    assert used == {path for path in (BENCH / program).glob("*.py") if path.name != "__init__.py"}


@pytest.mark.parametrize("name", REGISTERED)
def test_the_command_of_a_result_is_one_of_its_program(name: str) -> None:
    path, *arguments = REGISTERED[name]
    program = Path(path).stem
    assert path == f"ci/bench/{program}.py"
    case, options = front.parse(program, CASES[program], arguments)
    assert case == options.name == name


@pytest.mark.parametrize("name", REGISTERED)
def test_a_result_rests_on_its_case_and_not_on_the_front(name: str) -> None:
    rests_on = {one.partition(":")[2] for one in read_registry()[name].rests_on}
    own = parts(file_of(Path(REGISTERED[name][0]).stem, name))
    assert {path.relative_to(ROOT).as_posix() for path in own} <= rests_on
    assert not rests_on & SHARED


def test_an_edit_of_the_front_makes_nothing_stale(repository: Path) -> None:
    judged = entry("source:ci/bench/judges/one.py")
    write(repository / "ci/bench/judges/one.py", "x = 1\n")
    write(repository / "ci/bench/front.py", "y = 1\n")
    data = {"rests_on": Digests(repository).all_of(judged.rests_on)}
    write(repository / "ci/bench/front.py", "y = 2\n")
    assert status(judged, data, Digests(repository)).state == "fresh"
    write(repository / "ci/bench/judges/one.py", "x = 2\n")
    record(repository)
    assert status(judged, data, Digests(repository)).state == "stale"


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A case `one`, whose `measure` returns `found`."""
    values: dict[str, Any] = {}
    measure = lambda options: values["found"](options)  # noqa: E731  # pyright: ignore
    module = SimpleNamespace(__doc__="One.", arguments=lambda parser: None, measure=measure)  # pyright: ignore
    monkeypatch.setattr(front.importlib, "import_module", lambda name: module)  # pyright: ignore
    return values


def run(out: Path, *arguments: str) -> int:
    return front.run("judges", {"one": Case("a case")}, ["one", "--out", str(out), *arguments])


def test_outcomes_are_written_as_they_arrive(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []

    def found(options: Any) -> Iterator[Outcome]:
        for number in (1, 2):
            yield Outcome({"judged": number}, {"one.md": f"{number} judged\n"}, status=number - 1)
            seen.append(front.earlier(options))

    case["found"] = found
    assert run(tmp_path) == 1
    assert seen == [{"judged": 1}, {"judged": 2}]
    assert (tmp_path / "one.md").read_text() == "2 judged\n" and capsys.readouterr().out == "2 judged\n\n"
    assert run(tmp_path, "--name", "other") == 1 and json.loads((tmp_path / "other.json").read_text()) == {"judged": 2}


def test_what_is_not_finished_writes_nothing(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found(options: Any) -> Outcome:
        raise Unfinished("1 of 2 judged")

    case["found"] = found
    assert run(tmp_path) == front.UNFINISHED and not [*tmp_path.iterdir()]
    assert capsys.readouterr().out == "1 of 2 judged: run again to go on\n"
    case["found"] = lambda options: 0  # pyright: ignore
    assert run(tmp_path) == 0 and not [*tmp_path.iterdir()]
    case["found"] = lambda options: Outcome(None, {"one.md": "some\n"})  # pyright: ignore
    assert run(tmp_path) == 0 and not [*tmp_path.iterdir()]


class Stamp:
    """Stands in for a result in progress."""

    device = "cpu"

    def write(self, data: Any, folder: Path, *, exit_status: int) -> None:
        text = json.dumps({"rests_on": {}, "device": self.device, "exit_status": exit_status} | data)
        (folder / "one.json").write_text(text)


def test_only_a_whole_result_is_stamped(tmp_path: Path) -> None:
    stamp: Any = Stamp()
    front.write(Outcome({"judged": 1}, status=1, device="a GPU"), tmp_path, "one", stamp)
    stamped = {"rests_on": {}, "device": "a GPU", "exit_status": 1, "judged": 1}
    assert json.loads((tmp_path / "one.json").read_text()) == stamped
    assert front.earlier(options_of(tmp_path)) == {"judged": 1}
    front.write(Outcome({"judged": 2}, whole=False), tmp_path, "one", stamp)
    assert json.loads((tmp_path / "one.json").read_text()) == {"judged": 2}


def test_a_result_whose_sources_changed_meanwhile_is_kept_without_a_stamp(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(data: Any, folder: Path, *, exit_status: int) -> None:
        raise Changed("`one` changed")

    monkeypatch.setattr(front, "_started", lambda name: SimpleNamespace(device="", write=changed))  # pyright: ignore
    case["found"] = lambda options: Outcome({"judged": 1}, {"one.md": "some\n"})  # pyright: ignore
    assert run(tmp_path) == front.UNFINISHED and "not stamped: `one` changed" in capsys.readouterr().err
    assert json.loads((tmp_path / "one.json").read_text()) == {"judged": 1}


def options_of(out: Path) -> Any:
    return SimpleNamespace(out=out, name="one")


def test_a_run_of_some_parts_keeps_the_others(tmp_path: Path) -> None:
    options: Any = options_of(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps({"command": "a stamp", "slow": {"ok": True}}))
    runs = {"fast": lambda folder: {"ok": folder.is_dir()}, "bad": lambda folder: {"ok": False}}  # pyright: ignore
    found = list(clones.by_part(options, runs, ["fast", "bad", "slow"], lambda record: {"one.md": f"{sorted(record)}\n"}))
    assert [(one.status, one.whole) for one in found] == [(0, False), (1, False)]
    assert found[1].data["slow"] == {"ok": True} and found[1].pages == {"one.md": "['bad', 'cores', 'fast', 'slow']\n"}
    assert [one.whole for one in clones.by_part(options, runs, runs, lambda record: {})] == [False, True]


def test_tables() -> None:
    lines = markdown.grid(["kernel", "n"], [("add", 3)])
    assert markdown.page([*lines, ""]) == "| kernel | n |\n|---|--:|\n| add | 3 |\n"
    assert markdown.grid(["a", "b", "c"], [], left=3) == ["| a | b | c |", "|---|---|---|"]


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_a_small_campaign_from_end_to_end(tmp_path: Path, flags: list[str]) -> None:
    program = [sys.executable, *flags, str(BENCH / "judges.py")]
    done = subprocess.run([*program, "tampering", "--count", "2", "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "tampering.json").read_text())
    assert data["rests_on"]["source:ci/bench/judges/tampering.py"] and data["seed"] == 1
    assert (tmp_path / "tampering.md").read_text() in done.stdout
    listed = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in listed for name in CASES["judges"])
    assert subprocess.run([*program, "nothing"], capture_output=True).returncode == 2


def test_the_table_of_hostile_input_is_that_of_its_data() -> None:
    data = json.loads((ROOT / "ci/bench/results/hostile.json").read_text(encoding="utf-8"))
    text = (ROOT / "ci/bench/results/hostile.md").read_text(encoding="utf-8")
    assert hostile.table({name: data[name] for name in hostile.CAMPAIGNS}) == text


@pytest.mark.parametrize("path", sorted((ROOT / "ci/bench/results").glob("*.md")), ids=lambda path: path.stem)
def test_rows_of_a_table_are_as_wide_as_its_header(path: Path) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE):
        rows = table.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, rows[0]
