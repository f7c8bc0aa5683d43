"""What the scheduler must do, as a model that keeps what happened itself and compares every decision with the rules.

The model also has the slots of all pages, and says what each contains: of a prompt's token all tokens up to it, since its keys
and values depend on them. So a page that is read by another request, overwritten, or found for the wrong tokens is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import engine.launch_limits
import engine.serving.keys
import engine.serving.pool
import engine.serving.scheduler

Slot = tuple[int, int]
"""A page, and an offset in it."""


@dataclass(frozen=True)
class Code:
    """The modules under test, or copies with a planted mistake."""

    scheduler: Any = engine.serving.scheduler
    pool: Any = engine.serving.pool
    keys: Any = engine.serving.keys
    launch_limits: Any = engine.launch_limits


@dataclass
class Known:
    """What the model knows of a request: its tokens, what is computed, how many it generated, and its pages."""

    request: Any
    ids: tuple[int, ...]
    computed: int = 0
    tokens: int = 0
    admitted: bool = False
    overtaken: int = 0
    pages: tuple[int, ...] = ()


@dataclass
class Model:
    """A scheduler's state, and what is known of it without the scheduler. `ahead`: steps in flight when a request ends.
    `enqueued`: whether there is a step that prompts follow, whose tokens were not read."""

    code: Code
    policy: Any
    memory: Any
    ahead: int = 2
    state: Any = None
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    slots: dict[Slot, object] = field(default_factory=dict[Slot, object])
    since_decode: int = 0
    last: Any = None
    enqueued: bool = False
    hits: int = 0
    texts: dict[bytes, set[tuple[int, ...]]] = field(default_factory=dict[bytes, "set[tuple[int, ...]]"])
    """The tokens for which a request would find a page, by key."""

    def __post_init__(self) -> None:
        self.state = self.state or self.code.scheduler.State.empty(self.memory)

    def copy(self) -> Model:
        known = {number: replace(one) for number, one in self.known.items()}
        return replace(self, known=known, slots=dict(self.slots))

    def submit(self, number: int, ids: Iterable[int], max_tokens: int, priority: int = 0, *, share: bool = True) -> None:
        ids = tuple(ids)
        size = self.memory.page_tokens
        keys = self.code.keys.page_keys(ids, size) if share else ()
        for number_of_page, key in enumerate(keys, start=1):
            self.texts.setdefault(key, set()).add(ids[: size * number_of_page])
        request = self.code.scheduler.Request(number, len(ids), max_tokens, priority, keys)
        assert self.code.scheduler.fits(request, self.memory)
        self.known[number] = Known(request, ids)
        self.state = self.code.scheduler.submit(self.state, request)
        self.check()

    def cancel(self, number: int, *, wrong: bool = False) -> None:
        one = self.known.pop(number, None)
        self.state = self.code.scheduler.without(self.state, number, wrong=wrong)
        if one is not None:
            self._over(one)
            if wrong:
                assert not set(one.pages) & {page for page, _ in self._cached()}, "what went wrong may be read"
        self.check()

    def iteration(
        self, stops: Iterable[int] = (), missing: Iterable[int] = (), guesses: int = 0, right: int = 0, *, late: bool = False
    ) -> Any:  # fmt: skip
        """One iteration; requests in `stops` get a token that ends them, if they get one; those in `missing` get none, if it is
        a decode step. Its spare rows have up to `guesses` guesses of each request, the first `right` of which are right.
        `late`: if prompts follow a step, its tokens are read when their launch was decided."""
        code, before = self.code.scheduler, self.state
        self.state, iteration = code.plan(before, self.policy)
        self._check_admission(before)
        if not before.running:
            self.since_decode = 0  # nobody waits for a step
        was_enqueued, self.enqueued = self.enqueued, False
        if isinstance(iteration, code.Prompts):
            self._check_launch(before, iteration.chunks)
            if was_enqueued and self.state.running:
                self._read(self.state.running, set(stops), set(missing), (0, 0), 0)
            for chunk in iteration.chunks:
                self._chunk(chunk, set(stops))
        elif isinstance(iteration, code.Decode):
            self._check_step(iteration)
            self.enqueued = late and iteration.followed and not was_enqueued
            if not self.enqueued:
                self._read(iteration.rows, set(stops), set(missing), (guesses, right), len(iteration.spare))
        else:
            assert not self.known, "requests, and nothing is done"
        self.last = type(iteration)
        self.check()
        return iteration

    def drain(self) -> None:
        """Iterations until no request is left, no more than the requests have chunks and tokens."""
        size = min(self.policy.cut_tokens, self.policy.chunk_tokens, self.policy.launch.tokens)
        left = sum(
            2 * -(-(one.request.prompt - one.computed) // size) + one.request.max_tokens - one.tokens
            for one in self.known.values()
        )
        for _ in range(left):
            if not self.known:
                break
            self.iteration()
        assert not self.known, "a request does not end"
        state = self.state
        assert state.memory.used == 0 and not state.running and not state.waiting and not state.prompts
        assert state.free_rows == frozenset(range(self.memory.rows))

    def check(self) -> None:
        """Rows have one owner, requests are where they belong and have what they may need, pages are right."""
        state, memory = self.state, self.memory
        assert all(row == one.row for row, one in state.running.items())
        owners = [*state.running.values(), *state.prompts]
        rows = [*state.free_rows, *(one.row for one in owners)]
        assert sorted(rows) == list(range(memory.rows)), "a row is lost, or has two owners"
        numbers = [*(one.request.number for one in owners), *(one.request.number for one in state.waiting)]
        assert sorted(numbers) == sorted(self.known), "a request is lost, or there twice"
        for one in owners:
            known = self.known[one.request.number]
            needed = one.request.prompt + one.request.max_tokens
            assert len(one.pages) * memory.page_tokens >= needed, "a request has too few pages for what it may need"
            assert len(set(one.pages)) == len(one.pages), "a request has a page twice"
            assert one.pages == known.pages and one.done == known.computed, "a request's pages change"
        if isinstance(state.memory, self.code.pool.Pool):
            check_pool(state.memory, [one.pages for one in owners], self.memory.items)
        else:
            pages = [page for one in owners for page in one.pages]
            assert sorted(pages) == sorted(state.memory.owned), "a page is lost, or has two owners"
        for page, tokens in self._cached():
            size = memory.page_tokens
            for offset in range(size):
                end = len(tokens) - size + offset + 1
                assert self.slots.get((page, offset)) == tokens[:end], "a page is found for tokens that it does not have"

    def _cached(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Pages that a request may find, and the tokens for which it would."""
        table = getattr(self.state.memory, "table", ())
        for number, page in enumerate(table):
            if page.key:
                yield from ((number, text) for text in self.texts[page.key])

    def _check_admission(self, before: Any) -> None:
        """Requests were admitted one after the other, nobody was overtaken too often by one, and each found all that there was
        for it. If no prompt is computed, none could be."""
        now = self.state.prompts
        if not now:
            after_decode = self.last is self.code.scheduler.Decode
            free = before.free_rows and before.waiting and (not before.running or after_decode)
            assert not free or not self._could_begin(before), "a request waits that could begin"
        assert now[: len(before.prompts)] == before.prompts, "a prompt was given up for another"
        rows, taken = set(before.free_rows), set[int]()
        for admitted in now[len(before.prompts) :]:
            assert admitted.row == min(rows), "a row is taken that makes the bucket larger"
            rows.remove(admitted.row)
            table = enumerate(getattr(before.memory, "table", ()))
            self._check_admitted(admitted, {page.key for number, page in table if number not in taken})
            taken.update(admitted.pages[admitted.cached // self.memory.page_tokens :])  # which lose their keys

    def _check_admitted(self, now: Any, keys: set[bytes]) -> None:
        """Check a request that was admitted when the memory had pages with these keys."""
        admitted = self.known[now.request.number]
        for one in self.known.values():
            if not one.admitted and one.request.number < admitted.request.number:  # numbers rise
                one.overtaken += 1
                assert one.overtaken <= self.policy.patience, "a request was overtaken too often"
                assert one.request.priority > now.request.priority, "a request was overtaken by one that may not"
        expected = 0
        for key in now.request.keys[: (now.request.prompt - 1) // self.memory.page_tokens]:
            if key not in keys:
                break
            expected += self.memory.page_tokens
        assert now.cached == expected == now.done, "a prefix is not found"
        admitted.admitted, admitted.pages, admitted.computed = True, now.pages, expected
        self.hits += expected
        for position in range(expected):
            assert self._slot(admitted, position) == admitted.ids[: position + 1], "a hit has other tokens"

    def _could_begin(self, state: Any) -> bool:
        """Whether the request that goes next would have enough pages, counted page by page."""
        memory, size = state.memory, self.memory.page_tokens
        one = self._following(state)
        needed = -(-(one.prompt + one.max_tokens) // size)
        if not isinstance(memory, self.code.pool.Pool):
            return True
        pages = {page.key: page for page in memory.table if page.key}
        reusable = one.keys[: (one.prompt - 1) // size]
        hits = [pages[key] for key in itertools.takewhile(pages.__contains__, reusable)]
        idle = sum(page.readers == 0 for page in hits)
        owned = sum(page.readers > 0 for page in memory.table)
        items = -(-(one.prompt + one.max_tokens) // memory.item_tokens)
        return needed - len(hits) <= memory.pages - owned - idle and items <= memory.items

    def _check_launch(self, before: Any, chunks: Any) -> None:
        """Chunks of one launch: what it has room for, of different prompts, none of which computes what another one does."""
        size, launch, policy = self.memory.page_tokens, self.policy.launch, self.policy
        assert 0 < len(chunks) <= launch.prompts, "a launch has more prompts than it may"
        assert tuple(chunk.request for chunk in chunks) == self.state.prompts[: len(chunks)], "prompts are not in their order"
        assert all(chunk.last for chunk in chunks[:-1]), "a prompt begins before the one before it ends"
        tokens, most = sum(chunk.tokens for chunk in chunks), min(policy.chunk_tokens, launch.tokens)
        assert tokens <= most, "a launch has more tokens than it may"
        unit = launch.prompt_slots
        slots = sum(-(-(chunk.first + chunk.tokens) // unit) * unit for chunk in chunks)
        assert len(chunks) == 1 or slots <= launch.slots, "a launch has more slots than there are"
        computed = set[bytes]()
        for chunk in chunks:
            keys, reusable = chunk.request.request.keys, (chunk.request.request.prompt - 1) // size
            assert computed.isdisjoint(keys[chunk.first // size : reusable]), "a prefix is computed twice in a launch"
            computed.update(keys[chunk.first // size :])
        room = min(launch.tokens, policy.chunk_tokens if not before.running else before.budget)
        full = len(chunks) == launch.prompts or tokens == room
        if chunks[-1].last and not full and self.state.waiting and self.state.free_rows:
            following = self._following(self.state).keys[: (self._following(self.state).prompt - 1) // size]
            waits = len(self.state.prompts) > len(chunks) or not computed.isdisjoint(following)
            assert waits or not self._could_begin(self.state), "a launch has room for a prompt that could begin"

    def _following(self, state: Any) -> Any:
        """The request that goes next."""
        waiting = sorted(state.waiting, key=lambda one: (one.request.priority, one.request.number))
        late = [one for one in state.waiting if one.overtaken >= self.policy.patience]
        return (late or waiting)[0].request

    def _chunk(self, iteration: Any, stops: set[int]) -> None:
        number = iteration.request.request.number
        one = self.known[number]
        size, cut = self.policy.chunk_tokens, self.policy.cut_tokens
        end = iteration.first + iteration.tokens
        assert iteration.first == one.computed and 0 < iteration.tokens <= size
        assert iteration.last == (end == one.request.prompt), "a prompt has another end"
        assert iteration.last or end % cut == 0, "a prompt is divided where it must not be"
        if self.state.running:
            self.since_decode += iteration.tokens
            assert self.since_decode <= size, "more tokens of prompts than may be between two steps"
        for position in range(iteration.first, end):
            self._write(one, position, one.ids[: position + 1])
        one.computed = end
        ended: dict[int, str] = {}
        if iteration.last:
            self.state, ended = self.code.scheduler.joined(self.state, iteration, stops=number in stops)
        else:
            self.state = self.code.scheduler.advanced(self.state, iteration)
        found = {page.key for page in getattr(self.state.memory, "table", ())}
        size = self.memory.page_tokens
        full = (
            one.request.keys[iteration.first // size : end // size]
            if isinstance(self.state.memory, self.code.pool.Pool)
            else ()
        )
        assert found.issuperset(full), "a page that is full is not found"
        if not iteration.last:
            return
        self._tokens([number], stops, ended)

    def _check_step(self, iteration: Any) -> None:
        """A step has all rows that decode, spare ones that nobody has, and says whether prompts follow it."""
        code = self.code.scheduler
        if self.state.prompts:
            assert self.last is not code.Decode, "a prompt waits for more than one step"
        running = {one.row: one.request.number for one in self.state.running.values()}
        rows = {row: one.request.number for row, one in iteration.rows.items()}
        assert rows == running and running, "a step leaves a row out"
        self.since_decode = 0
        owners = {*running, *(one.row for one in self.state.prompts)}
        spare = set(range(self.memory.rows)) - owners if self.policy.guesses else set[int]()
        assert set(iteration.spare) == spare and len(iteration.spare) == len(spare), "a guess is in a row that has an owner"
        following = isinstance(code.plan(self.state, self.policy)[1], code.Prompts)
        assert not following or iteration.followed, "prompts follow a step that does not say so"
        may_follow = self.state.prompts or (self.state.waiting and self.state.free_rows)
        assert may_follow or not iteration.followed, "a step says that prompts follow, and there are none"

    def _read(self, running: Any, stops: set[int], missing: set[int], guesses: tuple[int, int], room: int) -> None:
        """The tokens of a step of these rows are there, and those of `guesses` in `room` others."""
        rows = {row: one.request.number for row, one in running.items()}
        got = {row: number for row, number in rows.items() if number not in missing}
        more = dict[int, int]()
        for number in got.values():
            one = self.known[number]
            position = one.request.prompt + one.tokens - 1
            self._write(one, position, (number, one.tokens))
            for read in range(one.request.prompt):
                assert self._slot(one, read) == one.ids[: read + 1], "a prompt was overwritten"
            for read in range(one.request.prompt, position):
                assert self._slot(one, read) == (number, read - one.request.prompt + 1), "a generation was overwritten"
        for row, number in got.items():
            one = self.known[number]
            most = min(guesses[0], self.policy.guesses, room, self.code.scheduler.left(self.state, row) - 1)
            room -= most
            more[row] = min(guesses[1], most)
            position = one.request.prompt + one.tokens - 1
            for guess in range(1, most + 1):  # those that are wrong are written again, or never read
                self._write(one, position + guess, (number, one.tokens + guess) if guess <= more[row] else "a guess")
            one.tokens += more[row]
        self.state, ended = self.code.scheduler.decoded(
            self.state, {row for row, number in got.items() if number in stops}, rows.keys() - got.keys(), more
        )
        self._tokens(got.values(), stops, ended)

    def _tokens(self, numbers: Iterable[int], stops: set[int], ended: dict[int, str]) -> None:
        got = list(numbers)
        for number in got:
            one = self.known[number]
            one.tokens += 1
            assert one.tokens <= one.request.max_tokens, "a request goes on too long"
            reason = "stop" if number in stops else "length" if one.tokens == one.request.max_tokens else None
            assert ended.get(number) == reason
            if reason is not None:
                self._over(self.known.pop(number))
        assert set(ended) <= set(got)

    def _slot(self, one: Known, position: int) -> object:
        page, offset = divmod(position, self.memory.page_tokens)
        return self.slots.get((one.pages[page], offset))

    def _write(self, one: Known, position: int, what: object) -> None:
        page, offset = divmod(position, self.memory.page_tokens)
        number = one.pages[page]
        readers = [other for other in self.known.values() if number in other.pages]
        assert readers == [one], "a page is written that others read"
        assert not any(number == cached for cached, _ in self._cached()), "a page is written that others may find"
        self.slots[number, offset] = what

    def _over(self, one: Known) -> None:
        """Steps in flight write after the tokens of a request that is over, in its own pages."""
        for position in range(one.request.prompt + one.tokens - 1, one.request.prompt + one.tokens - 1 + self.ahead):
            page, offset = divmod(position, self.memory.page_tokens)
            if one.tokens and page < len(one.pages):
                assert not any(one.pages[page] == cached for cached, _ in self._cached()), (
                    "a step in flight writes a cached page"
                )
                self.slots[one.pages[page], offset] = "in flight"


def check_pool(pool: Any, owned: list[tuple[int, ...]], items: int) -> None:
    """Pages have as many readers as owners, the others are in the ring once, and every key is found at one page."""
    readers = [0] * (pool.end + 1)
    for pages in owned:
        for page in pages:
            assert pool.parking <= page < pool.end, "a page that does not exist, or is nobody's"
            readers[page] += 1
    table = list(pool.table)
    assert [page.readers for page in table] == readers, "a page is lost, or has another number of readers"
    ring, number = list[int](), table[pool.end].after
    while number != pool.end and len(ring) <= pool.end:
        ring.append(number)
        assert table[table[number].after].before == number, "the ring is broken"
        number = table[number].after
    free = [page for page in range(pool.parking, pool.end) if not readers[page]]
    assert sorted(ring) == free and pool.free == len(free), "a free page is lost"
    assert pool.used == pool.pages - len(free)
    keys = [page.key for page in table if page.key]
    assert len(set(keys)) == len(keys), "two pages have one key"
    assert sorted(number for bucket in pool.index for number in bucket) == sorted(
        number for number, page in enumerate(table) if page.key
    ), "the index has other pages"
    assert all(table[pool.page_of(key)].key == key for key in keys), "a key is not found"
    spent = sum(-(-len(pages) * pool.page_tokens // pool.item_tokens) for pages in owned)
    assert pool.items + spent == items and pool.items >= 0, "partial sums are lost"
