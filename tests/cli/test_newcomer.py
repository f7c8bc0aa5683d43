"""A newcomer's use of the command: color at a terminal, projects found from subfolders, misspelled words, short output."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.test_commands import root as root
from tilec.cli import commands
from tilec.cli.project import find_project
from tilec.diagnostics import terminal
from tilec.diagnostics.diagnostic import CompileError, Counterexample, Diagnostic, Label, Span, render

pytestmark = pytest.mark.usefixtures("kept_workers")

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes color settings of other tests, and sets a terminal that supports color."""
    monkeypatch.setattr(terminal, "_choice", "auto")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("environment", "at_terminal", "in_file"),
    [
        ({}, True, False),
        ({"NO_COLOR": ""}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_environment(environment: dict[str, str], at_terminal: bool, in_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (terminal.wants_colour(Terminal()), terminal.wants_colour(io.StringIO())) == (at_terminal, in_file)
    terminal.choose("always")
    assert terminal.wants_colour(io.StringIO())
    terminal.choose("never")
    assert not terminal.wants_colour(Terminal())


def test_colour_changes_no_word_of_a_diagnostic() -> None:
    sources = {"a.py": "x = load(t)\ny = 2\n", "b.py": "def f():\n    pass\n"}
    labels = [Label(Span("a.py", 1, 0, 1, 5), "why"), Label(Span("b.py", 2, 4, 2, 8)), Label(Span("a.py", 2, 0, 2, 0))]
    found = Diagnostic("E0302", "may go wrong", labels[0], tuple(labels[1:]), ("a note",), Counterexample({"N": 3}), "fix it")
    plain, coloured = render(found, sources), render(found, sources, terminal.painted)
    assert ESCAPE.sub("", coloured) == plain
    assert coloured.startswith("\x1b[1;31merror[E0302]\x1b[0m")
    assert len(ESCAPE.findall(coloured)) > 20


@pytest.mark.parametrize("arguments", [["--color", "always", "build"], ["build", "--color=always"]])
def test_the_option_is_accepted_at_any_position(root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text() + "#! refuse\n")
    assert commands.run(["build"]) == 1
    plain = capsys.readouterr().err
    assert "\x1b" not in plain
    assert commands.run(arguments) == 1
    coloured = capsys.readouterr().err
    assert "\x1b[1;31merror[E0301]\x1b[0m" in coloured
    assert ESCAPE.sub("", coloured).partition("error[")[2] == plain.partition("error[")[2]


def test_wrong_usage_has_colour_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["--color", "always", "explain", "E9999"]) == 2
    assert capsys.readouterr().err.startswith("\x1b[1;31merror\x1b[0m: no error code")


def test_every_command_takes_the_option() -> None:
    import click

    def below(command: click.Command) -> list[click.Command]:
        inner = list(command.commands.values()) if isinstance(command, click.Group) else []
        return [command, *(one for child in inner for one in below(child))]

    found = below(commands.tilec)
    assert len(found) > 15
    assert [command.name for command in found if not any("--color" in option.opts for option in command.params)] == []


def test_a_build_with_nothing_to_do_prints_a_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["build"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert commands.run(["build"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"0 built, 8 up to date in [\d.]+ s\n", out)
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text() + "# edited\n" + "#! refuse\n")
    assert commands.run(["build"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["kernel", *["copy_a"] * 4, "0"]
    assert commands.run(["build", "-k", "copy_b", "--table"]) == 0
    assert capsys.readouterr().out.count(" hit\n") == 4
    assert commands.run(["build", "-k", "copy_b", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["artifacts"]) == 4


def test_the_build_file_is_found_from_below(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert commands.run(["build"]) == 0
    assert "8 built" in capsys.readouterr().out
    assert len(list((root / "artifacts/build").glob("*/*.cubin"))) == 8
    assert not (inner / "artifacts").exists()
    (root / "build.toml").write_text("[build]\narchh = []\n")
    assert commands.run(["build"]) == 2
    err = capsys.readouterr().err
    assert f"--> {os.path.join('..', '..', 'build.toml')}:2:1" in err
    assert "did you mean `arch`?" in err


def test_a_nearer_build_file_and_the_option_win(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    (root / "a" / "build.toml").write_text("")
    assert find_project(inner) == ".."
    assert find_project(root) == "."
    monkeypatch.chdir(inner)
    assert commands.run(["build", "--project", "."]) == 2


def test_a_missing_build_file_names_the_searched_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with pytest.raises(CompileError, match=f"E0801: no `build.toml` in `{tmp_path}` or any folder above it"):
        find_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert commands.run(["check"]) == 2
    assert "name one with `--project`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["buidl"], "'build'"),
        (["bundle", "pakc"], "'pack'"),
        (["build", "--archh", "sm_90"], "'--arch'"),
        (["build", "-k", "copyb"], "did you mean `copy_b`?"),
        (["build", "--dump-stage", "ptxx", "x"], "did you mean `ptx`?"),
        (["dump", "copy_a", "-c", "BLOK=128"], "did you mean `BLOCK`?"),
        (["explain", "E9999"], "no error code `E9999`; the codes are E0101 to E0"),
        (["explain", "E0399"], "no error code `E0399`; the codes of its kind are E0301 to E03"),
        (["explain", "302"], "no error code `302`; did you mean `E0302`?"),
    ],
)
def test_misspelt_names(root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert commands.run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
