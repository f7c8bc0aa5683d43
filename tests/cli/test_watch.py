"""`--watch`: what makes a command run again, what it survives, how it ends. The test controls when it looks, not a clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.shipped import ROOT
from tilec.cli import commands, ending, watch
from tilec.cli.ending import Terminated
from tilec.cli.project import UsageError
from tilec.cli.watch import Reads, watched
from tilec.diagnostics.diagnostic import CompileError, Diagnostic


class Editor:
    """Replaces the wait for changes: one edit for each time that the command waits, and Ctrl-C after the last."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.folders: list[Path] = []

    def __call__(self, folders: Sequence[Path]) -> Iterator[object]:
        self.folders = list(folders)
        while self.steps:
            self.steps.pop(0)()
            yield None


def replace(path: Path, text: str) -> None:
    """As most editors save: another file is renamed to the path."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def runs(reads: Reads, editor: Editor, command: Callable[[], int] | None = None) -> int:
    """The number of runs before the command was interrupted."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return command() if command is not None else 0

    with pytest.raises(KeyboardInterrupt):
        watched(counted, reads, editor)
    return count


def test_what_is_read_and_what_is_not(project: Path) -> None:
    source = project / "kernels_src"
    (source / "shared.py").write_text(
        "import tilec\nfrom tilec import Tile\n\n\n@tilec.function\ndef same(x: Tile) -> Tile:\n    return x\n"
    )
    kernel = (source / "softmax.py").read_text().replace("\n\nclass E", "\nfrom shared import same\n\n\nclass E", 1)
    (source / "softmax.py").write_text(kernel)
    (source / "unread.py").write_text("")
    found = {path.name for path in Reads(None, ()).files()}
    assert found == {"build.toml", "softmax.py", "shared.py"}
    assert {path.name for path in Reads(None, (), references=True).files()} == found | {"reference.py"}
    alone = Reads(None, (str(source / "softmax.py"),))
    assert {path.name for path in alone.files()} == {"softmax.py", "shared.py"}
    (source / "softmax.py").write_text("def")
    assert {path.name for path in alone.files()} == {"softmax.py", "shared.py"}  # unchanged while it is unknown


def test_only_another_content_runs_it_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "kernels_src/softmax.py"
    text = path.read_text()
    editor = Editor(
        lambda: path.touch(), lambda: replace(path, text), lambda: replace(path, text + "\n"),
        lambda: (project / "kernels_src/unread.py").write_text("x"), lambda: path.unlink(), lambda: path.write_text(text),
    )  # fmt: skip
    assert runs(Reads(None, ()), editor) == 4
    messages = [line for line in capsys.readouterr().err.splitlines() if line.startswith("changed")]
    name = "kernels_src/softmax.py"
    assert messages == [f"changed: {name}", f"changed: {name} is gone", f"changed: {name} is new"]
    assert Path("kernels_src") in [Path(os.path.relpath(folder)) for folder in editor.folders]


def test_a_change_while_it_runs_is_not_lost(project: Path) -> None:
    path = project / "kernels_src/softmax.py"
    texts = ["one", "two", "two"]
    editor = Editor(lambda: None, lambda: None, lambda: None)
    assert runs(Reads(None, ()), editor, lambda: path.write_text(texts.pop(0))) == 3


def test_check_survives_what_is_not_python_and_what_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, build = project / "kernels_src/softmax.py", project / "build.toml"
    text, table = path.read_text(), build.read_text()
    editor = Editor(
        lambda: path.write_text("def"), lambda: replace(path, text.replace("(row, 0)", "(row + 1, 0)", 1)),
        lambda: build.write_text("["), lambda: (build.write_text(table), path.write_text(text)),
    )  # fmt: skip

    def check() -> int:
        return commands.tilec.main(["check", "--arch", "sm_90"], prog_name="tilec", standalone_mode=False) or 0

    assert runs(Reads(None, ()), editor, check) == 5
    captured = capsys.readouterr()
    codes = [line.partition("]")[0] for line in captured.err.splitlines() if line.startswith("error[")]
    assert codes == ["error[E0101", "error[E0301", "error[E0801"]
    assert captured.out.count("proven") == 8
    assert "changed: build.toml, kernels_src/softmax.py" in captured.err


def test_the_signal_that_the_library_takes_for_ctrl_c_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Sequence[Path]) -> Iterator[object]:
        yield None
        raise KeyboardInterrupt

    for received, expected in (([signal.SIGTERM], Terminated), ([signal.SIGINT], KeyboardInterrupt)):
        monkeypatch.setattr(ending, "_received", received)
        with pytest.raises(expected):
            watched(lambda: 0, Reads(None, ()), interrupted)


def test_wrong_usage_ends_the_first_run_and_is_reported_in_later_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        raise UsageError("no kernel `softmx`")

    with pytest.raises(UsageError):
        watched(fails, Reads(None, ()), Editor())
    calls: list[int] = []

    def later() -> int:
        calls.append(0)
        if len(calls) > 1:
            fails()
        return 0

    assert runs(Reads(None, ()), Editor(lambda: (project / "build.toml").write_text("#")), later) == 2
    assert "error: no kernel `softmx`" in capsys.readouterr().err


def test_without_a_project_there_is_nothing_to_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fails() -> int:
        raise CompileError(Diagnostic("E0801", "no `build.toml`"))

    assert watched(fails, Reads(None, ()), Editor()) == 2


def test_a_missing_library_is_named(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(watch.importlib.util, "find_spec", lambda name: None)
    assert commands.run(["check", "--watch"]) == 2
    assert "pip install 'tilec[compiler]'" in capsys.readouterr().err
    assert commands.run(["build", "--plan", "--watch"]) == 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_watches_until_a_signal_ends_it(project: Path, number: int, status: int) -> None:
    """With the real library: one line shows that it watches, another that it saw the change; no clock is involved."""
    command = [sys.executable, "-P", "-m", "tilec", "check", "kernels_src/softmax.py", "-c", "E=bf16,N=64", "--watch"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:  # fmt: skip
        assert child.stderr is not None and child.stdout is not None
        assert next(child.stderr) == "watching 1 files; Ctrl-C ends it\n"
        replace(project / "kernels_src/softmax.py", "def")
        assert next(child.stderr) == "changed: kernels_src/softmax.py\n"
        while not next(child.stderr).startswith("watching"):
            pass
        child.send_signal(number)
        assert child.wait() == status
        assert "Traceback" not in child.stderr.read()
        assert child.stdout.read().count("proven") == 1
