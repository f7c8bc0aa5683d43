"""Where the threads of several ranks meet: each leaves what it has, waits for all others, and gets what all have left.

There is one wait, as in a collective on GPUs: a rank that has left the barrier may go on while others still read
what it left there. Places alternate, so it leaves the next thing elsewhere, and it cannot leave a third before all have read.
"""

from __future__ import annotations

import threading
from typing import Any

from engine.errors import EngineError


class RankStopped(EngineError):
    """Another rank failed, so this one stops; not the error to report."""


class RankBarrier:
    """A barrier of `ranks` threads. EngineError in each of them if they come for different things."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks)
        self._slots: tuple[list[tuple[str, Any]], list[tuple[str, Any]]] = ([("", None)] * ranks, [("", None)] * ranks)
        self._count = [0] * ranks

    def exchange(self, rank: int, what: str, own: Any = None) -> list[Any]:
        """Leave `own` and return what each rank left, in order, after all have come. RankStopped if one fails instead."""
        slot = self._slots[self._count[rank] % 2]
        self._count[rank] += 1
        slot[rank] = (what, own)
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RankStopped(f"rank {rank} stopped, because another rank failed") from None
        for other, (theirs, _) in enumerate(slot):
            if theirs != slot[0][0]:
                raise EngineError(f"rank 0 is at {slot[0][0]}, and rank {other} at {theirs}")
        return [left for _, left in slot]

    def stop(self) -> None:
        """Let every rank that waits, and all that will come, fail."""
        self._barrier.abort()

    def reset(self) -> None:
        """Make the barrier usable again, when no thread waits."""
        self._barrier.reset()
        self._count = [0] * self.ranks
