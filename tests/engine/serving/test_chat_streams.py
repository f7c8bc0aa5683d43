"""`python -m engine chat` when one of its streams is closed or no terminal: replies go to stdout, and nothing else does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from engine.tools.tiny import write_tiny_model
from tests import shipped

OPTIONS = ("--backend", "interpreter", "--max-seq-len", "64", "--max-new-tokens", "2", "--temperature", "0")
HANG_SECONDS = 300


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("chat") / "tiny"
    write_tiny_model(folder)
    return [sys.executable, "-m", "engine", "chat", str(folder), *OPTIONS]


def in_pipe(command: list[str]) -> bytes:
    """The replies to two lines of a pipe."""
    done = subprocess.run(command, input=b"hi\nhi", capture_output=True, cwd=shipped.ROOT, timeout=HANG_SECONDS)
    assert done.returncode == 0 and done.stdout
    return done.stdout


def test_prompts_for_a_terminal_are_not_among_replies_to_a_file(command: list[str]) -> None:
    ours, its = pty.openpty()
    try:
        process = subprocess.Popen(command, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=shipped.ROOT)
        os.write(ours, b"hi\nhi\n\x04")
        out, notes = process.communicate(timeout=HANG_SECONDS)
    finally:
        os.close(ours)
        os.close(its)
    assert process.returncode == 0 and out == in_pipe(command)
    assert notes.startswith(b"tiny: /help lists commands\n> ") and notes.count(b"> ") == 3


def test_without_stderr_the_replies_are_the_same(command: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], input=b"hi\nhi", stdout=subprocess.PIPE, cwd=shipped.ROOT,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, in_pipe(command))
