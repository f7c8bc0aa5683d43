"""Why planted mistakes that the emulator did not find are none, or cannot be found: a row of `emulator_faults` in, a reason out.

A reason that begins with "equivalent" says that the changed program does the same by the PTX ISA; any other is a limit.
"""

from __future__ import annotations

from typing import Any, Final

REASONS: Final[dict[tuple[str, str], str]] = {}
"""Reason by class and the beginning of the file's name."""


def reason(row: dict[str, Any]) -> str:
    """The reason, or that there is none yet."""
    for (kind, file), text in REASONS.items():
        if row["class"] == kind and row["file"].startswith(file):
            return text
    return "not explained"
