"""However a command ends, its workers end with it, no lock is left, and no interrupt is reported that did not happen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.campaign import first
from tests.project import project
from tests.project.test_build import append, wait_until_dead, worker_pids
from tilec import progress
from tilec.cache.lock import locked, waiting
from tilec.cli import commands
from tilec.untrusted.folder import Folder
from tilec.workers.scheduler import Crashed, run

ROOT = Path(__file__).parents[2]
COMMAND = """
import sys
import tilec.project.build.driver as driver
from tests.project import fake_stages, project
from tilec import toolchain
toolchain.fingerprint = lambda memo=None, packages=None: project.TOOLCHAIN
driver.build_project.__kwdefaults__ |= {"runner": fake_stages.run, "preload": ()}
from tilec.__main__ import main
sys.argv = ["tilec", "build", "-j", "2"]
main()
"""
"""The unchanged command with stub stages."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TILEC_CACHE_DIR", raising=False)
    return project.make(tmp_path / "p")


@contextlib.contextmanager
def slow_command(root: Path, directive: str = "sleep 900") -> Generator[subprocess.Popen[str]]:
    """A build in a session of its own, once its workers sleep or wait."""
    append(root, "copy_a", f"#! {directive}\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(root / "store")}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while not worker_pids(root):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.02)
    try:
        yield process
    finally:
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()


def family(session: int) -> list[int]:
    """Every living process of a session."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            command = path.read_text().rpartition(")")[2].split()
            if int(command[3]) == session and command[0] != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("sent", "status", "messages"),
    [
        (signal.SIGINT, 130, "interrupted\n"),
        (signal.SIGTERM, 143, "ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "ended by SIGHUP\n"),
        (signal.SIGKILL, -9, ""),
    ],
)
@pytest.mark.parametrize("group", first(1, [False, True]))
def test_processes_die_together(root: Path, sent: signal.Signals, status: int, messages: str, group: bool) -> None:
    with slow_command(root) as process:
        assert len(family(process.pid)) >= 3  # the command, the server, a worker
        (os.killpg if group else os.kill)(process.pid, sent)
        _, err = process.communicate(timeout=600)  # less than the worker would sleep
        assert (process.returncode, err.lstrip()) == (status, messages)  # click ends the line of a `^C` first
        if sent == signal.SIGKILL:
            wait_until_dead(family(process.pid))
        assert family(process.pid) == []
        left = [path.relative_to(root).parts[0] for path in root.rglob(".tmp-*")]
        assert not left or (sent == signal.SIGKILL and set(left) == {"store"})  # in the folder that `cache prune` cleans
        path = root / "kernels_src/copy_a.py"
        path.write_text(path.read_text().replace("sleep 900", "sleep 0"))
        assert "failed" not in project.statuses(project.build(root))  # returns only if no lock is left


def test_a_killed_server_ends_its_workers_and_is_reported(root: Path) -> None:
    with slow_command(root) as process:
        (server,) = {pid for pid in family(process.pid) if _parent(pid) == process.pid}
        os.kill(server, signal.SIGKILL)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 2
        assert "error[E0814]: worker processes cannot be started: it ended with SIGKILL" in err
        assert "interrupted" not in err and "Traceback" not in err
        wait_until_dead(family(process.pid))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_under_nohup_a_hangup_ends_nothing(root: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with slow_command(root, "wait") as process:
            os.killpg(process.pid, signal.SIGHUP)
            (root / "go").touch()
            process.communicate(timeout=600)
            assert process.returncode == 0
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_an_end_of_input_is_no_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(*_: object) -> int:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("tilec.cli.inspect_commands.explain_command", ends)
    assert commands.run(["explain", "E0301"]) == 1
    err = capsys.readouterr().err
    assert "interrupted" not in err and "EOFError" in err


def test_a_build_that_waits_says_for_whom(root: Path) -> None:
    with slow_command(root, "wait") as process:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(root / "store")}
        begin = f"waiting for process {process.pid} in `{root}` to build ptx of copy_a for sm_90a, running since "
        command = [sys.executable, "-c", COMMAND]
        with subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as other:
            assert other.stderr is not None
            messages: list[str] = []
            for line in other.stderr:
                messages.append(line)
                if line.startswith(begin):
                    assert f"`kill {process.pid}`" in line
                    (root / "go").touch()
        assert other.returncode == 0
        assert any(line.startswith(begin) for line in messages), messages


def test_workers_of_one_command_wait_without_a_word(tmp_path: Path) -> None:
    messages: list[str] = []
    progress.attach(None, messages.append)
    try:
        order: list[int] = []

        def take() -> None:
            with locked(Folder.open(tmp_path), "locks", "0" * 16, "x"):
                order.append(2)

        with locked(Folder.open(tmp_path), "locks", "0" * 16, "x"):
            thread = threading.Thread(target=take)
            thread.start()
            time.sleep(0.1)
            order.append(1)
        thread.join()
    finally:
        progress.attach(None)
    assert (order, messages) == ([1, 2], [])


def test_a_holder_that_has_left_no_note_yet_is_not_called_another_build(tmp_path: Path) -> None:
    messages: list[str] = []
    progress.attach(None, messages.append)
    try:
        with locked(Folder.open(tmp_path), "locks", "0" * 16, "x"):
            (tmp_path / "holders" / ("0" * 15)).unlink()  # as just before it is written
            thread = threading.Thread(target=lambda: locked(Folder.open(tmp_path), "locks", "0" * 16, "x").__enter__())
            thread.start()
            time.sleep(0.1)
        thread.join()
    finally:
        progress.attach(None)
    assert messages == []


@pytest.mark.parametrize(
    "note",
    [
        {}, {"command": "x"}, {"command": 1, "folder": 2, "since": 3}, {"command": 1, "folder": "/", "since": 1e300},
        {"command": 1, "folder": "/", "since": float("nan")}, {"command": True, "folder": "\x1b[2J", "since": 5},
    ],
)  # fmt: skip
def test_a_note_may_be_anything(note: dict[str, object]) -> None:
    line = waiting(note, "x")
    assert line.startswith("waiting for") and line.isprintable()


def test_a_note_that_is_a_pipe_or_a_link_is_not_opened(tmp_path: Path) -> None:
    holders = tmp_path / "holders"
    holders.mkdir()
    os.mkfifo(holders / ("0" * 15))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (holders / ("1" * 15)).symlink_to(victim)
    for digit in "01":
        with locked(Folder.open(tmp_path), "locks", digit * 16, "x"):
            pass
    assert victim.read_text() == "mine"


def _die(task: int, emit: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def test_every_task_has_its_own_end() -> None:
    events = list(run(list(range(5)), _die, 2))
    assert sorted(event.index for event in events) == [0, 1, 2, 3, 4]
    assert all(isinstance(event, Crashed) and event.death and event.death.status == -signal.SIGSEGV for event in events)


def test_results_that_were_sent_before_a_death_are_kept() -> None:
    events = list(run([0], _say_and_die, 1))
    assert [type(event).__name__ for event in events] == ["Report", "Report", "Crashed"]
    assert len(events[0].message) == 1 << 20  # type: ignore[union-attr]


def _say_and_die(task: int, emit: object) -> None:
    emit(b"x" * (1 << 20))  # type: ignore[operator]
    emit(b"y")  # type: ignore[operator]
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("closed", first(1, ["<&- 2>&-", "<&-", "2>&-"]))
def test_a_closed_stdin_or_stderr_is_no_concern(root: Path, closed: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(root / "store")}
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-P", "-c", COMMAND]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)
    assert sorted((root / "artifacts").rglob("*.cubin"))


@pytest.mark.parametrize(
    ("where", "messages"),
    [
        (">&-", "error: the output cannot be written: stdout is closed\n"),
        (
            "> /dev/full",
            "error[E0702]: the output cannot be written: No space left on device\n\nhint: free space, or write elsewhere\n",
        ),
        (">&- 2>&-", ""),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, where: str, messages: str) -> None:
    command = ["sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-P", "-m", "tilec", "explain", "E0401"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr.lstrip("\n")) == (2, "", messages)


@pytest.mark.parametrize("most", [3, 5, 8])
def test_no_file_can_be_opened(root: Path, most: int) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most})); main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(root / "store")}
    command = [sys.executable, "-P", "-c", COMMAND.replace("main()", limit)]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, "Traceback" in ended.stderr) in ((1, False), (2, False))
    assert ended.stderr.startswith("error: tilec cannot be loaded: Too many open files\n" if most == 3 else "error")


FINALIZED = """
import os, signal, time
from tilec.cli.ending import Terminated, leave_signals, unwind_on_signals
class Object:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(1000):
            pass
signal.signal(signal.SIGINT, signal.default_int_handler)
unwind_on_signals()
try:
    Object()
    time.sleep(60)
except (KeyboardInterrupt, Terminated) as error:
    print(type(error).__name__)
leave_signals()
"""


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated"), (signal.SIGHUP, "Terminated")]
)
def test_a_signal_while_an_object_is_finalized_is_not_lost(number: int, raised: str) -> None:
    command = [sys.executable, "-P", "-c", FINALIZED.format(number=int(number))]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{raised}\n", "")


def test_a_signal_after_the_end_ends_the_process_at_once() -> None:
    late = "\nclass Late:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\nkept = Late()"
    command = [sys.executable, "-P", "-c", FINALIZED.partition("class")[0] + "unwind_on_signals(); leave_signals()" + late]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "", "")
