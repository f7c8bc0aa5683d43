"""A server of workers that successive runs of one process share, so that not each starts Python and imports the compiler.

`Lease` replaces a `Server` of its own in `tilec.workers.scheduler.run`. Runs are sequential; workers still running when one
ends are killed. Workers have the current folder and the environment of the process as of the server's start.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from tilec.project.build.driver import BUILD_PRELOAD
from tilec.workers.client import Server

PRELOAD = ("tilec.interpreter", "tilec.project.trial.trial", "tilec.project.build.worker", "tilec.workers.call", *BUILD_PRELOAD)


class Kept:
    """The server, which starts when the first run asks for workers."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._started = 0
        self._leased = False

    def lease(self, preload: Sequence[str]) -> Lease | Server:
        """The server for one run, whose workers import the rest of `preload` themselves. Returns a new server if another run
        uses this one, or in another thread, since a server ends with the thread that started it."""
        if self._leased or threading.current_thread() is not threading.main_thread():
            return Server(preload)
        if self._server is None:
            self._server = Server(PRELOAD)
        self._leased = True
        return Lease(self, self._server, self._started)

    def started(self, number: int) -> None:
        self._started = number

    def given_back(self) -> None:
        self._leased = False

    def stop(self) -> None:
        """Ends the server and its workers."""
        if self._server is not None:
            self._server.stop()


class Lease:
    """A server whose workers are numbered from one, although earlier runs had others."""

    def __init__(self, kept: Kept, server: Server, before: int) -> None:
        self._kept, self._server, self._before = kept, server, before
        self._numbers: set[int] = set()
        self.control = server.control

    def start(self, number: int) -> Connection:
        self._numbers.add(number)
        self._kept.started(self._before + number)
        return self._server.start(self._before + number)

    def kill(self, number: int) -> None:
        self._server.kill(self._before + number)

    def receive(self) -> dict[str, Any]:
        """The next message; an empty one if it is from a worker of an earlier run."""
        message = self._server.receive()
        for what in ("started", "refused", "ended"):
            if what in message:
                number = message[what] - self._before
                return message | {what: number} if number > 0 else {}
        return message

    def stop(self) -> None:
        """Kills the workers of this run that are still alive."""
        for number in self._numbers:
            self.kill(number)
        self._kept.given_back()
