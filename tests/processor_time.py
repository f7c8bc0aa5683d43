"""Ends processes that hang: by their processor time, or because they sleep, never by wall-clock time.

Wall-clock time depends on the machine's load. The criteria here are the same on any machine: more processor time than allowed,
children included, or a whole session asleep for long. A process that waits for a processor does not sleep (proc(5), state R).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.process_stat import every_stat

TICK: Final = 0.5
"""Seconds between two looks."""
STILL: Final = 300.0
"""Seconds for which a session may sleep without running. No test waits this long for anything."""
ENDED, OVER, STOOD, STOPPED = "ended", "over its processor time", "standing still", "stopped"
_ASLEEP: Final = "S"


def family(session: int) -> dict[int, tuple[str, float]]:
    """State and processor seconds of every living process of a session, with those of its children that have ended."""
    return {
        pid: (stat.state, stat.seconds) for pid, stat in every_stat().items() if stat.session == session and stat.state != "Z"
    }


@dataclass
class Use:
    """The processor time of a session from `begin` on."""

    session: int
    most: float
    still: float = STILL
    used: float = 0.0
    asleep: float = 0.0
    _before: float = 0.0
    _total: float = 0.0

    def begin(self) -> None:
        """Restarts the count."""
        self.look()
        self._before, self.used, self.asleep = self._total, 0.0, 0.0

    def look(self) -> str:
        """Why the session is to be ended, or an empty text. To be called once per `TICK`; a later call on a busy machine counts
        as one."""
        processes = family(self.session)
        total = max(self._total, sum(seconds for _, seconds in processes.values()))
        sleeps = bool(processes) and total == self._total and all(state == _ASLEEP for state, _ in processes.values())
        self._total, self.used = total, total - self._before
        self.asleep = self.asleep + TICK if sleeps else 0.0
        if self.used > self.most:
            return OVER
        return STOOD if self.asleep > self.still else ""


def finish(
    process: subprocess.Popen[str], most: float, *, still: float = STILL, until: float = float("inf"),
    at_end: Callable[[], None] = lambda: None,
) -> tuple[str, str, float]:  # fmt: skip
    """How a process that leads a session ended, its output, and its processor seconds at the last look: `ENDED` by itself, or
    killed as `OVER`, as `STOOD`, or as `STOPPED` at `until` (of `time.monotonic`), which says nothing about it. `at_end` can
    inspect it before it is killed."""
    use = Use(process.pid, most, still)
    why = ""
    while not why:
        try:
            return ENDED, _joined(process.communicate(timeout=TICK)), use.used
        except subprocess.TimeoutExpired:
            why = use.look() or (STOPPED if time.monotonic() > until else "")
    at_end()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return why, _joined(process.communicate()), use.used


def _joined(printed: tuple[str | None, str | None]) -> str:
    """The output to those pipes that exist."""
    return "".join(part or "" for part in printed)
