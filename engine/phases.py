"""How long the parts of a process's start took, for `--json` and the server's log."""

from __future__ import annotations

import time
from typing import Final


class Phases:
    """Seconds by name, in the order in which the parts of a start ended. A part that a process does again is not counted: what
    is known is of its first model."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = time.perf_counter()

    def ended(self, name: str) -> None:
        """A part has ended; it began when the one before it ended."""
        now = time.perf_counter()
        self.seconds.setdefault(name, now - self._before)
        self._before = now

    def rounded(self) -> dict[str, float]:
        """The seconds, to tenths of milliseconds."""
        return {name: round(seconds, 4) for name, seconds in self.seconds.items()}


PHASES: Final = Phases()
"""Those of this process, whose first part begins when this module is imported."""
