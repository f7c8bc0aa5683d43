"""Tasks of tests, run in workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def report_and_wait(task: str, emit: Callable[[object], None]) -> None:
    """Reports the process id, and with `wait` never ends."""
    emit(os.getpid())
    if task == "wait":
        signal.pause()
