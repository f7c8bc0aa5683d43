"""The command as a process: its environment can neither suppress its output nor cause a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import entry
from engine.errors import MissingPackage
from engine.tools.tiny import write_tiny_model
from tests.campaign import first

ROOT = Path(__file__).resolve().parents[2]

STUB = """
import sys
from engine import cli
from engine.entry import enter
def run():
    cli.click.echo({text})
    return 0
cli.run = run
sys.exit(enter("engine.cli"))
"""
"""The entry point with a command that finishes at once."""


def run_python(
    arguments: list[str], *, folder: Path | None = None, path: str = "", shell: str = "", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python on the engine; `path` is prepended to the search path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (path, str(ROOT)) if part)
    command = [sys.executable, *arguments]
    if shell:
        command = ["sh", "-c", f'"$@" {shell}', "sh", *command]
    return subprocess.run(command, capture_output=True, cwd=folder, env=environment | variables, timeout=600, check=False)


def test_a_closed_stdout() -> None:
    process = run_python(["-m", "engine", "--help"], shell=">&-")
    assert (process.returncode, process.stdout) == (1, b"")
    assert process.stderr == b"error: cannot write the output: stdout is closed\n"


def test_a_closed_stderr() -> None:
    process = run_python(["-m", "engine", "--model", "/nowhere"], shell="2>&-")
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", b"")


def test_a_reader_that_closed_the_pipe() -> None:
    source = STUB.format(text="'x' * 1_000_000")
    process = run_python(["-c", source], shell="| head -c 1")
    assert (process.stdout, process.stderr) == (b"x", b"")


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("latin-1", b"\xe4 \\u4e2d \\U0001f98a\n"), ("ascii", "ä 中 🦊\n".encode()), ("utf-8", "ä 中 🦊\n".encode())],
)
def test_output_that_stdout_cannot_encode(encoding: str, expected: bytes) -> None:
    """Unencodable characters are escaped, except with ASCII: click treats that as an unset locale and writes UTF-8."""
    process = run_python(["-c", STUB.format(text="'ä 中 🦊'")], PYTHONIOENCODING=encoding)
    assert (process.returncode, process.stdout, process.stderr) == (0, expected, b"")


@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}],
    ids=["ascii", "c", "posix"],
)
def test_arguments_in_utf_8_whatever_the_locale(variables: dict[str, str]) -> None:
    source = "import sys; from engine.entry import argument_text; sys.stdout.buffer.write(argument_text(sys.argv[1]).encode())"
    process = run_python(["-c", source, "naïve 中 🦊"], **variables)
    assert (process.stdout.decode(), process.stderr) == ("naïve 中 🦊", b"")


def test_an_argument_that_is_not_text() -> None:
    assert entry.argument_text("a\udcff") == "a\udcff"
    assert entry.argument_text("中") == "中"


@pytest.mark.campaign
def test_complete_output_in_an_ascii_locale(tmp_path: Path) -> None:
    """The tiny model generates the same bytes or their escapes for the same prompt."""
    write_tiny_model(tmp_path / "model")
    arguments = ["-m", "engine", "--backend", "interpreter", "--model", str(tmp_path / "model"), "--prompt", "naïve 中"]
    arguments += ["--max-new-tokens", "2", "--max-seq-len", "64", "--json"]
    plain = run_python(arguments)
    ascii_only = run_python(arguments, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (plain.returncode, plain.stderr) == (0, b""), plain.stderr
    assert (ascii_only.returncode, ascii_only.stderr) == (0, b""), ascii_only.stderr
    records = [json.loads(process.stdout) for process in (plain, ascii_only)]
    assert ascii_only.stdout.isascii()
    assert [records[0][key] for key in ("text", "ids", "prompt_tokens")] == [
        records[1][key] for key in ("text", "ids", "prompt_tokens")
    ]


@pytest.mark.parametrize(
    ("package", "expected"),
    [("tokenizers", "tilec[engine]"), ("click", "tilec"), ("numpy", "tilec"), ("jinja2", "tilec[engine]")],
)
def test_a_package_that_is_not_installed(tmp_path: Path, package: str, expected: str) -> None:
    """Hidden by a finder that precedes all others."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder)
""")
    model = tmp_path / "model"
    write_tiny_model(model)
    arguments = ["-m", "engine", "--backend", "interpreter", "--model", str(model), "--prompt", "x"]
    process = run_python(arguments, path=str(tmp_path))
    assert process.returncode == 2
    assert process.stderr.decode() == f"error: the package `{package}` is not installed; pip install '{expected}'\n"


def test_an_absent_module_of_the_project_is_an_internal_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        entry.missing(ModuleNotFoundError("x", name="engine.nowhere"))
    assert isinstance(entry.missing(ModuleNotFoundError("x", name="islpy")), MissingPackage)


@pytest.mark.parametrize(
    ("package", "options"), [("click", ["--help"]), ("numpy", ["--backend", "interpreter", "--model", "x", "--prompt", "x"])]
)
def test_ctrl_c_while_modules_are_imported(tmp_path: Path, package: str, options: list[str]) -> None:
    """Those of every command, and those of one command that is known to be right."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    process = run_python(["-m", "engine", *options], path=str(tmp_path))
    assert (process.returncode, process.stdout, process.stderr.lstrip()) == (130, b"", b"error: interrupted\n")


AT_LOCK = """
import os, signal, sys
def profile(frame, event, _):
    if event == "call" and frame.f_code.co_name == "cb" and frame.f_locals.get("name") == {name!r}:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(profile)
"""
"""Ctrl-C while Python releases the lock of a module that it has imported: an exception raised there is printed and ignored."""

IN_EXEC = """
import sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [None for _ in range(9)]")
sys.meta_path.insert(0, Finder)
"""
"""Ctrl-C while source text is executed, as for dataclasses: CPython then ends by the signal, even if the exception was caught.
"""


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (AT_LOCK, "engine.entry"), (AT_LOCK, "engine.cli"), (AT_LOCK, "engine.backends.block_sizes"),
        (AT_LOCK, "tilec.interpreter.launch"), (AT_LOCK, "engine.backends.interpreter"),
        (IN_EXEC, "engine.backends.host_buffers"), (IN_EXEC, "engine.errors"),
    ],
)  # fmt: skip
def test_ctrl_c_while_the_interpreter_starts(tmp_path: Path, setup: str, name: str) -> None:
    """Ctrl-C during the engine's imports is neither lost nor shown as a traceback."""
    (tmp_path / "sitecustomize.py").write_text(setup.format(name=name))
    write_tiny_model(tmp_path / "model")
    arguments = ["-m", "engine", "--backend", "interpreter", "--model", str(tmp_path / "model"), "--prompt", "x"]
    process = run_python(arguments, path=str(tmp_path))
    assert (process.returncode, process.stdout, process.stderr.strip()) == (130, b"", b"error: interrupted")


@pytest.mark.parametrize(
    "name", first(4, ["json", "contextlib", "random", "engine", "signal", "click", "numpy", "jinja2", "tokenizers"])
)
def test_the_current_folder_runs_nothing(tmp_path: Path, name: str) -> None:
    """Except modules that Python itself imports before it runs the engine; `python -P -m engine` imports none of those
    either."""
    for module in {name, "json", "ast", "datetime"} - {"engine"}:
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    module = "engine" if name != "random" else "engine.tools.tiny"
    flags = ["-P"] if name in ("contextlib", "engine") else []  # `runpy` imports contextlib
    process = run_python([*flags, "-m", module, "--help"], folder=tmp_path)
    assert (process.returncode, process.stderr) == (0, b"")
    assert not (tmp_path / "ran").exists()
