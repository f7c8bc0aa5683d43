"""The checker: one thread that checks files in workers, the most recently changed first, and reports no result for a text that
has changed since.

In: texts of open files as they change. Out: verdicts with the versions of the texts they are based on, passed to `report` in
the checker's thread. A file is checked once nothing has changed for `QUIET` seconds. A change stops a running check and kills
its workers; the stopped check is restarted afterwards and finds what was proven before in the store.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilec.diagnostics.diagnostic import CompileError
from tilec.diagnostics.internal_errors import internal_error
from tilec.project.build.live import PRELOAD, ScopedDiagnostic, Verdict, check_file
from tilec.project.read.models import Constant
from tilec.workers.scheduler import PersistentServer

QUIET: Final = 0.2
"""Seconds without a change before a text is checked, so that typing does not start a check per keystroke."""
LOST: Final = "E0814"
"""Error code for a worker server that is no longer usable."""


@dataclass(frozen=True, slots=True)
class Document:
    """An open file: its text, the editor's version of it, and whether it is checked itself or only imported by others."""

    text: str
    version: int | None
    is_checked: bool


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A verdict on the file at a real path; `versions` are the versions of all open files that it may depend on."""

    path: str
    verdict: Verdict
    versions: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class _Queued:
    """A queued check: not before the time `due`; among those due, the highest `order` is next."""

    due: float
    order: int


class Checker:
    """The constructor starts the thread; `close` ends it and every worker. Paths are real paths."""

    def __init__(
        self, report: Callable[[CheckResult], None], constants: Mapping[str, tuple[Constant, ...]], workers: int
    ) -> None:  # fmt: skip
        self._report = report
        self._constants = constants
        self._workers = workers
        self._condition = threading.Condition()
        self._documents: dict[str, Document] = {}
        self._waiting: dict[str, _Queued] = {}
        self._last_number = 0
        self._files: dict[str, frozenset[str]] = {}
        """Files that each checked file depends on."""
        self._running: str | None = None
        self._closed = False
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._worker_server: PersistentServer | None = None
        self._thread = threading.Thread(target=self._run, name="checker", daemon=True)
        self._thread.start()

    def set(self, path: str, document: Document, *, now: bool = False) -> None:
        """A file was opened or has changed: queues it and its dependents, without delay if `now`."""
        with self._condition:
            self._documents[path] = document
            self._queue(path, now)

    def forget(self, path: str) -> None:
        """A file was closed: the version on disk is used again."""
        with self._condition:
            self._documents.pop(path, None)
            self._queue(path, True)
            self._waiting.pop(path, None)
            self._files.pop(path, None)

    def queue_all(self) -> None:
        """Files on disk have changed: queues all open files."""
        with self._condition:
            for path in [path for path, document in self._documents.items() if document.is_checked]:
                self._queue(path, True)

    def pending(self, path: str) -> bool:
        """Whether a check of the file is queued or running."""
        with self._condition:
            return path == self._running or path in self._waiting

    def close(self) -> None:
        """Ends the thread and all workers, also during a proof, and waits until they have exited."""
        with self._condition:
            self._closed = True
            self._interrupt()
        self._thread.join()
        os.close(self._stop)

    def _queue(self, path: str, now: bool) -> None:
        self._last_number += 1
        queued = _Queued(time.monotonic() + (0.0 if now else QUIET), self._last_number)
        dependents = [other for other, files in self._files.items() if path in files and other != path]
        for other in (*dependents, path):
            if other in self._documents and self._documents[other].is_checked:
                self._waiting[other] = queued
            else:
                self._waiting.pop(other, None)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._running is not None:
            os.eventfd_write(self._stop, 1)
        self._condition.notify_all()

    def _next(self) -> str | None:
        """Waits for the next file that is due; None after `close`."""
        while not self._closed:
            now = time.monotonic()
            due = [path for path, queued in self._waiting.items() if queued.due <= now]
            if due:
                return max(due, key=lambda path: self._waiting[path].order)
            self._condition.wait(min(queued.due for queued in self._waiting.values()) - now if self._waiting else None)
        return None

    def _run(self) -> None:
        try:
            while True:
                with self._condition:
                    path = self._running = self._next()
                    if path is None:
                        return
                    queued = self._waiting.pop(path)
                    documents = dict(self._documents)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._stop)
                complete = self._check(path, documents)
                with self._condition:
                    self._running = None
                    if not complete and path in self._documents:
                        due = max((queued.due, *(waiting.due for waiting in self._waiting.values())))
                        self._waiting.setdefault(path, _Queued(due, queued.order))  # after the change that stopped it
        finally:
            self._drop_workers()

    def _check(self, path: str, documents: Mapping[str, Document]) -> bool:
        """Checks one file and reports; returns whether the check was completed."""
        versions = {name: document.version for name, document in documents.items()}
        texts = {name: document.text for name, document in documents.items()}
        is_new_server = self._worker_server is None
        verdict = None
        try:
            for verdict in check_file(Path(path), texts, self._constants, self._start_server, self._workers, self._stop):
                with self._condition:
                    dependencies = {path, *verdict.files}
                    if self._closed or any(self._documents.get(name) is not documents.get(name) for name in dependencies):
                        return False  # a dependency that was not known before has changed
                    self._files[path] = verdict.files
                self._report(CheckResult(path, verdict, versions))
            return verdict is not None and verdict.complete
        except CompileError as error:
            server_lost = any(item.code == LOST for item in error.diagnostics)
            self._drop_workers()
            if server_lost and not is_new_server:
                return self._check(path, documents)  # the server was killed; the retry starts another
            problems = error.diagnostics
        except Exception as error:
            self._drop_workers()
            problems = (internal_error("the check", error, lambda: None),)
        reported = tuple(ScopedDiagnostic(item) for item in problems)
        self._report(CheckResult(path, Verdict(Path(path).parent, reported, files=frozenset({path}), complete=True), versions))
        return True

    def _start_server(self) -> PersistentServer:
        if self._worker_server is None:
            self._worker_server = PersistentServer(PRELOAD)
        return self._worker_server

    def _drop_workers(self) -> None:
        if self._worker_server is not None:
            self._worker_server.stop()
            self._worker_server = None
