"""The state of one `mbarrier` object: arrivals and bytes go in, phases come out; misuse raises `BarrierMisuse`.

Source: PTX ISA, "Parallel synchronization and communication instructions: mbarrier". A phase completes when no arrival and no
byte is outstanding; then the count is reset. Operations that the ISA leaves undefined (more arrivals than pending, counts out
of range) are misuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_ARRIVALS: Final = (1 << 20) - 1
MAX_PENDING_BYTES: Final = (1 << 20) - 1


class BarrierMisuse(Exception):
    """An operation that the ISA leaves undefined; the text is a clause about the barrier."""


@dataclass(slots=True)
class TransactionBarrier:
    """`expected` arrivals per phase; `phase` counts completed phases."""

    expected: int
    pending: int = field(init=False)
    outstanding: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.expected <= MAX_ARRIVALS:
            raise BarrierMisuse(f"is initialised with {self.expected} arrivals, not 1 to {MAX_ARRIVALS}")
        self.pending = self.expected

    def expect(self, count: int) -> None:
        """`expect_tx`: adds `count` outstanding bytes to the current phase."""
        self.outstanding += count
        if abs(self.outstanding) > MAX_PENDING_BYTES:
            raise BarrierMisuse(f"waits for {self.outstanding} bytes, more than {MAX_PENDING_BYTES}")

    def arrive(self, count: int = 1) -> int:
        """Arrives `count` times; returns the phase of the arrival."""
        if not 1 <= count <= self.pending:
            raise BarrierMisuse(f"gets {count} arrivals in phase {self.phase} while it expects {self.pending} more")
        arrived = self.phase
        self.pending -= count
        self._complete_phase()
        return arrived

    def complete(self, count: int) -> None:
        """`complete_tx`: `count` bytes have arrived."""
        self.outstanding -= count
        if abs(self.outstanding) > MAX_PENDING_BYTES:
            raise BarrierMisuse(f"got {-self.outstanding} bytes that nobody expects")
        self._complete_phase()

    def passed_parity(self, parity: int) -> bool:
        """`test_wait.parity`: whether the phase of this parity, the current or the preceding one, is complete."""
        return self.phase & 1 != parity & 1

    def passed(self, arrived: int) -> bool:
        """`test_wait` with the state that an arrival returned, of the current or the preceding phase only."""
        if not self.phase - 1 <= arrived <= self.phase:
            raise BarrierMisuse(f"is asked for phase {arrived} in phase {self.phase}; only the current and the last are known")
        return self.phase != arrived

    def _complete_phase(self) -> None:
        if self.pending == 0 and self.outstanding == 0:
            self.phase += 1
            self.pending = self.expected
