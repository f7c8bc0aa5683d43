"""A pool of pages, any of which may be any sequence's, with a cache of prefixes.

What holds:

1. A page is free, or it has as many readers as there are sequences that have it. A second sequence gets a page only if it is
   full and has a key, and then nobody writes it.
2. A page keeps its key and its tokens when its last reader is gone, until another sequence needs a page. The page that was free
   for the longest time is taken first; of one sequence the last page, since nobody finds a page without those before it. Pages
   without a key are taken before all others.
3. A key is that of at most one page.
4. All sequences together reach at most `items` chunks of `item_tokens` tokens, a shared page counted for each of its readers:
   as many partial sums of attention have memory.

The first `parking` pages are nobody's: rows without a sequence write there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from engine.serving.memory import PAGE_TOKENS, Grant
from engine.serving.vector import Vector

UNLINKED = -1
"""For a page that is not free, in place of its neighbours."""


class Page(NamedTuple):
    """A page: its key, empty if it has none; how many sequences have it; its neighbours in the ring of free pages."""

    key: bytes = b""
    readers: int = 0
    before: int = UNLINKED
    after: int = UNLINKED


OWN: Final = Page(readers=1)
"""A page of one sequence, without a key."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Pages from `parking` on, for `rows` sequences of up to `longest` tokens. `table` has all pages and, last, the end of the
    ring of free ones: after it is the page that is taken first. `index` has pages by key, in buckets. `free` pages and `items`
    are left."""

    rows: int
    longest: int
    parking: int
    table: Vector[Page]
    index: Vector[tuple[int, ...]]
    end: int
    free: int
    items: int
    item_tokens: int
    page_tokens: int = PAGE_TOKENS

    @classmethod
    def empty(
        cls, rows: int, pages: int, longest: int, *, parking: int = 0, items: int | None = None, item_tokens: int = 256,
        page_tokens: int = PAGE_TOKENS,
    ) -> Pool:  # fmt: skip
        """A pool of `pages` pages, of which the first `parking` are nobody's. `items` None: as many as there may be while no
        page is shared. `item_tokens` is a multiple of `page_tokens`."""
        ring = [Page(b"", 0, page - 1, page + 1) for page in range(pages + 1)]
        ring[:parking] = [Page()] * parking
        ring[parking] = Page(b"", 0, pages, parking + 1)
        ring[pages] = Page(b"", 0, pages - 1, parking)
        most = rows + pages * page_tokens // item_tokens if items is None else items
        longest = min(longest, (pages - parking) * page_tokens, most * item_tokens)
        table, index = Vector[Page].of(ring), Vector[tuple[int, ...]].of([()] * pages)
        return cls(
            rows, longest, parking, table, index, pages, pages - parking, most, item_tokens,
            page_tokens,
        )  # fmt: skip

    @property
    def pages(self) -> int:
        return self.end - self.parking

    @property
    def used(self) -> int:
        return self.pages - self.free

    def grant(self, row: int, tokens: int, keys: Sequence[bytes]) -> tuple[Pool, Grant] | None:
        needed, items = -(-tokens // self.page_tokens), -(-tokens // self.item_tokens)
        if needed - len(keys) > self.free or items > self.items:
            return None
        hits = self.found(keys[:needed])
        idle = sum(self.table[page].readers == 0 for page in hits)
        if needed - len(hits) > self.free - idle:
            return None
        draft = _Draft(self)
        for page in hits:
            draft.read(page)
        fresh = draft.take(needed - len(hits))
        return draft.done(self.items - items), Grant((*hits, *fresh), len(hits) * self.page_tokens)

    def filled(self, pages: Sequence[int], keys: Sequence[bytes]) -> Pool:
        draft = _Draft(self)
        for page, key in zip(pages, keys, strict=True):
            draft.name(page, key)
        return draft.done(self.items)

    def freed(self, pages: Sequence[int], *, forget: bool = False) -> Pool:
        draft = _Draft(self)
        if forget:
            for page in pages:
                draft.forget(page)
        draft.leave(pages)
        return draft.done(self.items + -(-len(pages) * self.page_tokens // self.item_tokens))

    def found(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the first keys, up to the first that none has."""
        pages: list[int] = []
        for key in keys:
            page = self.page_of(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def page_of(self, key: bytes) -> int | None:
        """The page with a key."""
        return next((page for page in self.index[self.bucket(key)] if self.table[page].key == key), None)

    def bucket(self, key: bytes) -> int:
        """Where the index has the page of a key."""
        return int.from_bytes(key[:8], "little") % self.end


class _Draft:
    """A pool in the making: what differs from the one before."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._free = pool, pool.free
        self._pages, self._buckets = dict[int, Page](), dict[int, tuple[int, ...]]()

    def done(self, items: int) -> Pool:
        """The pool, with so many items left."""
        pool = self._pool
        table = pool.table.replaced(self._pages) if self._pages else pool.table
        index = pool.index.replaced(self._buckets) if self._buckets else pool.index
        return replace(pool, table=table, index=index, free=self._free, items=items)

    def take(self, count: int) -> list[int]:
        """Pages for one sequence alone: the first of the ring."""
        end, taken = self._pool.end, list[int]()
        following = self._page(end).after
        for _ in range(count):
            page = self._page(following)
            self.forget(following)
            self._pages[following] = OWN
            taken.append(following)
            following = page.after
        self._join(end, following)
        self._free -= count
        return taken

    def read(self, number: int) -> None:
        """One more sequence has a page that has a key."""
        page = self._page(number)
        if page.readers == 0:
            self._unlink(number)
        self._pages[number] = Page(page.key, page.readers + 1)

    def leave(self, numbers: Sequence[int]) -> None:
        """One sequence less has these pages. The last one frees them: at the end of the ring, or at its start if they have no
        key."""
        keyed, unkeyed = list[int](), list[int]()
        for number in reversed(numbers):
            page = self._page(number)
            self._pages[number] = Page(page.key, page.readers - 1)
            if page.readers == 1:
                (keyed if page.key else unkeyed).append(number)
        self._link(keyed, self._page(self._pool.end).before)
        self._link(unkeyed, self._pool.end)

    def name(self, number: int, key: bytes) -> None:
        """Give a page its key, unless another page has it."""
        pool = self._pool
        bucket = self._bucket(key)
        if not any(self._page(other).key == key for other in bucket):
            self._pages[number] = self._page(number)._replace(key=key)
            self._buckets[pool.bucket(key)] = (*bucket, number)

    def forget(self, number: int) -> None:
        """Take the key of a page, if it has one."""
        page = self._page(number)
        if page.key:
            self._buckets[self._pool.bucket(page.key)] = tuple(one for one in self._bucket(page.key) if one != number)
            self._pages[number] = page._replace(key=b"")

    def _page(self, number: int) -> Page:
        return self._pages.get(number) or self._pool.table[number]

    def _bucket(self, key: bytes) -> tuple[int, ...]:
        number = self._pool.bucket(key)
        found = self._buckets.get(number)
        return self._pool.index[number] if found is None else found

    def _unlink(self, number: int) -> None:
        """Take a page out of the ring."""
        page = self._page(number)
        self._join(page.before, page.after)
        self._free -= 1

    def _link(self, numbers: Sequence[int], before: int) -> None:
        """Put free pages into the ring, one after the other, after another one."""
        after = self._page(before).after
        for index, number in enumerate(numbers):
            left = numbers[index - 1] if index else before
            right = numbers[index + 1] if index + 1 < len(numbers) else after
            self._pages[number] = Page(self._page(number).key, 0, left, right)
        if numbers:
            page = self._page(before)
            self._pages[before] = Page(page.key, 0, page.before, numbers[0])
            page = self._page(after)
            self._pages[after] = Page(page.key, 0, numbers[-1], page.after)
        self._free += len(numbers)

    def _join(self, before: int, after: int) -> None:
        """Make two pages of the ring neighbours."""
        page = self._page(before)
        self._pages[before] = Page(page.key, 0, page.before, after)
        page = self._page(after)  # the same page, if the ring has no other
        self._pages[after] = Page(page.key, 0, before, page.after)
