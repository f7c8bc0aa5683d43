"""Checks what the workers of a build farm send back.

In: a task, and its result. Out: a verdict. Workers are not trusted:

- a result must have the sha256 computed before it was sent (`node.framed`), and each product, manifest and summary included,
  the one computed in the process that made it;
- the tile IR is compared with what the local frontend makes of the same sources (`Expected`), and through it all that
  the manifest states about tensors, alignment, grid and calling convention;
- the products are compared with each other (`tilec.cache.agreement`, `tilec.project.build.contract`);
- other data, such as times, must be plain and of bounded size; nothing unchecked is used;
- a kernel that a worker refuses is built here, so that a worker alone cannot cause an error in a kernel.

Whether proofs, PTX and CUBIN are what tilec would make can only be shown by building them again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, cast

from tilec.cache.agreement import ARTIFACT_PRODUCTS, disagreement
from tilec.pipeline import artifact_fields
from tilec.project.build.contract import contract_difference
from tilec.project.build.worker import CHANGED, Began, Outcome, Task
from tilec.project.farm.node import TaskReply, unframed
from tilec.workers.scheduler import Crashed, Finished, PersistentServer, Report
from tilec.workers.verdict import printable
from tilec.workers.worker import Runner

WORKERS_OWN: Final = ("E05", "E07")
"""Prefixes of diagnostic codes that concern a machine or tilec instead of a kernel."""
MOST_EVENTS: Final = 1000
"""Most events of an answer, and most items in each table or list of an outcome."""
FETCH: Final = (2.0, 4.0, 8.0, 16.0)
"""Timeouts in seconds of the attempts to fetch an answer from its worker."""
LARGEST_NUMBER: Final = 1 << 53
LONGEST_TEXT: Final = 2000
"""Most characters of a name or a message in an outcome, other than its products."""
FIRST_PRELOAD: Final = (
    "tilec.frontend",
    "tilec.artifact.records",
    "tilec.cache.products",
    "tilec.ir.claims",
    "tilec.ir.text.spans",
)


class Kind(Enum):
    """The classes of results; the value describes each."""

    GOOD = "every artifact of the task, and right as far as can be seen here"
    REFUSED = "the kernel is refused, or over its budget: to be made sure of here"
    FAILED = "the worker could not do it; another may"
    CORRUPT = "the answer is not one to the task"
    LOST = "the worker is gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of a result, the reason as the end of a sentence, and the answer if it is good."""

    kind: Kind
    reason: str = ""
    reply: TaskReply | None = None


def opened(future: Any, worker_connected: Callable[[], bool]) -> Verdict:
    """The result of a Dask future, which `check_reply` has not checked yet: GOOD if it is an answer. The worker keeps the bytes
    and can be lost meanwhile; `worker_connected` says whether it is still connected."""
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        if error is None or type(error).__name__ == "KilledWorker":
            return Verdict(Kind.LOST, "its worker was lost")
        return Verdict(Kind.FAILED, printable(f"{type(error).__name__}: {error}"))
    data = None
    for seconds in FETCH:
        with contextlib.suppress(TimeoutError):
            data = future.result(timeout=seconds)
            break
        if not worker_connected():
            break
    if data is None:
        return Verdict(Kind.LOST, "its worker was lost before it gave its answer")
    try:
        reply = unframed(data)
    except Exception as error:  # libraries raise many kinds for malformed bytes
        return Verdict(Kind.CORRUPT, printable(str(error) or type(error).__name__))
    if not isinstance(reply, TaskReply):
        return Verdict(Kind.CORRUPT, "it is not an outcome")
    return Verdict(Kind.FAILED, printable(str(reply.refused))) if reply.refused else Verdict(Kind.GOOD, "", reply)


def check_reply(task: Task, reply: TaskReply, tile_ir: bytes | None) -> Verdict:
    """The verdict on an answer. `tile_ir` is what the local frontend makes of the task, None if it refuses the kernel."""
    try:
        return _verdict(task, reply, tile_ir)
    except Exception as error:  # an unforeseen error of a reader
        return Verdict(Kind.CORRUPT, printable(f"it cannot be read ({type(error).__name__}: {error})"))


def _verdict(task: Task, reply: TaskReply, tile_ir: bytes | None) -> Verdict:
    if len(reply.events) > MOST_EVENTS:  # all events that are used are checked
        return Verdict(Kind.CORRUPT, f"it has more than {MOST_EVENTS} events")
    if not _plain_number(reply.seconds):
        return Verdict(Kind.CORRUPT, "its time is not a number")
    *events, last = reply.events or (None,)
    if not isinstance(last, Finished | Crashed) or not all(isinstance(event, Report) for event in events):
        return Verdict(Kind.CORRUPT, "it is incomplete")
    if isinstance(last, Crashed):
        over = last.death is not None and last.death.over != ""
        return Verdict(Kind.REFUSED if over else Kind.FAILED, printable(str(last.text)))
    outcomes: list[Outcome] = []
    for event in events:
        message = event.message if isinstance(event, Report) else None
        if isinstance(message, Outcome):
            outcomes.append(message)
        elif not isinstance(message, Began) or message.position not in range(len(task.targets)):
            return Verdict(Kind.CORRUPT, "it does not match its task")
    if [outcome.position for outcome in outcomes] != list(range(len(task.targets))):
        return Verdict(Kind.CORRUPT, "it does not match its task")
    if not all(_has_plain_types(outcome) for outcome in outcomes):
        return Verdict(Kind.CORRUPT, "its report has values that are not plain data")
    codes = [item.code for outcome in outcomes for item in outcome.diagnostics]
    if codes:
        own = any(code.startswith(WORKERS_OWN) and code != CHANGED for code in codes)
        return Verdict(Kind.FAILED if own else Kind.REFUSED, f"{codes[0]!s:.10}")
    for outcome in outcomes:
        if reason := fault(task, outcome, tile_ir):
            return Verdict(Kind.CORRUPT, printable(reason))  # the text can quote the answer
    return Verdict(Kind.GOOD, "", reply)


def _has_plain_types(outcome: Outcome) -> bool:
    """Whether times, costs, and messages and counts of the store, which are summed and printed, have their types and bounds."""
    problems: Any = outcome.problems
    return (
        _table(outcome.milliseconds, _plain_number)
        and _table(outcome.costs, lambda value: type(value) is int and 0 <= value < LARGEST_NUMBER)
        and _table(outcome.hits, lambda value: type(value) is bool)
        and _table(outcome.counts, lambda value: _table(value, lambda one: type(one) is int and 0 <= one < LARGEST_NUMBER))
        and isinstance(problems, tuple)
        and len(cast("tuple[Any, ...]", problems)) <= MOST_EVENTS
        and all(_text(one) for one in cast("tuple[Any, ...]", problems))
        and type(outcome.fetched) is bool
    )


def _table(data: Any, good: Callable[[Any], bool]) -> bool:
    if not isinstance(data, dict) or len(cast("dict[Any, Any]", data)) > MOST_EVENTS:
        return False
    return all(_text(name) and good(value) for name, value in cast("dict[Any, Any]", data).items())


def _text(data: Any) -> bool:
    return isinstance(data, str) and len(data) <= LONGEST_TEXT


def _plain_number(data: Any) -> bool:
    return type(data) in (int, float) and 0 <= data < LARGEST_NUMBER


def fault(task: Task, outcome: Outcome, tile_ir: bytes | None) -> str:
    """What is wrong with the products of one target; empty if every check that is possible here passes."""
    if outcome.products.keys() != {*ARTIFACT_PRODUCTS}:
        return "it does not match its task"
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in outcome.products.items()}
    for name, digest in digests.items():
        if outcome.digests.get(name) != digest:
            return f"its {name} differs from its worker's digest"
    if tile_ir != outcome.products["tir"]:
        return "its tile IR differs from the kernel's"
    fields = artifact_fields(task.request, task.targets[outcome.position])
    return disagreement("artifact", fields, outcome.products, digests) or contract_difference(outcome.products)


class Expected:
    """The tile IR of tasks. This machine makes it in the background, in a process under the budgets of a stage."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "tile IR")
        self._tile_irs: dict[int, concurrent.futures.Future[bytes | None]] = {}
        self._worker_server: PersistentServer | None = None
        self._closed, self._close = os.pipe()
        """A byte in this pipe ends the task that is running."""

    def begin(self, index: int, task: Task) -> None:
        """Start to make the tile IR of a task."""
        if index not in self._tile_irs:
            self._tile_irs[index] = self._pool.submit(self._make, task)

    def of(self, index: int) -> bytes | None:
        """The tile IR of a task that was begun; None if the frontend refuses the kernel or exceeds its budget."""
        return self._tile_irs[index].result()

    def close(self) -> None:
        """Cancel what is running and stop."""
        os.write(self._close, b"x")
        self._pool.submit(self._stop)
        self._pool.shutdown()
        for handle in (self._closed, self._close):
            os.close(handle)

    def _make(self, task: Task) -> bytes | None:
        if self._worker_server is None:
            self._worker_server = PersistentServer([self._runner.__module__, *FIRST_PRELOAD])
        alone = replace(task, targets=task.targets[:1], keys=task.keys[:1], first=True, dump=None, stop=False, remote=None)
        found: bytes | None = None
        for event in self._worker_server.run([alone], self._runner, stop=self._closed):
            if isinstance(event, Report) and isinstance(event.message, Outcome):
                found = next(iter(event.message.products.values()), None)
        return found

    def _stop(self) -> None:
        if self._worker_server is not None:
            with contextlib.suppress(OSError):
                self._worker_server.stop()
