"""Client of the process that renders chat templates (`engine.text.template_worker`); one is started on first use.

Returns the reply to a request, or raises a `TemplateEnded` that names the exceeded limit. The process shares only two pipes
with this one: its working directory is the root, its module search path is explicit, it opens no file of a model. It ends when
the pipes close, however this process ends, and when a template exceeds its limits; the next request starts a new one.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Final, cast

from engine.errors import DeviceError, MissingPackage
from engine.text import template_worker
from engine.text.template_worker import CPU_SECONDS, MEMORY_BYTES, OUTPUT_LIMIT

WALL_SECONDS: Final = 60.0
"""Seconds to wait for a reply: start of the process plus the processor time of a request, on a busy machine."""

REPLY_LIMIT: Final = 32 * OUTPUT_LIMIT
"""Maximum bytes of a reply: two texts with up to 12 bytes per character."""

INHERITED_VARIABLES: Final = ("TZ", "LD_LIBRARY_PATH")
"""Environment variables that the process inherits."""

PACKAGES: Final = ("jinja2", "markupsafe")


class TemplateEnded(Exception):
    """The process exited or was killed before it replied; `str()` is the reason."""


class TemplateProcess:
    """The process, started on the first request. Thread-safe: requests are serialized."""

    def __init__(self) -> None:
        self.cpu_seconds = CPU_SECONDS
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Start the process unless it is running; does not wait for it."""
        with self._lock:
            self._running()

    def send_request(self, request: dict[str, Any], *, wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The reply to a request; TemplateEnded if there is none."""
        text = json.dumps(request | {"cpu_seconds": self.cpu_seconds}).encode()
        with self._lock:
            process = self._running()
            try:
                reply = _send_and_receive(process, len(text).to_bytes(8, "little") + text, time.monotonic() + wall_seconds)
            except BaseException as error:  # a late reply must not be read as the reply to the next request
                status = self._end()
                if isinstance(error, EOFError | BrokenPipeError):
                    raise TemplateEnded(_exit_reason(status, self.cpu_seconds)) from None
                if isinstance(error, TimeoutError):
                    raise TemplateEnded(f"took over {wall_seconds:g} seconds") from None
                raise
        return cast("dict[str, Any]", json.loads(reply))

    def close(self) -> None:
        """Kill the process; idempotent. The next request starts a new one."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()  # it has no state to save
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._process is not None and self._owner == os.getpid():
            self._end()
        command = [sys.executable, "-I", "-S", str(Path(template_worker.__file__).resolve()), *_search_path()]
        environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env=environment,
                process_group=0,  # so that Ctrl-C at the terminal reaches only this process, which ends it
            )  # fmt: skip
        except OSError as error:
            what = f"the process that renders chat templates cannot be started: {error.strerror or error}"
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


def _search_path() -> list[str]:
    """Folders of the packages that the process imports; MissingPackage if one is not installed."""
    folders = [str(Path(__file__).resolve().parents[2])]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise MissingPackage(f"the package `{name}` is not installed", fix="pip install 'tilec[engine]'")
        folders.append(str(Path(spec.origin).resolve().parent.parent))
    return list(dict.fromkeys(folders))


def _send_and_receive(process: subprocess.Popen[bytes], request: bytes, deadline: float) -> bytes:
    """Send a request and wait for its reply; EOFError, BrokenPipeError or TimeoutError if there is none."""
    send, receive = cast("IO[bytes]", process.stdin).fileno(), cast("IO[bytes]", process.stdout).fileno()
    os.set_blocking(send, False)
    unsent = memoryview(request)
    while unsent:
        _wait(send, selectors.EVENT_WRITE, deadline)
        unsent = unsent[os.write(send, unsent) :]
    size = int.from_bytes(_receive(receive, 8, deadline), "little")
    if size > REPLY_LIMIT:
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


def _exit_reason(status: int | None, cpu_seconds: float) -> str:
    """What an exit status of the process says about the template."""
    if status == -signal.SIGPROF:
        return f"took over {cpu_seconds:g} seconds"
    if status == -signal.SIGSEGV:
        return "nests too deeply"
    if status == -signal.SIGKILL:
        return f"was ended, perhaps for want of memory (its limit is {MEMORY_BYTES >> 20} MiB)"
    return f"ended the process that renders it (status {status})"


SHARED: Final = TemplateProcess()
"""The process shared by this program."""

atexit.register(SHARED.close)
