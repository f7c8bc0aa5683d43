"""A process that replies to requests, with limits on processor time and memory; started on the first request, and again after
it ended. `engine.reply_worker` is what runs in it.

Returns the reply to a request, or raises a `ProcessEnded` that says how it ended instead. The process shares only two pipes
with this one: its working directory is the root, and its module search path is explicit. It ends when the pipes close, however
this process ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from engine.errors import DeviceError, MissingPackage

WALL_SECONDS: Final = 60.0
"""Seconds to wait for a reply: start of the process plus the processor time of a request, on a busy machine."""

INHERITED_VARIABLES: Final = ("TZ", "LD_LIBRARY_PATH")
"""Environment variables that the process inherits."""


class ProcessEnded(Exception):
    """The process ended or was killed before it replied. `status`: its exit status as of `Popen`, None if it had to be killed.
    `late`: the seconds after which it was killed, None if it was not for time."""

    def __init__(self, status: int | None, late: float | None = None) -> None:
        super().__init__(f"status {status}" if late is None else f"took over {late:g} seconds")
        self.status, self.late = status, late


class ReplyProcess:
    """A process that runs the file `worker` with `arguments`, which are followed by the folders of `packages` and of this one.
    `what` says in errors which one it is, `extra` which extra of the distribution has the packages. Thread-safe: requests are
    serialized."""

    def __init__(
        self, worker: Path, packages: Sequence[str], *, what: str, extra: str, reply_limit: int, arguments: Sequence[str] = ()
    ) -> None:  # fmt: skip
        self._worker, self._packages, self._arguments = worker.resolve(), packages, arguments
        self._what, self._extra, self._reply_limit = what, extra, reply_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.closes = 0
        """How often it was closed, so that a request knows whether it ended for that."""

    def start(self) -> None:
        """Start the process unless it is running; does not wait for it."""
        with self._lock:
            self._running()

    def reply_to(self, request: dict[str, Any], *, wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The reply to a request; ProcessEnded if there is none."""
        text = json.dumps(request).encode()
        with self._lock:
            process = self._running()
            try:
                deadline = time.monotonic() + wall_seconds
                reply = _send_and_receive(process, len(text).to_bytes(8, "little") + text, deadline, self._reply_limit)
            except BaseException as error:  # a late reply must not be read as the reply to the next request
                status = self._end()
                if isinstance(error, EOFError | BrokenPipeError):
                    raise ProcessEnded(status) from None
                if isinstance(error, TimeoutError):
                    raise ProcessEnded(status, wall_seconds) from None
                raise
        return cast("dict[str, Any]", json.loads(reply))

    def close(self) -> None:
        """Kill the process, also in the middle of a request; idempotent. The next request starts a new one."""
        self.closes += 1
        process = self._process
        if process is not None and self._owner == os.getpid():
            process.kill()  # it has no state to save, and whoever waits for a reply holds the lock
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._process is not None and self._owner == os.getpid():
            self._end()
        command = [sys.executable, "-I", "-S", str(self._worker), *self._arguments, *self._search_path()]
        environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env=environment,
                process_group=0,  # so that Ctrl-C at the terminal reaches only this process, which ends it
            )  # fmt: skip
        except OSError as error:
            what = f"the process that {self._what} cannot be started: {error.strerror or error}"
            raise DeviceError(what, fix="free memory or processes") from None
        self._owner = os.getpid()
        return self._process

    def _end(self) -> int | None:
        """End the process in whatever state it is; returns its exit status, None if it had to be killed."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():  # after a fork the process belongs to the parent
            return None
        for pipe in (process.stdin, process.stdout):
            cast("IO[bytes]", pipe).close()
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def _search_path(self) -> list[str]:
        """Folders of the packages that the process imports; MissingPackage if one is not installed."""
        folders = [str(Path(__file__).resolve().parents[1])]
        for name in self._packages:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise MissingPackage(f"the package `{name}` is not installed", fix=f"pip install 'tilec[{self._extra}]'")
            folders.append(str(Path(spec.origin).resolve().parent.parent))
        return list(dict.fromkeys(folders))


def _send_and_receive(process: subprocess.Popen[bytes], request: bytes, deadline: float, limit: int) -> bytes:
    """Send a request and wait for its reply; EOFError, BrokenPipeError or TimeoutError if there is none."""
    send, receive = cast("IO[bytes]", process.stdin).fileno(), cast("IO[bytes]", process.stdout).fileno()
    os.set_blocking(send, False)
    unsent = memoryview(request)
    while unsent:
        _wait(send, selectors.EVENT_WRITE, deadline)
        unsent = unsent[os.write(send, unsent) :]
    size = int.from_bytes(_receive(receive, 8, deadline), "little")
    if size > limit:
        raise EOFError
    return _receive(receive, size, deadline)


def _receive(handle: int, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        _wait(handle, selectors.EVENT_READ, deadline)
        chunk = os.read(handle, min(size - len(received), 1 << 20))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _wait(handle: int, event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(handle, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
