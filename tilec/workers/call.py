"""Calls functions in workers, each under its budget: for commands that need a result instead of a build.

In: a function that can be imported by name, and arguments that can be pickled. Out: its return value. CompileError if the
function raises one or the worker dies (`verdict`). Functions that run pipeline stages need no `limits`: stages have budgets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilec import progress
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Span
from tilec.progress import Limits
from tilec.workers.scheduler import Crashed, Report, run
from tilec.workers.verdict import diagnose


@dataclass(frozen=True, slots=True)
class Call:
    """`function(*arguments)` under `limits`. `what` describes it, such as "drawing `k`"; `span` locates the request."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    what: str
    limits: Limits | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class _Refused:
    diagnostics: tuple[Diagnostic, ...]


def call(
    function: Callable[..., Any], *arguments: Any, what: str, limits: Limits | None = None, span: Span | None = None,
    preload: Sequence[str] = (), notify: Callable[[str], None] | None = None,
) -> Any:  # fmt: skip
    """The result of `function(*arguments)` in a worker. `what` and `span` are those of `Call`."""
    one = Call(function, arguments, what, limits, span)
    for _, result in calls([one], 1, preload, notify):
        if isinstance(result, CompileError):
            raise result
        return result
    raise AssertionError("a task ends with a report or a crash")


def calls(
    wanted: Sequence[Call], jobs: int, preload: Sequence[str] = (), notify: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Any]]:
    """Many calls on `jobs` workers, in the order of completion: the index of each and its result or CompileError."""
    with contextlib.closing(run(list(wanted), _run, jobs, preload, notify)) as events:
        for event in events:
            if isinstance(event, Crashed):
                one = wanted[event.index]
                yield event.index, CompileError(diagnose(event, one.what, one.span))
            elif isinstance(event, Report):
                message = event.message
                yield event.index, CompileError(message.diagnostics) if isinstance(message, _Refused) else message


def _run(task: Call, emit: Callable[[Any], None]) -> None:
    try:
        with progress.stage(task.what, task.limits) if task.limits is not None else contextlib.nullcontext():
            found = task.function(*task.arguments)
    except CompileError as error:
        found = _Refused(error.diagnostics)
    emit(found)
