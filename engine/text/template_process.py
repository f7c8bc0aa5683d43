"""Asks the process that renders chat templates (`engine.text.template_worker`); there is one, started when it is first needed.

A request goes in, a reply comes out, or a `TemplateEnded` that says what limit the template ran into. The process shares
nothing with this one but two pipes: its folder is the root, its search path is given, it opens no file of a model. It ends when
the pipes close, however this process ends, and after a template that its limits have ended; the next request starts another.
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
"""Seconds to wait for a reply: the start of the process and the processor time of a request, on a machine that is busy."""

REPLY_LIMIT: Final = 32 * OUTPUT_LIMIT
"""Bytes of a reply at most: two texts, each character up to 12 bytes."""

KEPT_VARIABLES: Final = ("TZ", "LD_LIBRARY_PATH")
"""What the process has of the environment."""

PACKAGES: Final = ("jinja2", "markupsafe")


class TemplateEnded(Exception):
    """The process ended, or was ended, before it replied; `str()` says why."""


class TemplateProcess:
    """The process, started at the first request. Threads take turns."""

    def __init__(self) -> None:
        self.cpu_seconds = CPU_SECONDS
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Start the process, if it is not running, without waiting for it."""
        with self._lock:
            self._running()

    def ask(self, request: dict[str, Any], *, wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The reply to a request; TemplateEnded where there is none."""
        text = json.dumps(request | {"cpu_seconds": self.cpu_seconds}).encode()
        with self._lock:
            process = self._running()
            try:
                reply = _exchange(process, len(text).to_bytes(8, "little") + text, time.monotonic() + wall_seconds)
            except BaseException as error:  # a reply that comes after all must not answer the next request
                status = self._end()
                if isinstance(error, EOFError | BrokenPipeError):
                    raise TemplateEnded(_why(status, self.cpu_seconds)) from None
                if isinstance(error, TimeoutError):
                    raise TemplateEnded(f"took over {wall_seconds:g} seconds") from None
                raise
        return cast("dict[str, Any]", json.loads(reply))

    def close(self) -> None:
        """End the process; idempotent, and not the end: another request starts another."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()  # it has nothing to save
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._process is not None and self._owner == os.getpid():
            self._end()
        command = [sys.executable, "-I", "-S", str(Path(template_worker.__file__).resolve()), *_search_path()]
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env=environment,
                process_group=0,  # so that Ctrl-C at the terminal ends it through this process alone
            )  # fmt: skip
        except OSError as error:
            what = f"the process that renders chat templates cannot be started: {error.strerror or error}"
            raise DeviceError(what, fix="free memory or processes") from None
        self._owner = os.getpid()
        return self._process

    def _end(self) -> int | None:
        """End the process, however it is; its status."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():  # after a fork it is the parent's
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
    """Folders of the packages that the process imports; MissingPackage where one is not installed."""
    found = [str(Path(__file__).resolve().parents[2])]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise MissingPackage(f"the package `{name}` is not installed", fix="pip install 'tilec[engine]'")
        found.append(str(Path(spec.origin).resolve().parent.parent))
    return list(dict.fromkeys(found))


def _exchange(process: subprocess.Popen[bytes], request: bytes, deadline: float) -> bytes:
    """Send a request and wait for its reply; EOFError, BrokenPipeError or TimeoutError where it does not come."""
    send, receive = cast("IO[bytes]", process.stdin).fileno(), cast("IO[bytes]", process.stdout).fileno()
    os.set_blocking(send, False)
    rest = memoryview(request)
    while rest:
        _wait(send, selectors.EVENT_WRITE, deadline)
        rest = rest[os.write(send, rest) :]
    size = int.from_bytes(_receive(receive, 8, deadline), "little")
    if size > REPLY_LIMIT:
        raise EOFError
    return _receive(receive, size, deadline)


def _receive(handle: int, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _wait(handle, selectors.EVENT_READ, deadline)
        part = os.read(handle, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _wait(handle: int, event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(handle, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError


def _why(status: int | None, cpu_seconds: float) -> str:
    """What a status of the process says about the template."""
    if status == -signal.SIGPROF:
        return f"took over {cpu_seconds:g} seconds"
    if status == -signal.SIGSEGV:
        return "nests too deeply"
    if status == -signal.SIGKILL:
        return f"was ended, perhaps for want of memory (its limit is {MEMORY_BYTES >> 20} MiB)"
    return f"ended the process that renders it (status {status})"


SHARED: Final = TemplateProcess()
"""The process of this program."""

atexit.register(SHARED.close)
