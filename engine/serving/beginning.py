"""What a server does before it imports what it speaks HTTP with: takes its address, and starts the engine's process.

The engine's process imports its modules and loads the model while the other one imports its own, so that neither waits for the
other. Only the standard library is imported here.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from engine.errors import UsageError
from engine.phases import PHASES

WAKE: Final = "wake"
"""Argument of the engine's process if it will use one GPU, which it then wakes while it imports."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The engine's process, and this end of the socket that it reads messages from (`engine.serving.protocol`)."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    module: ClassVar[str] = f"{__package__}.worker"
    """What the process runs."""

    @classmethod
    def start(cls, *, wake: bool) -> Self:
        """Start it; `wake`: it will use one GPU."""
        ours, its = socket.socketpair()
        with its:
            safe = ["-P"] if sys.flags.safe_path else []
            try:
                process = subprocess.Popen(
                    [sys.executable, *safe, "-m", cls.module, str(its.fileno()), *([WAKE] if wake else [])],
                    pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    def tell(self, message: bytes) -> None:
        """Send it its first message. If it has ended, whoever reads its messages finds that out."""
        with suppress(ConnectionError):
            self.connection.sendall(message)

    def end(self) -> None:
        """Kill it, whatever it does: it has nothing to save. Idempotent."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def engine_started(*, wake: bool) -> Generator[EngineProcess]:
    """An engine's process that ends with the block at the latest."""
    engine = EngineProcess.start(wake=wake)
    PHASES.ended("engine_begun")
    try:
        yield engine
    finally:
        engine.end()


def bound(host: str, port: int) -> socket.socket:
    """A socket with the address; UsageError if it cannot be had."""
    found: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        what = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise UsageError(what, fix="give another --host or --port") from None
    return found
