"""`tilec build --on`: tasks on the workers of a Dask scheduler, behind the interface of the local one.

In: an address, `dask://HOST:PORT` or `tls://HOST:PORT`, and tasks. Out: what the tasks report, as `tilec.workers.scheduler.run`
gives it. Each worker is asked who it is before it gets work; one whose tilec or toolchain is another is named and left out, and
one that comes later refuses by itself. What a worker gives is held against its task (`check`) before it is used: digests,
record of proofs, architecture. A task whose worker is lost goes to another, one that takes much longer than the others is given
out twice, and the first answer counts: all of them are the same bytes.

What is trusted. Dask sends Python objects as pickles: whoever can talk to the scheduler can run code on every worker, and the
scheduler and every worker can run code here. `--on` is for machines of one owner, on a network of theirs or over TLS with
certificates of theirs (`tls://`, configured as Dask has it: `DASK_DISTRIBUTED__COMM__TLS__...`). No secret travels: neither the
team's cache nor its key is told to workers.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import queue
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from tilec.cache import Store
from tilec.cache.agreement import disagreement
from tilec.cache.products import put
from tilec.diagnostics import CompileError, Diagnostic
from tilec.pipeline import ARTIFACT_PRODUCTS, artifact_fields
from tilec.project import node
from tilec.project.job import Dispatch
from tilec.project.node import LARGEST_SOURCE, Answer, Identity, Parcel
from tilec.project.worker import Outcome, Task
from tilec.workers.scheduler import Crashed, Finished, Report
from tilec.workers.worker import Runner

CONNECT: Final = 20.0
"""Seconds to reach the scheduler."""
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
"""How often a task is given out before it is said to have failed."""


def dispatch(address: str, store: Store) -> Dispatch:
    """A dispatch on the farm at `address`; what comes back is kept in `store`. CompileError E0753 where it is no address."""
    parts = urlsplit(address)
    if parts.scheme not in ("dask", "tcp", "tls") or not parts.hostname or not _port(address):
        hint = "write `--on dask://HOST:8786`, or `tls://HOST:8786`"
        raise CompileError(Diagnostic("E0753", f"`{address}` is no address of a Dask scheduler", hint=hint))
    return functools.partial(_run, f"{'tls' if parts.scheme == 'tls' else 'tcp'}://{parts.netloc}", store)


def _port(address: str) -> int | None:
    try:
        return urlsplit(address).port
    except ValueError:
        return None


def _run(
    address: str, store: Store, tasks: Sequence[Any], runner: Runner, workers: int, preload: Sequence[str],
    say: Callable[[str], None] | None,
) -> Generator[Report | Finished | Crashed]:  # fmt: skip
    """`tilec.workers.scheduler.run` on a farm; how many workers is the farm's to say."""
    if not tasks:
        return
    try:
        from distributed import Client
    except ImportError:
        hint = "`pip install 'tilec[farm]'`"
        raise CompileError(Diagnostic("E0753", "`--on` needs the package `distributed`", hint=hint)) from None
    make: Any = Client
    try:
        client: Any = make(address, timeout=CONNECT, set_as_default=False)
    except Exception as error:
        raise _unreachable(address, str(error) or type(error).__name__) from None
    try:
        yield from _Farm(client, address, store, tasks, runner, tuple(preload), say or (lambda line: None)).run()
    finally:
        client.close(timeout=5)


def _unreachable(address: str, why: str) -> CompileError:
    clean = "".join(letter if letter.isprintable() else " " for letter in why)[:300]
    hint = "start it (`dask scheduler`, `dask worker`), or build here: leave `--on` out"
    return CompileError(Diagnostic("E0753", f"the farm at `{address}` cannot be used: {clean}", hint=hint))


@dataclass(slots=True)
class _Given:
    """A task that is out: the futures of it, when it was first given out, and how often."""

    task: Task
    data: bytes
    futures: list[Any]
    since: float
    tries: int = 1
    names: tuple[str, ...] = ()
    """The workers that may take it; empty for all."""


class _Farm:
    def __init__(
        self, client: Any, address: str, store: Store, tasks: Sequence[Any], runner: Runner, preload: tuple[str, ...],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.client, self.address, self.store, self.tasks = client, address, store, tasks
        self.runner, self.preload, self.say = runner, preload, say
        self.waiting = deque(range(len(tasks)))
        self.out: dict[int, _Given] = {}
        self.answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.me: Identity | None = None
        self.threads: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.spent: list[float] = []
        self.alone = time.monotonic()
        self.looked = 0.0

    def run(self) -> Generator[Report | Finished | Crashed]:
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

    def look(self) -> None:
        """Who is there; those that are new say who they are. CompileError E0753 where nobody has been there for `ALONE`."""
        self.looked = time.monotonic()
        try:
            found: dict[str, Any] = self.client.scheduler_info(n_workers=-1)["workers"]
        except Exception as error:
            raise _unreachable(self.address, str(error)) from None
        if self.client.status not in ("running", "connecting"):
            raise _unreachable(self.address, "the connection was lost")
        here = {name: int(item["nthreads"]) for name, item in found.items()}
        fresh = [name for name in here if name not in self.threads and name not in self.refused]
        if fresh and self.me is not None:
            self.ask(fresh)
        self.threads = {name: count for name, count in here.items() if name not in self.refused}
        if self.threads:
            self.alone = self.looked
            self.move()
        elif self.looked - self.alone > ALONE or (self.refused and self.refused.keys() >= here.keys() and here):
            why = "; ".join(f"{name} {text}" for name, text in self.refused.items()) or "it has no workers"
            raise _unreachable(self.address, f"no worker is left: {why}" if self.refused else why)
        self.double()

    def ask(self, names: list[str]) -> None:
        """Leave out those whose tilec or toolchain is another."""
        assert self.me is not None
        asked = {name: self.client.submit(node.describe, workers=[name], pure=False, retries=0) for name in names}
        deadline = time.monotonic() + DESCRIBE
        while time.monotonic() < deadline and any(future.status == "pending" for future in asked.values()):
            time.sleep(0.02)
        for name, future in asked.items():
            if why := self.me.difference(found) if isinstance(found := _told(future), Identity) else str(found):
                self.refuse(name, why)

    def refuse(self, name: str, why: str) -> None:
        if name not in self.refused:
            self.say(f"the worker {name} is not used: it {why}")
        self.refused[name] = why
        self.threads.pop(name, None)

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
        given = _Given(task, pickle.dumps(parcel), [], time.monotonic())
        self.out[index] = given
        self.submit(index, given)

    def submit(self, index: int, given: _Given, besides: Sequence[str] = ()) -> None:
        """One future more for a task, on a worker that is not refused nor one of `besides`."""
        names = [name for name in self.threads if name not in besides] or list(self.threads)
        given.names = tuple(names) if self.refused or besides else ()
        future = self.client.submit(
            node.perform, self.me, given.data, pure=False, workers=list(given.names) or None, retries=0
        )  # fmt: skip
        given.futures.append(future)
        future.add_done_callback(functools.partial(self.done, index))

    def done(self, index: int, future: Any) -> None:
        """A future of a task has ended; called by a thread of Dask's."""
        self.answers.put((index, future))

    def take(self, index: int, future: Any) -> Generator[Report | Finished | Crashed]:
        """An answer; the first good one of a task counts."""
        given = self.out.get(index)
        if given is None or future not in given.futures:
            return
        given.futures.remove(future)
        answer, why = _answer(future)
        if answer is not None and not why:
            why = self.wrong(given.task, answer)
            if why:
                self.say(f"the answer of a worker is not used: {why}")
        if why or answer is None:
            if given.futures:
                return
            given.tries += 1
            if given.tries <= TRIES:
                if self.threads:
                    self.submit(index, given)
                return  # else it is given out when somebody comes
            del self.out[index]
            yield Crashed(index, f"given out {TRIES} times: {why}")
            return
        for other in given.futures:
            other.cancel()
        del self.out[index]
        self.spent.append(time.monotonic() - given.since)
        yield from self.told(index, given.task, answer)

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

    def wrong(self, task: Task, answer: Answer) -> str:
        """What does not hold of an answer, as the end of a sentence; empty where all that can be seen here holds."""
        last = answer.events[-1] if answer.events else None
        if not isinstance(last, Finished | Crashed):
            return "it has no end"
        for event in answer.events:
            message = event.message if isinstance(event, Report) else None
            if not isinstance(message, Outcome) or message.diagnostics:
                continue
            if not 0 <= message.position < len(task.targets) or message.products.keys() != {*ARTIFACT_PRODUCTS}:
                return "it is not that of its task"
            digests = {name: hashlib.sha256(data).hexdigest() for name, data in message.products.items()}
            fields = artifact_fields(task.request, task.targets[message.position])
            if found := disagreement("artifact", fields, message.products, digests):
                return found
        return ""

    def keep(self, task: Task, outcome: Outcome) -> None:
        """The artifact goes into the store here, under the seal of this user."""
        if not outcome.diagnostics:
            target = task.targets[outcome.position]
            label = f"artifact {task.name} for {target}"
            fields = artifact_fields(task.request, target)
            put(
                self.store,
                task.keys[outcome.position],
                "artifact",
                fields,
                outcome.products,
                label,
                sum(outcome.costs.values()),
            )

    def move(self) -> None:
        """Give out again what was given to nobody, or to workers that are gone."""
        for index, given in self.out.items():
            given.futures = [future for future in given.futures if future.status not in ("cancelled", "lost")]
            if given.names and not self.threads.keys() & given.names:  # it waits for workers that are gone
                for future in given.futures:
                    future.cancel()
                given.futures = []
            if not given.futures:
                self.submit(index, given)

    def double(self) -> None:
        """Give out again what takes much longer than the others, where somebody has nothing to do."""
        if self.waiting or len(self.spent) < 3 or len(self.out) >= sum(self.threads.values()):
            return
        most = max(SLOWEST, SLOW * statistics.median(self.spent))
        for index, given in self.out.items():
            if len(given.futures) == 1 and time.monotonic() - given.since > most:
                where: Any = self.client.who_has(given.futures)
                self.submit(index, given, [name for names in where.values() for name in names])


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


def _told(future: Any) -> Identity | str:
    """Who a worker says it is, or why it is not used."""
    if future.status == "pending":
        return f"did not say who it is within {DESCRIBE:g} s"
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        return f"cannot run tilec ({type(error).__name__}: {error})"[:200]
    found: Any = pickle.loads(future.result())
    return found if isinstance(found, Identity) else str(found)[:200]


def _answer(future: Any) -> tuple[Answer | None, str]:
    """What a future holds, and why it is none."""
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        return None, f"{type(error).__name__}: {error}"[:300] if error is not None else "its worker was lost"
    try:
        answer: Any = pickle.loads(future.result())
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:300]
    if not isinstance(answer, Answer):
        return None, "it is no answer"
    return answer, answer.refused
