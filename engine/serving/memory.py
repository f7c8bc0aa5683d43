"""Memory of the caches as the scheduler sees it: pages of some tokens each, and rows of a batch.

A `Memory` says which pages a sequence takes; it holds no state, and the scheduler keeps what is free. Today's caches are
contiguous: the pages of a row are its own, whatever a sequence needs of them. A cache of pages is another `Memory`.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Protocol

PAGE_TOKENS: Final = 64
"""Tokens of a page: the unit in which memory is counted."""


class Memory(Protocol):
    """Rows and pages of a batch. Both are numbered from 0."""

    @property
    def rows(self) -> int:
        """Number of sequences that decode together."""
        ...

    @property
    def pages(self) -> int:
        """Number of pages of all caches."""
        ...

    @property
    def longest(self) -> int:
        """Most tokens of one sequence."""
        ...

    def grant(self, row: int, tokens: int, free: Set[int]) -> frozenset[int] | None:
        """Pages out of `free` for a sequence of up to `tokens` tokens, at most `longest`, in a row; None if they do not do. If
        all pages are free, they do."""
        ...


@dataclass(frozen=True, slots=True)
class ContiguousRows:
    """Each row has the pages of `longest` tokens, which are next to each other in the caches and no other row's."""

    rows: int
    longest: int

    @property
    def pages(self) -> int:
        return self.rows * self._pages_of_row

    def grant(self, row: int, tokens: int, free: Set[int]) -> frozenset[int] | None:
        own = frozenset(range(row * self._pages_of_row, (row + 1) * self._pages_of_row))
        return own if own <= free and tokens <= self.longest else None

    @property
    def _pages_of_row(self) -> int:
        return -(-self.longest // PAGE_TOKENS)
