"""Distributes tasks to the workers of a build farm: submission, retries, exclusion of workers, and local fallback.

In: a Dask client, and tasks. Out: the reports of the tasks. Each worker must send its identity before it gets work. One with a
different tilec or toolchain is reported and excluded; a worker also compares identities itself before it runs a task. Answers
are checked before use (`tilec.project.farm.answers`). A task of a lost worker is resubmitted. A task that takes much longer
than the others is submitted a second time; the first good answer is used, since all good answers have the same bytes. A worker
with `BROKEN` unusable answers gets no more work. Tasks that no worker finishes, or that a worker refuses, run locally: a
refusal by a worker alone is never reported as an error in a kernel. The build ends if the scheduler is silent for `SILENT`
seconds.
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
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.pipeline import artifact_fields
from tilec.project.build.worker import Outcome, Task
from tilec.project.farm import node
from tilec.project.farm.answers import Expected, Kind, check_reply, opened
from tilec.project.farm.node import LARGEST_SOURCE, Identity, Parcel, TaskReply
from tilec.workers.scheduler import Crashed, Finished, Report
from tilec.workers.scheduler import run as run_here
from tilec.workers.verdict import printable
from tilec.workers.worker import Runner

SILENT: Final = 20.0
"""Timeout for an answer of the scheduler, in seconds."""
DESCRIBE: Final = 60.0
"""Timeout for the identities of workers, in seconds: the first time, they must read their toolchain."""
ALONE: Final = 60.0
"""Seconds for which a build waits for a worker if there is none."""
LOOK: Final = 1.0
"""Seconds between checks of the connected workers."""
AHEAD: Final = 2
"""Submitted tasks per thread of the farm, so that no thread waits for its next task."""
SLOW: Final = 3.0
"""A task is submitted again after this many times the median duration."""
SLOWEST: Final = 10.0
"""Seconds before which no task counts as slow."""
TRIES: Final = 5
"""Submissions of a task before it runs locally."""
BROKEN: Final = 3
"""Unusable answers after which a worker gets no more work."""


def unreachable(address: str, reason: str) -> CompileError:
    hint = "start it (`dask scheduler`, `dask worker`), or build here: leave `--on` out"
    return CompileError(Diagnostic("E0753", f"the farm at `{address}` cannot be used: {printable(reason)}", hint=hint))


@dataclass(slots=True)
class _Given:
    """A submitted task: its pending futures with their workers, the time of its first submission, and the number of `tries`."""

    task: Task
    data: bytes
    since: float
    futures: dict[Any, str] = field(default_factory=dict[Any, str])
    tries: int = 0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Workers that failed at this task, with the reason."""


class Farm:
    """One build on a farm. Call `run`, then `rest`."""

    def __init__(
        self, client: Any, address: str, store: Store, tasks: Sequence[Any], runner: Runner, preload: tuple[str, ...],
        notify: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.client, self.address, self.store, self.tasks = client, address, store, tasks
        self.runner, self.preload, self.notify = runner, preload, notify
        self.waiting = deque(range(len(tasks)))
        self.out: dict[int, _Given] = {}
        self.local_reasons: dict[int, str] = {}
        """Tasks that run locally, with the reason."""
        self.replies: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.expected = Expected(runner)
        self.me: Identity | None = None
        self.threads: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.strikes: Counter[str] = Counter()
        self.spent: list[float] = []
        self.alone = self.last_contact = time.monotonic()
        self.last_poll = 0.0

    def run(self) -> Generator[Report | Finished | Crashed]:
        """Run tasks on the farm until each is finished or left to `rest`."""
        while self.waiting or self.out:
            if time.monotonic() - self.last_poll > LOOK:
                self.poll_workers()
            while self.waiting and len(self.out) < AHEAD * sum(self.threads.values()):
                yield from self.give(self.waiting.popleft())
            try:
                index, future = self.replies.get(timeout=LOOK)
            except queue.Empty:
                continue
            yield from self.take(index, future)

    def rest(self, workers: int) -> Generator[Report | Finished | Crashed]:
        """Run the tasks locally that the farm did not finish or refused."""
        if self.local_reasons:
            order, reason = list(self.local_reasons), next(iter(self.local_reasons.values()))
            self.notify(
                f"{len(order)} of {len(self.tasks)} tasks are built here, because the farm's results are not used: {reason}"
            )
            tasks = [self.tasks[index] for index in order]
            with contextlib.closing(run_here(tasks, self.runner, workers, self.preload, self.notify)) as events:
                for event in events:
                    yield replace(event, index=order[event.index])

    def query_scheduler(self) -> dict[str, int]:
        """Number of threads by worker. CompileError E0753 if the scheduler is silent or the connection is lost."""
        try:
            found: dict[str, Any] = within(SILENT, lambda: self.client.scheduler_info(n_workers=-1)["workers"], "farm")
            local_reasons = {str(name): int(item["nthreads"]) for name, item in found.items()}
            status: str = self.client.status
        except TimeoutError:
            raise unreachable(self.address, f"its scheduler was silent for {SILENT:g} s") from None
        except Exception as error:
            raise unreachable(self.address, str(error) or type(error).__name__) from None
        now = time.monotonic()
        if status == "running":
            self.last_contact = now
        elif status != "connecting" or now - self.last_contact > SILENT:
            raise unreachable(self.address, "the connection was lost")
        return local_reasons

    def poll_workers(self) -> None:
        """Update the connected workers and identify new ones. CompileError E0753 if there was no usable worker for `ALONE`
        seconds, or if all connected workers are excluded for other reasons than broken answers."""
        local_reasons = self.query_scheduler()
        self.last_poll = time.monotonic()
        fresh = [name for name in local_reasons if name not in self.threads and name not in self.refused]
        if fresh and self.me is not None:
            self.identify(fresh)
        self.threads = {name: count for name, count in local_reasons.items() if name not in self.refused}
        if self.threads:
            self.alone = self.last_poll
            self.move()
        elif (
            local_reasons and self.strikes and self.refused.keys() >= local_reasons.keys()
        ):  # every worker that could work gave broken answers
            for index in [*self.out, *self.waiting]:
                self.run_locally(index, "no worker is left")
            self.waiting.clear()
        elif self.last_poll - self.alone > ALONE or (
            self.refused and self.refused.keys() >= local_reasons.keys() and local_reasons
        ):
            reason = "; ".join(f"{name} {text}" for name, text in self.refused.items()) or "it has no workers"
            raise unreachable(self.address, f"no worker is left: {reason}" if self.refused else reason)
        self.double()

    def identify(self, names: list[str]) -> None:
        """Exclude workers with a different tilec or toolchain, or without an identity."""
        assert self.me is not None
        asked = {name: self.client.submit(node.describe, workers=[name], pure=False, retries=0) for name in names}
        start = last_poll = time.monotonic()
        while any(future.status == "pending" for future in asked.values()):
            now = time.monotonic()
            if now - start > DESCRIBE:
                break
            if now - last_poll > LOOK:
                last_poll = now
                self.query_scheduler()
            time.sleep(0.02)
        for name, future in asked.items():
            if reason := _stranger(self.me, future):
                self.refuse(name, reason)

    def refuse(self, name: str, reason: str) -> None:
        """Exclude a worker and report it once."""
        if name not in self.refused:
            self.notify(f"the worker {name} is not used: it {reason}")
        self.refused[name] = reason
        self.threads.pop(name, None)

    def strike(self, name: str, reason: str) -> None:
        """Count an unusable answer of a worker; exclude it after `BROKEN` of them."""
        self.strikes[name] += 1
        if self.strikes[name] >= BROKEN:
            self.refuse(name, f"returned {BROKEN} unusable results, the last: {reason}")

    def give(self, index: int) -> Generator[Finished]:
        """Submit a task for the first time."""
        task: Task = self.tasks[index]
        if not task.targets:  # other builders make all of its artifacts
            yield Finished(index)
            return
        if self.me is None:
            self.me = Identity(task.request.compiler, task.request.toolchain)
            self.identify(list(self.threads))
        parcel = Parcel(replace(task, remote=None), _files(task), self.runner, self.preload)
        self.expected.begin(index, task)
        self.out[index] = _Given(task, node.framed(parcel), time.monotonic())
        self.submit(index)

    def submit(self, index: int) -> None:
        """Submit a task once more, to the least loaded worker that has not failed at it. If there are workers and all of them
        have, or after `TRIES` submissions, the task runs locally."""
        given = self.out[index]
        names = [name for name in self.threads if name not in given.failed and name not in given.futures.values()]
        if given.tries >= TRIES or (self.threads and not names and not given.futures):
            self.run_locally(index, next(iter(given.failed.values()), f"sent {given.tries} times, and every worker was lost"))
        elif names:
            load = Counter(name for other in self.out.values() for name in other.futures.values())
            name = min(names, key=lambda name: load[name] / self.threads[name])
            given.tries += 1
            future = self.client.submit(node.perform, self.me, given.data, pure=False, workers=[name], retries=0)
            given.futures[future] = name
            future.add_done_callback(functools.partial(self.done, index))

    def run_locally(self, index: int, reason: str) -> None:
        """Cancel a task on the farm and leave it to `rest`."""
        given = self.out.pop(index, None)
        for future in given.futures if given is not None else ():
            future.cancel()
        self.local_reasons[index] = reason

    def done(self, index: int, future: Any) -> None:
        """Queue a finished future of a task; a thread of Dask calls this."""
        self.replies.put((index, future))

    def take(self, index: int, future: Any) -> Generator[Report | Finished | Crashed]:
        """Handle a finished future; the first good answer of a task is used."""
        given = self.out.get(index)
        name = given.futures.pop(future, None) if given is not None else None
        if given is None or name is None:
            return
        verdict = opened(future, lambda: name in self.query_scheduler())
        if verdict.reply is not None:
            verdict = check_reply(given.task, verdict.reply, self.expected.of(index))
        if verdict.reply is not None:
            for other in given.futures:
                other.cancel()
            del self.out[index]
            self.spent.append(time.monotonic() - given.since)
            for other, reason in given.failed.items():  # another worker succeeded, so the task was not at fault
                self.strike(other, reason)
            yield from self.events_of(index, given.task, verdict.reply)
        elif verdict.kind is Kind.REFUSED:
            self.run_locally(index, verdict.reason)
        else:
            if verdict.kind is Kind.CORRUPT:
                self.notify(f"the answer of the worker {name} is not used: {verdict.reason}")
                self.strike(name, verdict.reason)
            if verdict.kind is Kind.FAILED or name in self.refused:
                given.failed.setdefault(name, verdict.reason)
            if not given.futures:
                self.submit(index)

    def events_of(self, index: int, task: Task, reply: TaskReply) -> Generator[Report | Finished | Crashed]:
        """The events of a task. The node's time outside of the stages is added to the last outcome as the stage `node`."""
        rest = reply.seconds * 1000
        for event in reply.events:
            message = event.message if isinstance(event, Report) else None
            if isinstance(message, Outcome):
                rest -= sum(message.milliseconds.values())
                last = message.position + 1 == len(task.targets)
                spent = message.milliseconds | ({"node": max(rest, 0.0)} if last else {})
                self.keep(task, message)
                yield Report(index, replace(message, made=(), milliseconds=spent))  # entries of stages are in the node's store
            else:
                yield replace(event, index=index)

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Put the artifact into the local store, under the seal of this user."""
        target, cost = task.targets[outcome.position], sum(outcome.costs.values())
        fields, label = artifact_fields(task.request, target), f"artifact {task.name} for {target}"
        put(self.store, task.keys[outcome.position], "artifact", fields, outcome.products, label, cost)

    def move(self) -> None:
        """Resubmit tasks without a pending future, and tasks of workers that are gone."""
        for index, given in list(self.out.items()):
            for future, name in list(given.futures.items()):
                if name not in self.threads or future.status in ("cancelled", "lost"):
                    del given.futures[future]
                    future.cancel()
            if not given.futures:
                self.submit(index)

    def double(self) -> None:
        """Submit slow tasks a second time if a thread is idle."""
        if self.waiting or len(self.spent) < 3 or len(self.out) >= sum(self.threads.values()):
            return
        most = max(SLOWEST, SLOW * statistics.median(self.spent))
        for index, given in list(self.out.items()):
            if len(given.futures) == 1 and given.tries < TRIES and time.monotonic() - given.since > most:
                self.submit(index)


def _files(task: Task) -> dict[str, bytes]:
    """The sources of a task by path. CompileError E0753 if one lies outside the project, E0713 if one has changed."""
    found: dict[str, bytes] = {}
    for name, digest in task.request.sources.items():
        if PurePosixPath(name).is_absolute():
            message = f"kernel `{task.request.kernel}` uses `{name}`, which is outside the project and cannot be sent"
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
    """Why a worker is excluded, given the future of its identity; empty if it is used."""
    if future.status == "pending":
        return f"did not identify itself within {DESCRIBE:g} s"
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        return printable(f"cannot run tilec ({type(error).__name__}: {error})")
    try:
        found = node.unframed(future.result(timeout=SILENT))
        return me.difference(found) if isinstance(found, Identity) else printable(str(found))
    except Exception as error:  # the worker can send anything
        return printable(f"does not identify itself ({type(error).__name__}: {error})")
