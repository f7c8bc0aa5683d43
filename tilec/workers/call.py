"""Functions run in workers, each under its budget: for commands that need an answer and not a build.

In: a function that can be imported by name, and arguments that can be pickled. Out: what it returns; CompileError where it
raises one, and where the worker dies (`verdict`). Functions that run stages of the pipeline have their budgets there, and need
no `limits` here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilec import progress
from tilec.diagnostics import CompileError, Diagnostic, Span
from tilec.progress import Limits
from tilec.workers.scheduler import Crashed, Report, run
from tilec.workers.verdict import diagnose


@dataclass(frozen=True, slots=True)
class Call:
    """`function(*arguments)` under `limits`. `what`: such as "drawing `k`"; `span`: where it was asked for."""

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
    preload: Sequence[str] = (), say: Callable[[str], None] | None = None,
) -> Any:  # fmt: skip
    """`function(*arguments)` in a worker. `what` says what that is, such as "drawing `k`"; `span` is where it was asked for."""
    one = Call(function, arguments, what, limits, span)
    for _, answer in calls([one], 1, preload, say):
        if isinstance(answer, CompileError):
            raise answer
        return answer
    raise AssertionError("a task ends with a report or a crash")


def calls(
    wanted: Sequence[Call], jobs: int, preload: Sequence[str] = (), say: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Any]]:
    """Many calls on `jobs` workers: the position of each and what it returned, or the CompileError that it ended in, as they
    come."""
    with contextlib.closing(run(list(wanted), _run, jobs, preload, say)) as events:
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
