"""The parent's end of a server: start it, request workers, receive how they ended, stop it.

In: names of modules that workers need. Out: pipes to workers, and the messages listed in `server`. After `stop` there is no
process and no partial file left. If the parent dies before `stop`, the server cleans up by itself.
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
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.workers import bootstrap
from tilec.workers.death import PARENT_DIED

PACKAGE: Final = Path(startup.__file__).absolute().parent
PATIENCE: Final = 30.0
"""Seconds for a server to kill its workers and exit. If it is killed itself, the operating system ends its workers at once."""
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
    """One server process. CompileError E0814 if it cannot be started."""

    def __init__(self, preload: Sequence[str]) -> None:
        try:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise cannot_start(error.strerror or str(error)) from None
        environment = startup.child_environment()
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers already use every core
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
        request = {"path": startup.safe_path(), "package": str(PACKAGE), "preload": list(preload)}
        with contextlib.suppress(OSError):  # the server has ended; `receive` reports that
            self.control.send(json.dumps(request).encode())

    def start(self, number: int) -> Connection:
        """Request a worker and return the pipe to it, which ends at once if none starts. A message says whether it started."""
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
        """Kill a worker; a message reports its end."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"kill": number}).encode())

    def receive(self) -> dict[str, Any]:
        """The next message. CompileError E0814 if the server has ended."""
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {"failed": f"it ended with {describe(self.process.wait())}"}
        if "failed" in message:
            raise cannot_start(message["failed"])
        return message

    def stop(self) -> None:
        """Stop the server and all of its workers, and wait until they have exited."""
        self.control.close()
        self.process.send_signal(PARENT_DIED)  # ends it at once if it still loads modules: it then has no workers
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def cannot_start(reason: str) -> CompileError:
    """E0814."""
    hint = "free memory, processes or open files, raise their limits (`ulimit -a`), or take fewer `--jobs`"
    return CompileError(Diagnostic("E0814", f"worker processes cannot be started: {reason}", hint=hint))


def describe(status: int) -> str:
    """An exit status as text; the signal's name if it is negative."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit status {status}"
