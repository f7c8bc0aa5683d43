"""The parent's end of a server: start it, ask it for workers, hear how they ended, end it.

In: names of modules that workers need. Out: pipes to workers, and messages as `server` lists them. After `stop` no process is
left and no file half written; where the parent cannot call it any more, the server does the same by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final

from tilec import startup
from tilec.diagnostics import CompileError, Diagnostic
from tilec.workers import bootstrap
from tilec.workers.death import PARENT_DIED

PACKAGE: Final = Path(startup.__file__).absolute().parent
PATIENCE: Final = 30.0
"""Seconds that a server has to kill its workers and end; the kernel ends them at once if it is killed itself."""
_INHERITED: Final = (
    "isolated",
    "ignore_environment",
    "no_user_site",
    "no_site",
    "dont_write_bytecode",
    "dev_mode",
    "utf8_mode",
)
_OPTIONS: Final = ("-I", "-E", "-s", "-S", "-B", "-Xdev", "-Xutf8")


class Server:
    """One server process. CompileError E0814 where it cannot be started."""

    def __init__(self, preload: Sequence[str]) -> None:
        try:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise cannot_start(error.strerror or str(error)) from None
        environment = startup.child_environment()
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # there is a worker per core
        options = [option for name, option in zip(_INHERITED, _OPTIONS, strict=True) if getattr(sys.flags, name)]
        script = [bootstrap.__file__, str(theirs.fileno()), str(os.getpid())]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            self.process = subprocess.Popen(
                [sys.executable, *options, "-P", *script], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )
        except OSError as error:
            self.control.close()
            raise cannot_start(error.strerror or str(error)) from None
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        asked = {"path": startup.safe_path(), "package": str(PACKAGE), "preload": list(preload)}
        with contextlib.suppress(OSError):  # it has ended, as `receive` will tell
            self.control.send(json.dumps(asked).encode())

    def start(self, number: int) -> Connection:
        """Ask for a worker; the pipe to it, which ends at once where there is none. Whether it started is a message."""
        try:
            ours, theirs = Pipe()
        except OSError as error:
            raise cannot_start(error.strerror or str(error)) from None
        try:
            socket.send_fds(self.control, [json.dumps({"start": number}).encode()], [theirs.fileno()])
        except OSError:
            pass
        finally:
            theirs.close()
        return ours

    def kill(self, number: int) -> None:
        """End a worker at what it does; that it has ended is a message."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"kill": number}).encode())

    def receive(self) -> dict[str, Any]:
        """The next message. CompileError E0814 where the server has ended."""
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {"failed": f"it ended with {describe(self.process.wait())}"}
        if "failed" in message:
            raise cannot_start(message["failed"])
        return message

    def stop(self) -> None:
        """End the server and all of its workers, and wait until they are gone."""
        self.control.close()
        self.process.send_signal(PARENT_DIED)  # while it loads modules it has no workers, and this ends it at once
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def cannot_start(why: str) -> CompileError:
    """E0814."""
    hint = "free memory, processes or open files, raise their limits (`ulimit -a`), or take fewer `--jobs`"
    return CompileError(Diagnostic("E0814", f"worker processes cannot be started: {why}", hint=hint))


def describe(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit status {status}"
