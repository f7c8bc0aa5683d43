"""What to tell about a task whose worker died: over its budget, killed from outside, aborted, or a defect of tilec.

In: how it ended (`Crashed`), what was being done, and where that was asked for. Out: one diagnostic: E0811 over its time, E0812
over its memory, E0813 killed by somebody else, E0504 ended by itself or raised what it must not.
"""

from __future__ import annotations

import signal
from typing import Final

from tilec.diagnostics import Diagnostic, Label, Span
from tilec.visible import visible_line
from tilec.workers.client import describe
from tilec.workers.scheduler import Crashed, Death

FROM_OUTSIDE: Final = tuple(-known for known in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
"""Exit statuses of a worker that did nothing to end itself."""


def diagnose(crashed: Crashed, what: str, span: Span | None = None) -> Diagnostic:
    """The diagnostic for a task; `what` names it, such as "compiling `k` for sm_90a", `span` is where it was asked for."""
    death, lines = crashed.death, tuple(crashed.text.strip().splitlines()[-3:])
    hint = "this is a defect of tilec; please report it with the kernel"
    if death is None:
        return Diagnostic("E0504", f"internal error in tilec while {what}", notes=lines, hint=hint)
    at = where(death)
    if death.over:
        return over_budget(death, what, span)
    if death.status in FROM_OUTSIDE:
        message = f"the worker process was killed ({describe(death.status)}) while {what}"
        hint = "build again; if memory is short, when the system kills what takes most of it, take fewer `--jobs`"
        return Diagnostic("E0813", message, notes=at, hint=hint)
    message = f"the worker process ended while {what}"
    if death.status == -signal.SIGABRT:
        at = (*at, "LLVM aborts on an instruction it cannot select for the chip")
    return Diagnostic("E0504", message, notes=(*lines, *at), hint=hint)


def over_budget(death: Death, what: str, span: Span | None) -> Diagnostic:
    """E0811 or E0812 for a worker that its budget ended, or whose stage ran into the limit of its memory."""
    stage = death.what or what
    primary = Label(span, "its budget is set for this") if span is not None else None
    if death.over == "memory":
        message = f"{stage} needs more than {death.limit / (1 << 20):.0f} MiB of memory"
        hint = "make the kernel simpler, or raise `stage_memory_mb` in build.toml"
        return Diagnostic("E0812", message, primary, notes=where(death, False), hint=hint)
    message = f"{stage} takes more than {death.limit:g} seconds of CPU time"
    if death.over == "still":
        message = f"{stage} stands still for more than {death.limit:g} seconds"
    hint = "make the kernel simpler, or raise `stage_seconds` in build.toml"
    return Diagnostic("E0811", message, primary, notes=where(death, False), hint=hint)


def where(death: Death, stage: bool = True) -> tuple[str, ...]:
    """What the worker was at, as notes."""
    found = [f"at {death.what}"] if stage and death.what else []
    return (*found, f"it was at: {printable(death.note)}") if death.note else tuple(found)


def printable(text: str, most: int = 300) -> str:
    """One line of text that came from another process, safe for a terminal."""
    return visible_line(text, most)
