"""A server of workers that many runs of one process share: each would start Python, and import the compiler, for its own.

`Lease` is to `tilec.workers.scheduler.run` what a `Server` of its own would be. Runs follow each other; what is left at work
when one ends is killed. Workers see the folder and the environment of the process as they were when the server started.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from tilec.project.driver import BUILD_PRELOAD
from tilec.workers.client import Server

PRELOAD = ("tilec.interpreter", "tilec.project.trial", "tilec.project.worker", "tilec.workers.call", *BUILD_PRELOAD)


class Kept:
    """The server, which starts when the first run asks for workers."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._started = 0
        self._leased = False

    def lease(self, preload: Sequence[str]) -> Lease | Server:
        """The server for one run, whose workers import for themselves what of `preload` it has not; one of its own where
        another run has it, or in another thread, with which a server would end."""
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
        """End the server and its workers."""
        if self._server is not None:
            self._server.stop()


class Lease:
    """A server whose workers are numbered from one, though others were before them."""

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
        """The next message; an empty one where it is of a worker of a run before."""
        message = self._server.receive()
        for what in ("started", "refused", "ended"):
            if what in message:
                number = message[what] - self._before
                return message | {what: number} if number > 0 else {}
        return message

    def stop(self) -> None:
        """Kill the workers of this run that are still there."""
        for number in self._numbers:
            self.kill(number)
        self._kept.given_back()
