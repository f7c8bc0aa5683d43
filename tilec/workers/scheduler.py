"""Runs tasks in worker processes and survives the death of a worker.

In: tasks, and the function that runs one. Out: the tasks' reports as they arrive, and how each task ended. If a worker dies
(LLVM aborts its process, or it exceeds a budget), only its current task is lost: `Crashed` is yielded, and a new worker starts
with the next task. Leaving `run` early, also by Ctrl-C, kills the workers and leaves no partial file. Close the generator
(`contextlib.closing`) to do that at once.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from tilec.workers.client import Server, cannot_start, describe
from tilec.workers.worker import Runner

MOST_SECONDS: Final = 86400.0
"""Longest single wait for a message: the system call has a bounded timeout in milliseconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """A message that the task at `index` emitted."""

    index: int
    message: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """The task at `index` is done."""

    index: int


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended: its exit `status` (negative: a signal), its stage (`what`) and that stage's last `note`, and the
    budget that it exceeded (`over`: cpu, still, memory, or empty) with `used` and `limit` in seconds or bytes."""

    status: int
    what: str = ""
    note: str = ""
    over: str = ""
    used: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker of the task at `index` died (see `death`), or the task raised an unexpected exception; `text` describes it."""

    index: int
    text: str
    death: Death | None = None


@dataclass(slots=True)
class _Worker:
    number: int
    pipe: Connection
    task: int | None = None


def run(
    tasks: Sequence[Any], runner: Runner, workers: int, preload: Sequence[str] = (),
    notify: Callable[[str], None] | None = None, *, deadline: float = math.inf,
) -> Generator[Report | Finished | Crashed]:  # fmt: skip
    """Run `tasks` on up to `workers` processes and start them in order. Yields reports as they arrive; messages for a person go
    to `notify`. `tasks[i]` is evaluated when a worker is free for it. At the `deadline` (of `time.monotonic`) it kills running
    tasks and ends. CompileError E0814 if no process can be started."""
    if not tasks:
        return
    server = Server([runner.__module__, *preload])
    try:
        yield from _Pool(server, tasks, runner, notify or (lambda line: None)).run(min(max(workers, 1), len(tasks)), deadline)
    finally:
        server.stop()


class PersistentServer:
    """A server that serves many runs, one at a time. It ends when the thread that created it ends."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._server = Server(preload)
        self._started = 0

    def run(
        self, tasks: Sequence[Any], runner: Runner, workers: int = 1, stop: int | None = None
    ) -> Generator[Report | Finished | Crashed]:  # fmt: skip
        """`run` on up to `workers` processes. It ends early when the descriptor `stop` becomes readable or the generator is
        closed, and then kills its workers. After a CompileError E0814 the server must be stopped."""
        pool = _Pool(self._server, tasks, runner, lambda line: None, self._started)
        try:
            yield from pool.run(min(workers, len(tasks)), math.inf, stop)
        finally:
            self._started = pool.started
            pool.kill()

    def stop(self) -> None:
        """End the server and its workers."""
        self._server.stop()


class _Pool:
    def __init__(
        self, server: Server, tasks: Sequence[Any], runner: Runner, notify: Callable[[str], None], started: int = 0
    ) -> None:
        self.server, self.tasks, self.runner, self.notify = server, tasks, runner, notify
        self.waiting = deque(range(len(tasks)))
        self.workers: dict[int, _Worker] = {}
        self.started = started
        """Number of the last worker. Numbers are never reused, since the server also reports the end of earlier workers."""

    def run(self, workers: int, deadline: float, stop: int | None = None) -> Generator[Report | Finished | Crashed]:
        for _ in range(workers):
            self.start()
        stops = [] if stop is None else [stop]
        while busy := {worker.pipe: worker for worker in self.workers.values() if worker.task is not None}:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return
            for ready in wait(
                [*stops, self.server.control, *busy], None if math.isinf(seconds) else min(seconds, MOST_SECONDS)
            ):
                if ready == stop:
                    return
                worker = busy.get(ready)  # pyright: ignore[reportArgumentType, reportCallIssue]
                if worker is None:
                    yield from self.hear()
                    break  # the message can concern other ready workers
                with contextlib.suppress(EOFError, OSError):
                    yield from self.take(worker)
                    continue
                while worker.number in self.workers:  # its pipe has ended: the server reports why
                    yield from self.hear()

    def kill(self) -> None:
        """Kill the workers that are still running a task."""
        for worker in self.workers.values():
            self.server.kill(worker.number)
            worker.pipe.close()
        self.workers.clear()

    def start(self) -> None:
        """Start a worker for the next task."""
        self.started += 1
        worker = _Worker(self.started, self.server.start(self.started))
        self.workers[worker.number] = worker
        self.give(worker, self.runner)
        self.feed(worker)

    def feed(self, worker: _Worker) -> None:
        worker.task = self.waiting.popleft() if self.waiting else None
        if worker.task is not None:
            self.give(worker, self.tasks[worker.task])
        else:
            worker.pipe.close()
            self.workers.pop(worker.number)

    def give(self, worker: _Worker, thing: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server reports why
            worker.pipe.send(thing)

    def take(self, worker: _Worker, *, more: bool = True) -> Generator[Report | Finished | Crashed]:
        """Handle one message of a worker. With `more` it gets another task after a finished one. EOFError if its pipe ended."""
        kind, message = worker.pipe.recv()
        task = worker.task
        assert task is not None
        if kind == "say":
            self.notify(message)
        elif kind == "report":
            yield Report(task, message)
        else:
            worker.task = None
            if more:
                self.feed(worker)
            yield Finished(task) if kind == "done" else Crashed(task, message)

    def hear(self) -> Generator[Report | Finished | Crashed]:
        """Handle one message of the server."""
        message = self.server.receive()
        if "refused" in message:
            worker = self.workers.pop(message["refused"])
            worker.pipe.close()
            if not self.workers:
                raise cannot_start(message["why"])
            assert worker.task is not None
            self.waiting.appendleft(worker.task)  # another worker will run it
        elif message.get("ended") in self.workers:
            worker = self.workers[message["ended"]]
            with contextlib.suppress(EOFError, OSError):
                while True:  # messages that it sent before it ended
                    yield from self.take(worker, more=False)
            self.workers.pop(worker.number)
            worker.pipe.close()
            if self.waiting:
                self.start()
            if worker.task is not None:
                death = Death(*(message[name] for name in ("status", "what", "note", "over", "used", "limit")))
                text = f"killed by {describe(death.status)}" if death.status < 0 else describe(death.status)
                yield Crashed(worker.task, text, death)
