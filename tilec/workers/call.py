"""One function, run once in a worker under its budget: for commands that need an answer and not a build.

In: a function that can be imported by name, and arguments that can be pickled. Out: what it returns; CompileError where it
raises one, and where the worker dies (`verdict`). Functions that run stages of the pipeline have their budgets there, and need
no `limits` here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilec import progress
from tilec.diagnostics import CompileError, Diagnostic, Span
from tilec.progress import Limits
from tilec.workers.scheduler import Crashed, Report, run
from tilec.workers.verdict import diagnose


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    what: str
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class _Refused:
    diagnostics: tuple[Diagnostic, ...]


def call(
    function: Callable[..., Any], *arguments: Any, what: str, limits: Limits | None = None, span: Span | None = None,
    preload: Sequence[str] = (), say: Callable[[str], None] | None = None,
) -> Any:  # fmt: skip
    """`function(*arguments)` in a worker. `what` says what that is, such as "drawing `k`"; `span` is where it was asked for."""
    with contextlib.closing(run([_Call(function, arguments, what, limits)], _run, 1, preload, say)) as events:
        for event in events:
            if isinstance(event, Crashed):
                raise CompileError(diagnose(event, what, span))
            if isinstance(event, Report):
                if isinstance(event.message, _Refused):
                    raise CompileError(event.message.diagnostics)
                return event.message
    raise AssertionError("a task ends with a report or a crash")


def _run(task: _Call, emit: Callable[[Any], None]) -> None:
    try:
        with progress.stage(task.what, task.limits) if task.limits is not None else contextlib.nullcontext():
            found = task.function(*task.arguments)
    except CompileError as error:
        found = _Refused(error.diagnostics)
    emit(found)
