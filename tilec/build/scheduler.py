"""Run tasks in worker processes that load the compilers once, and survive the death of a worker.

Workers are forked from one clean server process that has the compilers imported. A worker that dies (LLVM aborts its process)
costs the task it was at: the owner is told (`Crashed`), a new worker takes the next. Leaving `run` early, by Ctrl-C too,
kills the workers; products are written atomically, so nothing is left half-written.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

Emit = Callable[[Any], None]
Runner = Callable[[Any, Emit], None]
"""Runs one task in a worker and reports through `Emit`; must be importable by name there."""


@dataclass(frozen=True, slots=True)
class Report:
    """Something the task at `index` said."""

    index: int
    message: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """The task at `index` is done."""

    index: int


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker died at the task at `index`, or the task raised what it must not: `text` says how."""

    index: int
    text: str


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: int | None = None


def serve(pipe: Connection, run: Runner) -> None:
    """Main of a worker: tasks in, reports out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                run(task, lambda message: pipe.send(("report", message)))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception:
                pipe.send(("crash", traceback.format_exc()))
            else:
                pipe.send(("done", None))


def run(
    tasks: Sequence[Any], runner: Runner, workers: int, preload: Sequence[str] = ()
) -> Iterator[Report | Finished | Crashed]:
    """Run `tasks` on up to `workers` processes, in order of start; yields what they report as it comes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tilec.build.scheduler", *preload])
    waiting = deque(range(len(tasks)))
    pool: list[_Worker] = []

    def start() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, runner), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def feed(worker: _Worker) -> None:
        worker.task = waiting.popleft() if waiting else None
        if worker.task is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.pipe.send(tasks[worker.task])

    try:
        for _ in range(min(max(workers, 1), len(tasks))):
            pool.append(start())
            feed(pool[-1])
        while busy := {worker.pipe: worker for worker in pool if worker.task is not None}:
            for ready in wait(list(busy)):
                worker = busy[ready]  # pyright: ignore[reportArgumentType]
                task = worker.task
                assert task is not None
                try:
                    kind, message = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join(5)
                    pool.remove(worker)
                    worker.pipe.close()
                    if waiting:
                        pool.append(start())
                        feed(pool[-1])
                    yield Crashed(task, _death(worker.process.exitcode))
                    continue
                if kind == "report":
                    yield Report(task, message)
                else:
                    feed(worker)
                    yield Finished(task) if kind == "done" else Crashed(task, message)
    finally:
        for worker in pool:
            if worker.task is None:
                worker.pipe.close()
            else:
                worker.process.kill()
        for worker in pool:
            worker.process.join(5)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
