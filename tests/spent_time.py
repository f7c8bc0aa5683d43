"""What a test costs, whatever else the machine does: processor time, and time in which nothing of it runs.

In: this process and its descendants. Out: `spent()`, seconds that never decrease: the processor time of all of them, those that
have ended included, plus the time for which every thread of theirs slept. A thread that waits for a processor is in state R and
does not sleep (proc(5)), so a busy machine adds nothing, and a test that sleeps, or waits for a peer, costs what it waits.
Parallel processes of a test add up, as they would if all processors were busy with other tests.

`Watch` counts sleep in a thread that looks once per `TICK`, so shorter waits are not seen. Processor time of a process that
leaves the family (its parent ended first) is lost.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.process_stat import Stat, every_stat, read_stat

TICK: Final = 0.05
"""Seconds between two looks."""
IDLE: Final = 0.1
"""A family that used more than this share of a tick did not sleep."""
_AWAKE: Final = frozenset("RD")


def descendants() -> dict[int, Stat]:
    """Living processes that this one started, directly or not."""
    if not _has_children():
        return {}
    every = every_stat()
    found: dict[int, Stat] = {}
    last = {os.getpid()}
    while last:
        last = {pid for pid, stat in every.items() if stat.parent in last and pid not in found}
        found |= {pid: every[pid] for pid in last}
    return found


def _has_children() -> bool:
    """Reads nothing of /proc, since most tests have none."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def used(family: dict[int, Stat]) -> float:
    """Processor seconds of this process, of its children that have ended, and of a family of descendants."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(stat.seconds for stat in family.values())


class Watch:
    """Counts seconds for which this process and its descendants slept, from `start` on."""

    def __init__(self) -> None:
        self.asleep = 0.0
        self.own = 0.0  # processor seconds of the watching thread
        self._most = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; returns when the thread has ended."""
        self._end.set()
        self._thread.join()

    def spent(self) -> float:
        """Processor seconds and seconds asleep since an arbitrary moment; never less than before."""
        self._most = max(self._most, used(descendants()) - self.own + self.asleep)
        return self._most

    def _look(self) -> None:
        me, before = threading.get_native_id(), 0.0
        while not self._end.wait(TICK):
            family = descendants()
            now = used(family) - time.thread_time()
            if now - before < IDLE * TICK and not any(state in _AWAKE for state in _states(family, me)):
                self.asleep += TICK
            before, self.own = now, time.thread_time()


def _states(family: dict[int, Stat], but: int) -> Iterator[str]:
    """States of all threads of this process and of a family, except one thread."""
    for pid in (os.getpid(), *family):
        for path in Path(f"/proc/{pid}/task").glob("[0-9]*/stat"):
            if int(path.parent.name) != but and (stat := read_stat(path)):
                yield stat.state
