"""The diagnostic for a task whose worker died.

In: how it ended (`Crashed`), a description of the task, and the source of the request. Out: one diagnostic. E0811: over its
time budget. E0812: over its memory budget. E0813: killed from outside. E0504: it aborted or raised an unexpected exception,
which is an internal error.
"""

from __future__ import annotations

import signal
from typing import Final

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.diagnostics.visible import visible_line
from tilec.workers.client import describe
from tilec.workers.scheduler import Crashed, Death

FROM_OUTSIDE: Final = tuple(-known for known in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
"""Exit statuses of a worker that another process killed."""


def diagnose(crashed: Crashed, what: str, span: Span | None = None) -> Diagnostic:
    """The diagnostic for a task. `what` describes it, such as "compiling `k` for sm_90a"; `span` locates the request."""
    death, lines = crashed.death, tuple(crashed.text.strip().splitlines()[-3:])
    hint = "this is a bug in tilec; please report it with the kernel"
    if death is None:
        return Diagnostic("E0504", f"internal error in tilec while {what}", notes=lines, hint=hint)
    location = location_notes(death)
    if death.over:
        return over_budget(death, what, span)
    if death.status in FROM_OUTSIDE:
        message = f"the worker process was killed ({describe(death.status)}) while {what}"
        hint = "build again; if memory is short, when the system kills what takes most of it, take fewer `--jobs`"
        return Diagnostic("E0813", message, notes=location, hint=hint)
    message = f"the worker process ended while {what}"
    if death.status == -signal.SIGABRT:
        location = (*location, "LLVM aborts on an instruction it cannot select for the chip")
    return Diagnostic("E0504", message, notes=(*lines, *location), hint=hint)


def over_budget(death: Death, what: str, span: Span | None) -> Diagnostic:
    """E0811 or E0812 for a worker that exceeded its budget of time or memory."""
    stage = death.what or what
    primary = Label(span, "its budget is set for this") if span is not None else None
    if death.over == "memory":
        message = f"{stage} needs more than {death.limit / (1 << 20):.0f} MiB of memory"
        hint = "make the kernel simpler, or raise `stage_memory_mb` in build.toml"
        return Diagnostic("E0812", message, primary, notes=location_notes(death, False), hint=hint)
    message = f"{stage} takes more than {death.limit:g} seconds of CPU time"
    if death.over == "still":
        message = f"{stage} stands still for more than {death.limit:g} seconds"
    hint = "make the kernel simpler, or raise `stage_seconds` in build.toml"
    return Diagnostic("E0811", message, primary, notes=location_notes(death, False), hint=hint)


def location_notes(death: Death, stage: bool = True) -> tuple[str, ...]:
    """The stage (if `stage`) and last note of the worker, as notes of a diagnostic."""
    found = [f"at {death.what}"] if stage and death.what else []
    return (*found, f"it was at: {printable(death.note)}") if death.note else tuple(found)


def printable(text: str, most: int = 300) -> str:
    """Text from another process as one line that is safe for a terminal, at most `most` characters."""
    return visible_line(text, most)
