"""Memory of the caches as the scheduler sees it: pages of some tokens each, and which of them sequences have.

A `Memory` is an immutable value. `grant` gives a sequence pages, `freed` takes them back, and both return the memory after it.
There are two: `ContiguousRows`, where each row of a batch has a cache of its own, and `Pool` (`engine.serving.pool`), where any
page may be any sequence's, and full pages of prompts are kept for others that begin with the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, Self

PAGE_TOKENS: Final = 64
"""Tokens of a page: the unit in which memory is counted."""


class Grant(NamedTuple):
    """What a sequence has: its pages in the order of its tokens, and how many tokens the first of them have already."""

    pages: tuple[int, ...]
    cached: int = 0


class Memory(Protocol):
    """Pages of caches, and who has them."""

    @property
    def rows(self) -> int:
        """Number of sequences that decode together."""
        ...

    @property
    def pages(self) -> int:
        """Number of pages of all caches that sequences can have."""
        ...

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        ...

    @property
    def longest(self) -> int:
        """Most tokens of one sequence."""
        ...

    @property
    def used(self) -> int:
        """Pages that sequences have."""
        ...

    def grant(self, row: int, tokens: int, keys: Sequence[bytes]) -> tuple[Self, Grant] | None:
        """Pages for a sequence of up to `tokens` tokens, at most `longest`, in a row that has none; None if there are too few.
        `keys` are those of full pages with which the sequence begins (`engine.serving.keys`), of which it need not compute what
        the memory has. If no sequence has pages, there are enough."""
        ...

    def filled(self, pages: Sequence[int], keys: Sequence[bytes]) -> Self:
        """These pages, which a sequence has, are full, and nobody writes them again; these are their keys."""
        ...

    def freed(self, pages: Sequence[int], *, forget: bool = False) -> Self:
        """A sequence with these pages is over; with `forget`, nobody else may read what is in them from now on."""
        ...


@dataclass(frozen=True, slots=True)
class ContiguousRows:
    """Each row has the pages of `longest` tokens, which are next to each other in the caches and no other row's. `owned`: pages
    that sequences have."""

    rows: int
    longest: int
    page_tokens: int = PAGE_TOKENS
    owned: frozenset[int] = frozenset()

    @property
    def pages(self) -> int:
        return self.rows * self._pages_of_row

    @property
    def used(self) -> int:
        return len(self.owned)

    def grant(self, row: int, tokens: int, keys: Sequence[bytes]) -> tuple[Self, Grant] | None:
        pages = tuple(range(row * self._pages_of_row, (row + 1) * self._pages_of_row))
        if tokens > self.longest or not self.owned.isdisjoint(pages):
            return None
        return replace(self, owned=self.owned.union(pages)), Grant(pages)

    def filled(self, pages: Sequence[int], keys: Sequence[bytes]) -> Self:
        return self

    def freed(self, pages: Sequence[int], *, forget: bool = False) -> Self:
        return replace(self, owned=self.owned.difference(pages))

    @property
    def _pages_of_row(self) -> int:
        return -(-self.longest // self.page_tokens)
