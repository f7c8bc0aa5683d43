"""The checker: one thread that judges files in workers, the one changed last first, and never one that has changed since.

In: texts of open files as they change. Out: verdicts, each with the versions of the texts that it is of, handed to `report` in
the checker's thread. A change is judged once nothing has changed for `QUIET` seconds; it stops what runs, and kills the workers
that are at it, and what was stopped is taken up again afterwards: what was proven by then is in the store.
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

from tilec.defects import defect
from tilec.diagnostics import CompileError
from tilec.project.live import PRELOAD, Told, Verdict, judge
from tilec.project.models import Constant
from tilec.workers.scheduler import Standing

QUIET: Final = 0.2
"""Seconds without a change after which a text is judged: a person who types on is not done yet."""
LOST: Final = "E0814"
"""Code of a server of workers that cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Document:
    """An open file: its text, the editor's version of it, and whether it is judged or only read by others."""

    text: str
    version: int | None
    judged: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict on the file at a real path; `versions` are those of all open files that it may rest on."""

    path: str
    verdict: Verdict
    versions: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A file that is to be judged: not before the time `due`, and of those that are due the one with the highest `number`."""

    due: float
    number: int


class Checker:
    """Starts its thread; `close` ends it, and with it every worker. Paths are real paths."""

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
        """What each file that was judged depends on."""
        self._running: str | None = None
        self._closed = False
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._standing: Standing | None = None
        self._thread = threading.Thread(target=self._run, name="checker", daemon=True)
        self._thread.start()

    def set(self, path: str, document: Document, *, now: bool = False) -> None:
        """A file was opened or has changed: it and what depends on it will be judged, without a wait if `now`."""
        with self._changed:
            self._documents[path] = document
            self._ask(path, now)

    def forget(self, path: str) -> None:
        """A file was closed: what the disk has counts again."""
        with self._changed:
            self._documents.pop(path, None)
            self._ask(path, True)
            self._waiting.pop(path, None)
            self._files.pop(path, None)

    def again(self) -> None:
        """Something on the disk has changed: judge all open files."""
        with self._changed:
            for path in [path for path, document in self._documents.items() if document.judged]:
                self._ask(path, True)

    def pending(self, path: str) -> bool:
        """Whether a file is still to be judged, or is being judged."""
        with self._changed:
            return path == self._running or path in self._waiting

    def close(self) -> None:
        """End the thread and all workers, in the midst of a proof too, and wait until they are gone."""
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
        """The file to judge, once one is due; None at the end."""
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
                        self._waiting.setdefault(path, _Turn(after, turn.number))  # behind what it was stopped for
        finally:
            self._drop_workers()

    def _judge(self, path: str, documents: Mapping[str, Document]) -> bool:
        """Judge one file and report; whether that came to its end."""
        versions = {name: document.version for name, document in documents.items()}
        texts = {name: document.text for name, document in documents.items()}
        fresh = self._standing is None
        verdict = None
        try:
            for verdict in judge(Path(path), texts, self._constants, self._workers_of, self._workers, self._stop):
                with self._changed:
                    read = {path, *verdict.files}
                    if self._closed or any(self._documents.get(name) is not documents.get(name) for name in read):
                        return False  # what it is of has changed, and nobody knew that it is of that
                    self._files[path] = verdict.files
                self._report(Answer(path, verdict, versions))
            return verdict is not None and verdict.complete
        except CompileError as error:
            lost = any(item.code == LOST for item in error.diagnostics)
            self._drop_workers()
            if lost and not fresh:
                return self._judge(path, documents)  # the server was killed, and there will be another
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
