"""What the kernel says of a process or thread in `/proc` (proc(5), `/proc/pid/stat`)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """Of a process or thread: state, parent, session, and processor seconds with those of its children that have ended."""

    state: str
    parent: int
    session: int
    seconds: float


def read_stat(path: Path) -> Stat | None:
    """A `stat` of /proc; None if the process is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = path.read_text().rpartition(")")[2].split()
        return Stat(words[0], int(words[1]), int(words[3]), sum(map(int, words[11:15])) / _TICKS)
    return None


def every_stat() -> dict[int, Stat]:
    """Those of all processes, by number."""
    return {int(path.parent.name): stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := read_stat(path))}
