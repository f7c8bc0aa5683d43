"""The lines that a launch prints, up to a limit."""

from __future__ import annotations

from typing import Final

MOST_LINES: Final = 10_000
"""Lines of a launch that are kept."""


class PrintedLines:
    """Takes lines one by one; counts those beyond `MOST_LINES`."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.others = 0

    def add(self, line: str) -> None:
        """Take a line."""
        if len(self.kept) < MOST_LINES:
            self.kept.append(line)
        else:
            self.others += 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, and if some are left out how many."""
        return (*self.kept, *([f"... and {self.others} more lines"] if self.others else []))
