"""Tasks on the workers of a farm: who gets which, what is given out again, who is left out, what is made here.

In: a client of Dask's, and tasks. Out: what the tasks report. Each worker is asked who it is before it gets work; one whose
tilec or toolchain is another is named and left out, and one that comes later refuses by itself. What a worker gives is
judged before it is used (`tilec.project.answers`). A task whose worker is lost goes to another, one that takes much longer
than the others is given out twice, and the first good answer counts: all of them are the same bytes. A worker with `BROKEN`
answers that cannot be used gets no more work. What no worker does is made here, and so is what one refuses: an error of a
kernel is never a worker's word alone. A scheduler that is silent for `SILENT` seconds ends the build.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import queue
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tilec.cache import Store
from tilec.cache.products import put
from tilec.cache.remote.guard import within
from tilec.diagnostics import CompileError, Diagnostic
from tilec.pipeline import artifact_fields
from tilec.project import node
from tilec.project.answers import Expected, Kind, judge, opened
from tilec.project.node import LARGEST_SOURCE, Answer, Identity, Parcel
from tilec.project.worker import Outcome, Task
from tilec.workers.scheduler import Crashed, Finished, Report
from tilec.workers.scheduler import run as run_here
from tilec.workers.verdict import printable
from tilec.workers.worker import Runner

SILENT: Final = 20.0
"""Seconds that the scheduler may take for an answer."""
DESCRIBE: Final = 60.0
"""Seconds that workers may take to say who they are: the first time they read their toolchain."""
ALONE: Final = 60.0
"""Seconds that a build waits for a worker where none is left."""
LOOK: Final = 1.0
"""Seconds between looks at who is there."""
AHEAD: Final = 2
"""Tasks given out for each thread of the farm, so that none waits for the next."""
SLOW: Final = 3.0
"""A task that takes so many times as long as the median is given out again."""
SLOWEST: Final = 10.0
"""Seconds below which no task is slow."""
TRIES: Final = 5
"""How often a task is given out before it is made here."""
BROKEN: Final = 3
"""Answers of a worker that cannot be used, after which it gets no more work."""


def unreachable(address: str, why: str) -> CompileError:
    hint = "start it (`dask scheduler`, `dask worker`), or build here: leave `--on` out"
    return CompileError(Diagnostic("E0753", f"the farm at `{address}` cannot be used: {printable(why)}", hint=hint))


@dataclass(slots=True)
class _Given:
    """A task that is out: its futures with their workers, when it was first given out, and how often."""

    task: Task
    data: bytes
    since: float
    futures: dict[Any, str] = field(default_factory=dict[Any, str])
    tries: int = 0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Workers whose answers cannot be used, and why."""


class Farm:
    """One build on a farm: `run`, then `rest`."""

    def __init__(
        self, client: Any, address: str, store: Store, tasks: Sequence[Any], runner: Runner, preload: tuple[str, ...],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.client, self.address, self.store, self.tasks = client, address, store, tasks
        self.runner, self.preload, self.say = runner, preload, say
        self.waiting = deque(range(len(tasks)))
        self.out: dict[int, _Given] = {}
        self.here: dict[int, str] = {}
        """Tasks that are made here, and why."""
        self.answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.expected = Expected(runner)
        self.me: Identity | None = None
        self.threads: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.strikes: Counter[str] = Counter()
        self.spent: list[float] = []
        self.alone = self.heard = time.monotonic()
        self.looked = 0.0

    def run(self) -> Generator[Report | Finished | Crashed]:
        """What the farm makes."""
        while self.waiting or self.out:
            if time.monotonic() - self.looked > LOOK:
                self.look()
            while self.waiting and len(self.out) < AHEAD * sum(self.threads.values()):
                yield from self.give(self.waiting.popleft())
            try:
                index, future = self.answers.get(timeout=LOOK)
            except queue.Empty:
                continue
            yield from self.take(index, future)

    def rest(self, workers: int) -> Generator[Report | Finished | Crashed]:
        """What the farm does not make, or refuses, made here."""
        if self.here:
            order, why = list(self.here), next(iter(self.here.values()))
            self.say(f"{len(order)} of {len(self.tasks)} tasks are made here, as what the farm gives is not used: {why}")
            tasks = [self.tasks[index] for index in order]
            with contextlib.closing(run_here(tasks, self.runner, workers, self.preload, self.say)) as events:
                for event in events:
                    yield replace(event, index=order[event.index])

    def ask_scheduler(self) -> dict[str, int]:
        """Threads by worker. CompileError E0753 where the scheduler is silent, or lost."""
        try:
            found: dict[str, Any] = within(SILENT, lambda: self.client.scheduler_info(n_workers=-1)["workers"], "farm")
            here = {str(name): int(item["nthreads"]) for name, item in found.items()}
            status: str = self.client.status
        except TimeoutError:
            raise unreachable(self.address, f"its scheduler was silent for {SILENT:g} s") from None
        except Exception as error:
            raise unreachable(self.address, str(error) or type(error).__name__) from None
        now = time.monotonic()
        if status == "running":
            self.heard = now
        elif status != "connecting" or now - self.heard > SILENT:
            raise unreachable(self.address, "the connection was lost")
        return here

    def look(self) -> None:
        """Who is there; those that are new say who they are. CompileError E0753 where nobody has been there for `ALONE`."""
        here = self.ask_scheduler()
        self.looked = time.monotonic()
        fresh = [name for name in here if name not in self.threads and name not in self.refused]
        if fresh and self.me is not None:
            self.ask(fresh)
        self.threads = {name: count for name, count in here.items() if name not in self.refused}
        if self.threads:
            self.alone = self.looked
            self.move()
        elif here and self.strikes and self.refused.keys() >= here.keys():  # those that could work are broken
            for index in [*self.out, *self.waiting]:
                self.make_here(index, "no worker is left")
            self.waiting.clear()
        elif self.looked - self.alone > ALONE or (self.refused and self.refused.keys() >= here.keys() and here):
            why = "; ".join(f"{name} {text}" for name, text in self.refused.items()) or "it has no workers"
            raise unreachable(self.address, f"no worker is left: {why}" if self.refused else why)
        self.double()

    def ask(self, names: list[str]) -> None:
        """Leave out those whose tilec or toolchain is another."""
        assert self.me is not None
        asked = {name: self.client.submit(node.describe, workers=[name], pure=False, retries=0) for name in names}
        start = looked = time.monotonic()
        while any(future.status == "pending" for future in asked.values()):
            now = time.monotonic()
            if now - start > DESCRIBE:
                break
            if now - looked > LOOK:
                looked = now
                self.ask_scheduler()
            time.sleep(0.02)
        for name, future in asked.items():
            if why := _stranger(self.me, future):
                self.refuse(name, why)

    def refuse(self, name: str, why: str) -> None:
        """Give a worker no work."""
        if name not in self.refused:
            self.say(f"the worker {name} is not used: it {why}")
        self.refused[name] = why
        self.threads.pop(name, None)

    def strike(self, name: str, why: str) -> None:
        """A worker gave what cannot be used; one that does so again and again is left out."""
        self.strikes[name] += 1
        if self.strikes[name] >= BROKEN:
            self.refuse(name, f"gave {BROKEN} answers that cannot be used, the last: {why}")

    def give(self, index: int) -> Generator[Finished]:
        """Give a task out, for the first time."""
        task: Task = self.tasks[index]
        if not task.targets:  # another builder makes all of it
            yield Finished(index)
            return
        if self.me is None:
            self.me = Identity(task.request.compiler, task.request.toolchain)
            self.ask(list(self.threads))
        parcel = Parcel(replace(task, remote=None), _files(task), self.runner, self.preload)
        self.expected.begin(index, task)
        self.out[index] = _Given(task, node.framed(parcel), time.monotonic())
        self.submit(index)

    def submit(self, index: int) -> None:
        """One future more for a task, on the worker with the least to do of those that did not fail at it; where there are
        workers and all of them did, or it was given out `TRIES` times, it is made here."""
        given = self.out[index]
        names = [name for name in self.threads if name not in given.failed and name not in given.futures.values()]
        if given.tries >= TRIES or (self.threads and not names and not given.futures):
            self.make_here(index, next(iter(given.failed.values()), f"given out {given.tries} times, its worker was lost"))
        elif names:
            load = Counter(name for other in self.out.values() for name in other.futures.values())
            name = min(names, key=lambda name: load[name] / self.threads[name])
            given.tries += 1
            future = self.client.submit(node.perform, self.me, given.data, pure=False, workers=[name], retries=0)
            given.futures[future] = name
            future.add_done_callback(functools.partial(self.done, index))

    def make_here(self, index: int, why: str) -> None:
        """Leave a task to this machine."""
        given = self.out.pop(index, None)
        for future in given.futures if given is not None else ():
            future.cancel()
        self.here[index] = why

    def done(self, index: int, future: Any) -> None:
        """A future of a task has ended; called by a thread of Dask's."""
        self.answers.put((index, future))

    def take(self, index: int, future: Any) -> Generator[Report | Finished | Crashed]:
        """An answer; the first good one of a task counts."""
        given = self.out.get(index)
        name = given.futures.pop(future, None) if given is not None else None
        if given is None or name is None:
            return
        verdict = opened(future, lambda: name in self.ask_scheduler())
        if verdict.answer is not None:
            verdict = judge(given.task, verdict.answer, self.expected.of(index))
        if verdict.answer is not None:
            for other in given.futures:
                other.cancel()
            del self.out[index]
            self.spent.append(time.monotonic() - given.since)
            for other, why in given.failed.items():  # it was not the task
                self.strike(other, why)
            yield from self.told(index, given.task, verdict.answer)
        elif verdict.kind is Kind.REFUSED:
            self.make_here(index, verdict.why)
        else:
            if verdict.kind is Kind.CORRUPT:
                self.say(f"the answer of the worker {name} is not used: {verdict.why}")
                self.strike(name, verdict.why)
            if verdict.kind is Kind.FAILED or name in self.refused:
                given.failed.setdefault(name, verdict.why)
            if not given.futures:
                self.submit(index)

    def told(self, index: int, task: Task, answer: Answer) -> Generator[Report | Finished | Crashed]:
        """What a task reported, with what the node took beside the stages as one more of them."""
        rest = answer.seconds * 1000
        for event in answer.events:
            message = event.message if isinstance(event, Report) else None
            if isinstance(message, Outcome):
                rest -= sum(message.milliseconds.values())
                last = message.position + 1 == len(task.targets)
                spent = message.milliseconds | ({"node": max(rest, 0.0)} if last else {})
                self.keep(task, message)
                yield Report(index, replace(message, made=(), milliseconds=spent))  # entries of stages are the node's
            else:
                yield replace(event, index=index)

    def keep(self, task: Task, outcome: Outcome) -> None:
        """The artifact goes into the store here, under the seal of this user."""
        target, cost = task.targets[outcome.position], sum(outcome.costs.values())
        fields, label = artifact_fields(task.request, target), f"artifact {task.name} for {target}"
        put(self.store, task.keys[outcome.position], "artifact", fields, outcome.products, label, cost)

    def move(self) -> None:
        """Give out again what was given to nobody, or to workers that are gone."""
        for index, given in list(self.out.items()):
            for future, name in list(given.futures.items()):
                if name not in self.threads or future.status in ("cancelled", "lost"):
                    del given.futures[future]
                    future.cancel()
            if not given.futures:
                self.submit(index)

    def double(self) -> None:
        """Give out again what takes much longer than the others, where somebody has nothing to do."""
        if self.waiting or len(self.spent) < 3 or len(self.out) >= sum(self.threads.values()):
            return
        most = max(SLOWEST, SLOW * statistics.median(self.spent))
        for index, given in list(self.out.items()):
            if len(given.futures) == 1 and given.tries < TRIES and time.monotonic() - given.since > most:
                self.submit(index)


def _files(task: Task) -> dict[str, bytes]:
    """The sources of a task by path. CompileError E0753 where one lies outside the project, E0713 where one has changed."""
    found: dict[str, bytes] = {}
    for name, digest in task.request.sources.items():
        if PurePosixPath(name).is_absolute():
            message = f"kernel `{task.request.kernel}` uses `{name}`, which is outside the project and cannot travel"
            raise CompileError(Diagnostic("E0753", message, hint="move it into the project, or leave `--on` out"))
        try:
            data = (Path(task.request.root) / name).read_bytes()
        except OSError:
            data = b""
        if len(data) > LARGEST_SOURCE or hashlib.sha256(data).hexdigest() != digest:
            message = f"`{name}` changed while kernel `{task.request.kernel}` was compiled"
            raise CompileError(Diagnostic("E0713", message, hint="run the command again"))
        found[name] = data
    return found


def _stranger(me: Identity, future: Any) -> str:
    """Why a worker is not used, by what it says it is; empty where it is used."""
    if future.status == "pending":
        return f"did not say who it is within {DESCRIBE:g} s"
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        return printable(f"cannot run tilec ({type(error).__name__}: {error})")
    try:
        found = node.unframed(future.result(timeout=SILENT))
        return me.difference(found) if isinstance(found, Identity) else printable(str(found))
    except Exception as error:  # whatever it sent
        return printable(f"does not say who it is ({type(error).__name__}: {error})")
