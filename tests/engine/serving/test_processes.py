"""The processes of a server that runs: one that checks forms is started, ends and is started again; none is left."""

from __future__ import annotations

import concurrent.futures
import fcntl
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
HANG_SECONDS = 300


class Running:
    """A server of the tiny model on the interpreter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process, log = process, process.stderr
        assert json.loads(log.readline())["event"] == "loading"
        self.port: int = json.loads(log.readline())["port"]

    def ask(self, **fields: Any) -> tuple[int, Any]:
        """Status and body of the response to a completion of up to two tokens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2, **fields}))
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    def checkers(self) -> list[int]:
        """The processes that check forms, those that have ended but were not waited for included."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [int(one) for file in tasks for one in file.read_text(encoding="ascii").split()]
        return [one for one in children if b"grammar_worker" in _command(one) or not _command(one)]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "engine", "serve", str(folder), "--backend", "interpreter", "--port", "0", "--rows", "2"]
    with subprocess.Popen([*command, "--max-seq-len", "256"], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def test_the_process_of_forms_is_started_again(tiny: Path) -> None:
    """The request that it had gets an error, all others their texts."""
    with running(tiny) as one:
        assert one.ask()[0] == 200 and one.checkers() == []  # nobody asked for a form
        assert one.ask(guided_regex="a+")[0] == 200
        (first,) = one.checkers()
        watched = os.pidfd_open(first)
        os.kill(first, signal.SIGKILL)
        assert select.select([watched], [], [], HANG_SECONDS)[0], "it goes on"
        os.close(watched)
        assert one.ask(guided_regex="b+")[0] == 200  # it ended between two requests
        (second,) = one.checkers()
        os.kill(second, signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as thread, open(f"/proc/{second}/fd/0", "rb") as requests:
            asking = thread.submit(one.ask, guided_regex="c+")
            while not int.from_bytes(fcntl.ioctl(requests, termios.FIONREAD, bytes(4)), sys.byteorder):
                assert not asking.done()
            assert one.ask()[0] == 200  # while a form is being checked
            os.kill(second, signal.SIGSEGV)
            os.kill(second, signal.SIGCONT)
            status, body = asking.result(HANG_SECONDS)
        assert (status, body["error"]["param"], body["error"]["code"]) == (400, "guided_regex", "grammar_ended")
        assert one.ask(guided_regex="c+")[0] == 200
        (third,) = one.checkers()
        assert len({first, second, third}) == 3


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_server(tiny: Path, how: signal.Signals) -> None:
    with running(tiny) as one:
        assert one.ask(guided_regex="a+")[0] == 200
        (checker,) = one.checkers()
        watched = os.pidfd_open(checker)
        one.process.send_signal(how)
        status = one.process.wait(HANG_SECONDS)
        assert status == (0 if how == signal.SIGTERM else -how)
        assert select.select([watched], [], [], HANG_SECONDS)[0], "it goes on"
        os.close(watched)


def test_the_server_ends_while_a_form_is_being_checked(tiny: Path) -> None:
    """A process that does not reply is killed: its request has an error, and the server's end does not wait for it."""
    with running(tiny) as one:
        assert one.ask(guided_regex="a+")[0] == 200
        (checker,) = one.checkers()
        watched = os.pidfd_open(checker)
        os.kill(checker, signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as thread, open(f"/proc/{checker}/fd/0", "rb") as requests:
            asking = thread.submit(one.ask, guided_regex="c+")
            while not int.from_bytes(fcntl.ioctl(requests, termios.FIONREAD, bytes(4)), sys.byteorder):
                assert not asking.done()
            for _ in range(2):  # the second one ends the wait for requests
                one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(HANG_SECONDS) == 0
            with pytest.raises((http.client.HTTPException, ConnectionError, AssertionError)):
                assert asking.result(HANG_SECONDS)[0] == 200
        assert select.select([watched], [], [], HANG_SECONDS)[0], "it goes on"
        os.close(watched)
