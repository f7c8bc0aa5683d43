"""Whose pages are whose: what the host knows of the tables and slots that it sends to steps over pages.

Kernels are proven to stay inside the pool and to write at distinct slots, and the verifier holds that they find pages in the
step's tables only (`engine.graph.pages_rule`). That a page is written by one sequence alone, and that what is read there are
its own tokens, is the host's to ensure. `PageTables` refuses whatever would break it, before it is sent:

- A sequence writes its next token after the last one. Its full pages are never written again; the others are its own.
- A page is in two tables only if it is full in both and at the same index, so that it is a prefix that they share.
- Tokens before those that a chunk writes are there: they were written, and no other sequence wrote the page since.
- Of the prompts of a chunk none has a page that another one writes there. Their pages are copied one prompt after the other,
  and a token attends to slots of its own prompt, up to its own: what is sent says so row by row, and is compared once more.
- A row without a sequence has a slot of the first pages, which belong to nobody (parking). Or it is lent to a sequence: it has
  its table, and processes a token after that of the sequence's own row.
- A step runs only on the tables that were sent last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.graph.integers import GraphError, repeats

Integers = NDArray[np.int32]


class Part(NamedTuple):
    """`tokens` tokens of a prompt from position `first` on, of a sequence in no row, which has these pages."""

    pages: Sequence[int]
    first: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Packed:
    """What a chunk of several prompts needs: the pages of all, (n,), and for each token its position, its slot in the pool, and
    of the slots to which the pages are copied the first and the last that it attends to, (count,) each. `filled` slots are
    copied."""

    table: Integers
    positions: Integers
    slots: Integers
    firsts: Integers
    lasts: Integers
    filled: int


class PageTables:
    """Tables of `rows` rows over a pool of `pages` pages of `page_tokens` tokens each; a table has at most `table_pages`, and
    the prompts of a chunk `chunk_pages` together, each a multiple of `prompt_pages`. GraphError for what is refused."""

    def __init__(
        self, rows: int, pages: int, page_tokens: int, table_pages: int, chunk_pages: int = 0, prompt_pages: int = 1
    ) -> None:  # fmt: skip
        self.rows, self.pages, self.page_tokens, self.table_pages = rows, pages, page_tokens, table_pages
        self.chunk_pages, self.prompt_pages = chunk_pages or table_pages, prompt_pages
        self.parking = -(-rows // page_tokens)
        """Pages at the start of the pool that belong to nobody."""
        self._tables: dict[int, Integers] = {}
        self._lengths = np.zeros(rows, np.int32)  # tokens of each row, 0 without a sequence
        self._written = np.zeros(pages, np.int32)  # tokens of each page, by the sequence that has it, or had it last
        self._users = np.zeros(pages, np.int32)  # tables that have a page
        self._index = np.zeros(pages, np.int32)  # where that sequence has it
        self._parked = np.arange(rows, dtype=np.int32)
        self._device = np.zeros((rows, table_pages), np.int32)
        self._device[:, 0] = self._parked // page_tokens
        self._sent: Integers | None = None
        self._lent: dict[int, int] = {}  # rows without a sequence that have the table of another row

    def chunk(self, parts: Sequence[Part]) -> Packed:
        """What a chunk with tokens of some prompts needs. They count as written."""
        tables = [self._checked(part.pages, part.first) for part in parts]
        for part, table in zip(parts, tables, strict=True):
            if part.tokens < 1 or part.first + part.tokens > len(table) * self.page_tokens:
                what = f"no slots for tokens {part.first} to {part.first + part.tokens - 1}"
                raise _refused(f"has {len(table)} pages, and {what}")
        self._check_apart(parts, tables)
        copied, begin = np.zeros(self.chunk_pages, np.int32), 0
        found: list[tuple[Integers, Integers, Integers]] = []
        for part, table in zip(parts, tables, strict=True):
            used = -(-(part.first + part.tokens) // self.page_tokens)
            if begin + used > self.chunk_pages:
                raise _refused(f"of all prompts of a chunk has {self.chunk_pages} pages, and they have more")
            room = -(-used // self.prompt_pages) * self.prompt_pages
            copied[begin : begin + room] = table[0]  # not a page of nobody: what is there may not be finite
            copied[begin : begin + used] = table[:used]
            positions = np.arange(part.first, part.first + part.tokens, dtype=np.int32)
            slots = self._slots(table[positions // self.page_tokens], positions)
            found.append((positions, slots, np.full(part.tokens, begin * self.page_tokens, np.int32)))
            begin += room
        positions, slots, firsts = (np.concatenate(values) for values in zip(*found, strict=True))
        packed = Packed(copied, positions, slots, firsts, firsts + positions, begin * self.page_tokens)
        self.check_packed(parts, packed)
        for part, table in zip(parts, tables, strict=True):
            self._fill(table, part.first + part.tokens)
        return packed

    def drop(self, parts: Sequence[Part]) -> None:
        """Tokens of a chunk count as not written any more: it is done again."""
        for part in parts:
            self._fill(np.array(part.pages, np.int32), part.first)

    def check_packed(self, parts: Sequence[Part], packed: Packed) -> None:
        """Refuse a chunk unless each of its tokens writes its own slot, and attends to its prompt's tokens up to itself."""
        row, size = 0, self.page_tokens
        for part in parts:
            rows = slice(row, row := row + part.tokens)
            own, firsts, lasts = np.asarray(part.pages, np.int32), packed.firsts[rows], packed.lasts[rows]
            positions = np.arange(part.first, part.first + part.tokens)
            begin, used = int(firsts[0]), -(-(part.first + part.tokens) // size)
            copied = packed.table[begin // size :][: -(-used // self.prompt_pages) * self.prompt_pages]
            wrong = [
                (packed.positions[rows] != positions).any() or (lasts - begin != positions).any(),
                (packed.slots[rows] != self._slots(own[positions // size], positions)).any(),
                (firsts != begin).any() or begin % (self.prompt_pages * size) != 0 or begin + used * size > packed.filled,
                not np.array_equal(copied[:used], own[:used]) or (copied[used:] != own[0]).any(),
            ]
            if any(wrong):
                raise _refused(f"would give tokens {part.first} to {positions[-1]} of a prompt slots that are not its own")
        if row != packed.slots.size:
            raise _refused(f"is for {packed.slots.size} tokens, of which {row} are of prompts")

    def _check_apart(self, parts: Sequence[Part], tables: Sequence[Integers]) -> None:
        """Refuse prompts of which one has a page that another one writes in the same chunk."""
        writers = np.zeros(self.pages, np.int32)
        users = np.zeros(self.pages, np.int32)
        for part, table in zip(parts, tables, strict=True):
            users[table] += 1
            writers[table[part.first // self.page_tokens :]] += 1
        shared = np.flatnonzero((writers > 0) & (users > 1))
        if shared.size:
            raise _refused(f"has page {shared[0]}, which another prompt of the chunk has too, and which one of them writes")

    def join(self, row: int, pages: Sequence[int], length: int) -> None:
        """Give a row the table of a sequence with `length` tokens."""
        if not 0 <= row < self.rows or row in self._tables:
            raise _refused(f"is for row {row}, which is none or has a sequence")
        table = self._tables[row] = self._checked(pages, length)
        self._lengths[row] = length
        self._fill(table, length)
        self._users[table] += 1
        self._lent.pop(row, None)
        self._device[row] = 0
        self._device[row, : len(table)] = table

    def remove(self, row: int) -> None:
        """Park a row, and those that are lent to it."""
        self._users[self._tables.pop(row)] -= 1
        self._lengths[row] = 0
        lent = [one for one, owner in self._lent.items() if owner == row]
        for one in (row, *lent):
            self._lent.pop(one, None)
            self._device[one] = 0
            self._device[one, 0] = one // self.page_tokens

    def lend(self, row: int, owner: int) -> bool:
        """Give a row without a sequence the table of a row that has one; returns whether it is another one than before."""
        if not 0 <= row < self.rows or row in self._tables or owner not in self._tables:
            raise _refused(f"of row {owner} is lent to row {row}, and one of them is none, or has a sequence")
        if self._lent.get(row) == owner:
            return False
        self._lent[row] = owner
        self._device[row] = self._device[owner]
        return True

    def rewind(self, row: int, length: int) -> None:
        """Drop the tokens of a row from `length` on: steps that were enqueued ahead wrote them."""
        table, full = self._tables[row], length // self.page_tokens
        if not 0 < length <= self._lengths[row] or (self._users[table[full:]] > 1).any():
            raise _refused(f"has tokens from {length} on in row {row}, which other tables have too, or none")
        self._lengths[row] = length
        self._fill(table, length)

    def table(self) -> Integers:
        """The tables of all rows, (rows, table_pages), to be sent now; checked whole."""
        users = np.zeros(self.pages, np.int32)
        for row, table in self._tables.items():
            users[table] += 1
            self._check_tokens(table, int(self._lengths[row]))
        shared = np.flatnonzero((users > 1) & (self._written < self.page_tokens))
        if shared.size:
            raise _refused(f"has page {shared[0]}, which another has too, and which is not full")
        self._sent = self._device.copy()
        return self._sent

    def next_slots(self, taking: Sequence[int], lent: Sequence[tuple[int, int]] = ()) -> dict[str, Integers]:
        """Positions, slots and lengths, (rows,) each, of a step that processes the next token of the rows `taking`. Of `lent`,
        rows with their owners, each processes one more token of its owner, in order. All count as written."""
        if self._sent is None or not np.array_equal(self._sent, self._device):
            raise _refused("has changed since it was sent, and a step would read the old one")
        rows = np.array(taking, np.int32)
        positions, slots, filled = np.zeros(self.rows, np.int32), self._parked.copy(), np.ones(self.rows, np.int32)
        for row in taking:
            self._check_next(row)
        lengths = self._lengths[rows]
        positions[rows], filled[rows] = lengths, lengths + 1
        own = self._device[rows, lengths // self.page_tokens]
        slots[rows] = self._slots(own, lengths)
        self._written[own] = lengths % self.page_tokens + 1
        self._lengths[rows] += 1
        known = set(taking)
        for row, owner in lent:
            if self._lent.get(row) != owner or owner not in known or row in known:
                raise _refused(f"of row {owner} is not lent to row {row}, or that row takes another token")
            known.add(row)
            self._check_next(owner)
            length = int(self._lengths[owner])
            page = self._device[owner, length // self.page_tokens]
            positions[row], filled[row], slots[row] = length, length + 1, page * self.page_tokens + length % self.page_tokens
            self._written[page] = length % self.page_tokens + 1
            self._lengths[owner] += 1
        return {"positions": positions, "slots": slots, "lengths": filled}

    def _check_next(self, row: int) -> None:
        """Check that the slot of the next token of a row is its own."""
        table, length = self._tables.get(row), int(self._lengths[row])
        if table is None:
            raise _refused(f"is of row {row}, which has no sequence, and would be written")
        if length >= len(table) * self.page_tokens:
            raise _refused(f"has {len(table)} pages in row {row}, and no slot for token {length}")
        page = table[length // self.page_tokens]
        if self._users[page] > 1:
            raise _refused(f"has page {page} in row {row}, which would be written, and which another table has too")
        if self._written[page] != length % self.page_tokens:
            raise _refused(f"lacks tokens before {length} in row {row}: another sequence wrote page {page}")

    def _fill(self, table: Integers, length: int) -> None:
        """Count the first `length` tokens of a sequence as written, and no others of its pages."""
        full, rest = divmod(length, self.page_tokens)
        self._written[table[:full]] = self.page_tokens
        self._written[table[full:]] = 0
        self._index[table] = np.arange(len(table))
        if rest:
            self._written[table[full]] = rest

    def _slots(self, pages: NDArray[Any], positions: NDArray[Any]) -> Integers:
        return (pages * self.page_tokens + positions % self.page_tokens).astype(np.int32)

    def _checked(self, pages: Sequence[int], length: int) -> Integers:
        """The table of a sequence with `length` tokens that is in no row."""
        table = np.array(pages, np.int32)
        if not 0 < len(table) <= self.table_pages or not 0 <= length <= len(table) * self.page_tokens:
            raise _refused(f"has {len(table)} pages and {length} tokens, and a table takes 1 to {self.table_pages} pages")
        if repeats(table):
            raise _refused("has a page twice")
        if table.min() < self.parking or table.max() >= self.pages:
            raise _refused(f"has pages {table.min()} to {table.max()}, and sequences have {self.parking} to {self.pages - 1}")
        self._check_tokens(table, length)
        index, full, used = np.arange(len(table)), length // self.page_tokens, self._users[table] > 0
        wrong = used & ((index >= full) | (self._written[table] < self.page_tokens))
        if wrong.any():
            raise _refused(f"has page {table[wrong][0]}, which a row has too, and which is not a full page of both")
        return table

    def _check_tokens(self, table: Integers, length: int) -> None:
        """Refuse a table whose first `length` tokens are not all in its pages."""
        full, rest = divmod(length, self.page_tokens)
        absent = (self._written[table[:full]] < self.page_tokens) | (self._index[table[:full]] != np.arange(full))
        missing = table[:full][absent]
        if not missing.size and rest and self._written[table[full]] != rest:
            missing = table[full : full + 1]
        if missing.size:
            page = missing[0]
            what = f"page {page} has {self._written[page]}, written at index {self._index[page]}"
            raise _refused(f"lacks tokens of the first {length}: {what}")


def _refused(what: str) -> GraphError:
    return GraphError(f"a table of pages {what}", where="pages of the cache")
