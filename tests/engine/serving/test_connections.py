"""Clients that take connections and ask nothing: the server drops them, serves others, and never runs out of files. Real
sockets on the loopback; time limits only end tests that hang."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from engine.serving.connections import Bounds, LoopErrors

ROOT = Path(__file__).resolve().parents[3]
HANG_SECONDS = 60
KERNEL_BYTES = 1 << 12
PIECE = 1 << 15
HALF = b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: "
HALF_BODY = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"


@pytest.fixture(autouse=True)
def one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has one line of each kind, however slow the machine is."""
    monkeypatch.setattr("engine.serving.connections.LOG_SECONDS", 1e9)


class Application:
    """Says `ok` to `/`, and to `/wait` once `go` is set. What it was asked is whole by then."""

    def __init__(self) -> None:
        self.waiting, self.go = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        if scope["path"] == "/wait":
            self.waiting.set()
            await asyncio.to_thread(self.go.wait, HANG_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving(bounds: Bounds, app: Any) -> Generator[tuple[uvicorn.Server, int]]:
    """A server of an application with bounded connections, in a thread, and its port. Little of a response that nobody reads
    is in the kernel."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        config = uvicorn.Config(app, http=bounds.protocol(), ws="none", lifespan="off", log_config=None, backlog=bounds.backlog)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(HANG_SECONDS)


@contextmanager
def listening(bounds: Bounds) -> Generator[tuple[Application, int]]:
    """An application with bounded connections, and its port."""
    app = Application()
    with serving(bounds, app) as (_, port):
        try:
            yield app, port
        finally:
            app.go.set()


def connected(port: int, text: bytes = HALF) -> socket.socket:
    """A connection of a client that sent so much."""
    found = socket.create_connection(("127.0.0.1", port), HANG_SECONDS)
    found.sendall(text)
    return found


def is_dropped(client: socket.socket) -> bool:
    """Whether the server closes a connection without a word; waits for it."""
    with client:
        try:
            return client.recv(100) == b""
        except ConnectionResetError:
            return True


def asked(port: int, path: str = "/", body: bytes | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
    connection.request("GET" if body is None else "POST", path, body)
    return connection.getresponse()


def until(done: Callable[[], bool]) -> None:
    """Until the server's thread did something."""
    end = time.monotonic() + HANG_SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_asking(bounds: Bounds, count: int) -> None:
    until(lambda: len(bounds.asking) == count)


@pytest.mark.parametrize("text", [b"", HALF, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + HALF])
def test_a_client_that_is_slow_with_its_headers_is_dropped(text: bytes) -> None:
    """Also one that sends nothing, and one that was served before."""
    with listening(Bounds(100, 10, header_seconds=0.01)) as (_, port):
        client = connected(port, text)
        received = b""
        with client, suppress(ConnectionResetError):
            while piece := client.recv(1000):
                received += piece
    assert received.endswith(b"ok") == text.startswith(b"GET / ")


def test_a_body_is_not_headers() -> None:
    """It may take longer than they: the timer is of headers alone."""
    bounds = Bounds(100, 10, header_seconds=0.2)
    with listening(bounds) as (_, port):
        client = connected(port, HALF_BODY)
        until_asking(bounds, 1)
        (one,) = bounds.asking
        until(lambda: one._late is None)  # pyright: ignore[reportPrivateUsage]
        client.sendall(b" " * 999)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()


@pytest.mark.parametrize("text", [HALF, HALF_BODY])
def test_the_connection_that_was_waited_for_longest_makes_room(text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = Bounds(2, 10, header_seconds=HANG_SECONDS)
    with listening(bounds) as (_, port):
        first = connected(port, text)
        until_asking(bounds, 1)
        second = connected(port, text)
        until_asking(bounds, 2)
        first.sendall(b"x")  # who goes on slowly is no younger
        response = asked(port)
        assert (response.status, response.read()) == (200, b"ok")
        assert is_dropped(first)
        third = connected(port, text)
        assert asked(port, "/", b"{}").status == 200 and is_dropped(second)
        third.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["connections_dropped"], "one line, however many"
    assert (lines[0]["level"], lines[0]["most"], lines[0]["displaced"]) == ("warning", 2, 1)


def test_requests_that_are_served_keep_their_connections(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(Bounds(1, 10, header_seconds=HANG_SECONDS)) as (app, port):
        served = connected(port, b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        assert app.waiting.wait(HANG_SECONDS)
        with socket.create_connection(("127.0.0.1", port), HANG_SECONDS) as refused:
            text = b""
            while piece := refused.recv(1000):
                text += piece
        head, _, body = text.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and b"retry-after: 1" in head.lower()
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        app.go.set()
        assert served.recv(1000).startswith(b"HTTP/1.1 200")
        served.close()
        response = asked(port)
        assert response.status == 200
    assert json.loads(capsys.readouterr().err)["refused"] == 1


def test_what_a_loop_says_again_and_again_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    loop, handle = asyncio.new_event_loop(), LoopErrors()
    for _ in range(3):
        handle(loop, {"message": "no files", "exception": OSError(24, "Too many open files")})
    handle(loop, {"message": "another"})
    loop.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["message"], line["error"]) for line in lines] == [
        ("no files", "OSError(24, 'Too many open files')"), ("another", "None"),
    ]  # fmt: skip


@contextmanager
def with_few_files(folder: Path, files: int) -> Generator[subprocess.Popen[str]]:
    """A server's process that may have so many files."""
    limited = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"]
    command = [sys.executable, "-m", "engine", "serve", str(folder), "--backend", "interpreter", "--port", "0", "--rows", "2"]
    with subprocess.Popen(
        [*limited, *command, "--max-seq-len", "256"], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_hundred_half_open_connections_and_sixty_four_files(tiny: Path) -> None:
    """Health and completions are there meanwhile; the log says what happens in a few lines."""
    with with_few_files(tiny, 64) as process:
        assert process.stderr is not None
        events = [json.loads(process.stderr.readline()) for _ in range(2)]
        port = events[1]["port"]
        slow = [connected(port, HALF if number % 2 else HALF_BODY) for number in range(200)]
        assert [asked(port, "/health").status for _ in range(3)] == [200] * 3
        body = json.dumps({"prompt": "the sky", "max_tokens": 2, "temperature": 0}).encode()
        assert asked(port, "/v1/completions", body).status == 200
        for one in slow:
            one.close()
        assert asked(port, "/health").status == 200
        process.terminate()
        events += [json.loads(line) for line in process.stderr]
        assert process.wait(HANG_SECONDS) == 0
    names = [event["event"] for event in events if event.get("status") != 499]
    assert names.count("connections_dropped") >= 1 and "internal_error" not in names and len(names) < 20


def test_too_few_files_are_refused_at_the_start(tiny: Path) -> None:
    with with_few_files(tiny, 30) as process:
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-1]
        assert process.wait(HANG_SECONDS) == 2
    assert last.startswith("error: the process may have 30 files, which leave ") and "ulimit -n" in last


class Sender:
    """Sends a response of `size` bytes, in pieces, and says when it does and has."""

    def __init__(self, size: int) -> None:
        self.size, self.begun, self.sent = size, threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        length = str(self.size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for _ in range(0, self.size, PIECE):
            await send({"type": "http.response.body", "body": b"x" * PIECE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.sent.set()


def narrow(port: int, *, closes: bool) -> socket.socket:
    """A connection of a client that asked, and has room for little of the response. `closes`: it is to be closed after it."""
    found = socket.socket()
    found.settimeout(HANG_SECONDS)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    found.connect(("127.0.0.1", port))
    found.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n" + (b"connection: close\r\n" if closes else b"") + b"\r\n")
    return found


@pytest.mark.parametrize("closes", [False, True])
def test_a_client_that_reads_slowly_gets_its_whole_response(closes: bool) -> None:
    """Longer than headers may take, while it goes on reading."""
    app = Sender(PIECE)
    with serving(Bounds(100, 10, header_seconds=0.3), app) as (_, port):
        client = narrow(port, closes=closes)
        assert app.sent.wait(HANG_SECONDS)
        received = bytearray()
        with client:
            while len(received.partition(b"\r\n\r\n")[2]) < PIECE:
                time.sleep(0.02)
                piece = client.recv(500)
                assert piece, f"the connection was closed after {len(received)} bytes"
                received += piece


@pytest.mark.parametrize("size", [PIECE, 4 * PIECE])
@pytest.mark.parametrize("closes", [False, True])
def test_a_client_that_reads_nothing_is_dropped(size: int, closes: bool) -> None:
    """Whether the whole response is in memory, or waits for room there."""
    bounds, app = Bounds(100, 10, header_seconds=0.05, request_seconds=0.1), Sender(size)
    with serving(bounds, app) as (server, port), narrow(port, closes=closes):
        assert app.begun.wait(HANG_SECONDS)
        until(lambda: not server.server_state.connections)
