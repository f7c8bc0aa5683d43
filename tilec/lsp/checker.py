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
from tilec.diagnostics.internal_errors import defect
from tilec.project.build.live import PRELOAD, Told, Verdict, judge
from tilec.project.read.models import Constant
from tilec.workers.scheduler import Standing

QUIET: Final = 0.2
"""Seconds without a change before a text is checked, so that typing does not start a check per keystroke."""
LOST: Final = "E0814"
"""Error code for a worker server that is no longer usable."""


@dataclass(frozen=True, slots=True)
class Document:
    """An open file: its text, the editor's version of it, and whether it is checked itself or only imported by others."""

    text: str
    version: int | None
    judged: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict on the file at a real path; `versions` are the versions of all open files that it may depend on."""

    path: str
    verdict: Verdict
    versions: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A queued check: not before the time `due`; among those due, the highest `number` is next."""

    due: float
    number: int


class Checker:
    """The constructor starts the thread; `close` ends it and every worker. Paths are real paths."""

    def __init__(
        self, report: Callable[[Answer], None], constants: Mapping[str, tuple[Constant, ...]], workers: int
    ) -> None:  # fmt: skip
        self._report = report
        self._constants = constants
        self._workers = workers
        self._changed = threading.Condition()
        self._documents: dict[str, Document] = {}
        self._waiting: dict[str, _Turn] = {}
        self._asked = 0
        self._files: dict[str, frozenset[str]] = {}
        """Files that each checked file depends on."""
        self._running: str | None = None
        self._closed = False
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._standing: Standing | None = None
        self._thread = threading.Thread(target=self._run, name="checker", daemon=True)
        self._thread.start()

    def set(self, path: str, document: Document, *, now: bool = False) -> None:
        """A file was opened or has changed: queues it and its dependents, without delay if `now`."""
        with self._changed:
            self._documents[path] = document
            self._ask(path, now)

    def forget(self, path: str) -> None:
        """A file was closed: the version on disk is used again."""
        with self._changed:
            self._documents.pop(path, None)
            self._ask(path, True)
            self._waiting.pop(path, None)
            self._files.pop(path, None)

    def again(self) -> None:
        """Files on disk have changed: queues all open files."""
        with self._changed:
            for path in [path for path, document in self._documents.items() if document.judged]:
                self._ask(path, True)

    def pending(self, path: str) -> bool:
        """Whether a check of the file is queued or running."""
        with self._changed:
            return path == self._running or path in self._waiting

    def close(self) -> None:
        """Ends the thread and all workers, also during a proof, and waits until they have exited."""
        with self._changed:
            self._closed = True
            self._interrupt()
        self._thread.join()
        os.close(self._stop)

    def _ask(self, path: str, now: bool) -> None:
        self._asked += 1
        turn = _Turn(time.monotonic() + (0.0 if now else QUIET), self._asked)
        touched = [other for other, files in self._files.items() if path in files and other != path]
        for other in (*touched, path):
            if other in self._documents and self._documents[other].judged:
                self._waiting[other] = turn
            else:
                self._waiting.pop(other, None)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._running is not None:
            os.eventfd_write(self._stop, 1)
        self._changed.notify_all()

    def _next(self) -> str | None:
        """Waits for the next file that is due; None after `close`."""
        while not self._closed:
            now = time.monotonic()
            due = [path for path, turn in self._waiting.items() if turn.due <= now]
            if due:
                return max(due, key=lambda path: self._waiting[path].number)
            self._changed.wait(min(turn.due for turn in self._waiting.values()) - now if self._waiting else None)
        return None

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    path = self._running = self._next()
                    if path is None:
                        return
                    turn = self._waiting.pop(path)
                    documents = dict(self._documents)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._stop)
                complete = self._judge(path, documents)
                with self._changed:
                    self._running = None
                    if not complete and path in self._documents:
                        after = max((turn.due, *(other.due for other in self._waiting.values())))
                        self._waiting.setdefault(path, _Turn(after, turn.number))  # after the change that stopped it
        finally:
            self._drop_workers()

    def _judge(self, path: str, documents: Mapping[str, Document]) -> bool:
        """Checks one file and reports; returns whether the check was completed."""
        versions = {name: document.version for name, document in documents.items()}
        texts = {name: document.text for name, document in documents.items()}
        fresh = self._standing is None
        verdict = None
        try:
            for verdict in judge(Path(path), texts, self._constants, self._workers_of, self._workers, self._stop):
                with self._changed:
                    read = {path, *verdict.files}
                    if self._closed or any(self._documents.get(name) is not documents.get(name) for name in read):
                        return False  # a dependency that was not known before has changed
                    self._files[path] = verdict.files
                self._report(Answer(path, verdict, versions))
            return verdict is not None and verdict.complete
        except CompileError as error:
            lost = any(item.code == LOST for item in error.diagnostics)
            self._drop_workers()
            if lost and not fresh:
                return self._judge(path, documents)  # the server was killed; the retry starts another
            failed = error.diagnostics
        except Exception as error:
            self._drop_workers()
            failed = (defect("the check", error, lambda: None),)
        told = tuple(Told(item) for item in failed)
        self._report(Answer(path, Verdict(Path(path).parent, told, files=frozenset({path}), complete=True), versions))
        return True

    def _workers_of(self) -> Standing:
        if self._standing is None:
            self._standing = Standing(PRELOAD)
        return self._standing

    def _drop_workers(self) -> None:
        if self._standing is not None:
            self._standing.stop()
            self._standing = None
