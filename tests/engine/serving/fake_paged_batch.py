"""A `PagedBatch` without a model: what a slot contains depends on all tokens before it, and a token on all slots that its row
reads. So a page that is shared, overwritten or reused wrongly changes tokens. Steps run ahead, as on a GPU: when a row is
removed, one more step may write to its pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.constraint import Constraint
from engine.errors import DeviceError, EngineError, UsageError
from engine.launch_limits import LaunchLimits
from engine.paged_prompts import Piece
from engine.sampling import Logprobs, SamplingParams

MASK = (1 << 61) - 1
VOCABULARY = 97


def mixed(*values: int) -> int:
    """A number that depends on all of these and their order."""
    found = 0x9E3779B97F4A7C15
    for value in values:
        found = ((found ^ value) * 0xBF58476D1CE4E5B9) & MASK
        found ^= found >> 29
    return found


@dataclass(eq=False)
class _Member:
    """A sequence in a row: its pages, the tokens in its slots, the last token, and what decides draws."""

    pages: list[int]
    length: int
    token: int
    seed: int
    drawn: int = 1


@dataclass
class FakePagedBatch:
    """Rows over a pool. `computed`: tokens of prompts. `vocabulary`: tokens that steps choose from. `broken`: rows whose logits
    are not finite. `fails`: what the next call raises."""

    rows: int
    pages: int
    longest: int
    page_tokens: int = 64
    parking: int = 4
    vocabulary: int = VOCABULARY
    items: int = 10_000
    most_ahead: int = 1
    verified: int = 0
    computed: int = 0
    broken: set[int] = field(default_factory=set[int])
    fails: Exception | None = None
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    slots: dict[int, int] = field(default_factory=dict[int, int])
    members: dict[int, _Member] = field(default_factory=dict[int, _Member])
    flying: deque[tuple[dict[int, _Member], dict[int, int]]] = field(default_factory=deque[Any])

    limits: LaunchLimits = field(default_factory=lambda: LaunchLimits(2048, 3, 1 << 20, 128))
    launches: list[int] = field(default_factory=list[int])
    """The number of prompts of each call of `compute`."""
    events: list[str] = field(default_factory=list[str])
    """What was done, in order: `step` and `prompts` are enqueued, `tokens` of a step are read."""

    def compute(self, pieces: Sequence[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        assert 0 < len(pieces) <= self.limits.prompts, "more prompts than a launch takes"
        assert sum(len(piece.ids) for piece in pieces) <= self.limits.tokens, "more tokens than a launch takes"
        self.launches.append(len(pieces))
        self.events.append("prompts")
        if meanwhile is not None:
            meanwhile()
        found: list[int | EngineError | None] = []
        for piece in pieces:
            try:
                found.append(self._computed(piece))
            except EngineError as error:
                if isinstance(error, DeviceError):
                    raise
                found.append(error)
        return found

    def _computed(self, piece: Piece) -> int | None:
        if piece.row is None:
            self.extend(piece.pages, piece.first, piece.ids)
            return None
        return self.join(
            piece.row, piece.pages, piece.first, piece.ids, piece.sampling, prompt=piece.prompt, constraint=piece.constraint
        )

    def extend(self, pages: Sequence[int], first: int, ids: Sequence[int]) -> None:
        self._fail()
        self._prompt(pages, first, ids)

    def join(
        self, row: int, pages: Sequence[int], first: int, ids: Sequence[int], sampling: SamplingParams | None = None, *,
        prompt: Sequence[int] | None = None, constraint: Constraint | None = None,
    ) -> int:  # fmt: skip
        assert constraint is None, "tokens have no texts here"
        self._fail()
        assert 0 <= row < self.rows and row not in self.members, "a row that is not free"
        assert prompt is not None and list(prompt[first:]) == list(ids), "a prompt without its begin"
        self._prompt(pages, first, ids)
        seed = -1 if sampling is None else sampling.seed
        member = _Member(list(pages), first + len(ids), 0, seed, 0)
        member.token = self._chosen(member)
        self.members[row] = member
        return member.token

    @property
    def ahead(self) -> bool:
        return bool(self.flying)

    def verify(self, guesses: Mapping[int, Sequence[int]], spare: Sequence[int]) -> dict[int, list[int]]:
        self._fail()
        assert not self.flying, "a guess follows tokens that are not known"
        assert len(set(spare)) == len(spare) >= sum(map(len, guesses.values())), "more guesses than rows"
        assert not self.members.keys() & set(spare) and set(spare) <= set(range(self.rows)), "a guess in a row of another"
        self._launch()
        _, tokens = self.flying.popleft()
        found = {row: [-1 if row in self.broken else token] for row, token in tokens.items()}
        for row, its in guesses.items():
            one, length, right = self.members[row], self.members[row].length, its and found[row][0] >= 0
            for number, guess in enumerate(its):
                self._write(one.pages, length + number, mixed(length + number, guess, one.seed))
                right = right and guess == one.token
                if right:
                    one.length += 1
                    one.token = self._chosen(one)
                    found[row].append(one.token)
                    self.verified += 1
        return found

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        self._fail()
        if not self.members:
            raise UsageError("the batch has no sequence")
        found: dict[int, int] = {}
        while not found:
            limit = self.most_ahead if ahead else 0
            while not self.flying or (len(self.flying) <= limit and not self._full()):
                self._launch()
            found = self.enqueued()
        return found

    def enqueue(self) -> bool:
        self._fail()
        if not self.flying:
            self._launch()
        return True

    def enqueued(self) -> dict[int, int]:
        members, tokens = self.flying.popleft()
        self.events.append("tokens")
        found = {row: token for row, token in tokens.items() if self.members.get(row) is members[row]}
        return {row: -1 if row in self.broken else token for row, token in found.items()}

    def prepare(self) -> bool:
        """Nothing has to be made ready."""
        return False

    def remove(self, row: int) -> None:
        del self.members[row]

    def close(self) -> None:
        self.members.clear()

    def _fail(self) -> None:
        fails, self.fails = self.fails, None
        if fails is not None:
            raise fails

    def _prompt(self, pages: Sequence[int], first: int, ids: Sequence[int]) -> None:
        assert ids and first + len(ids) <= len(pages) * self.page_tokens
        assert all(self.parking <= page < self.pages for page in pages) and len(set(pages)) == len(pages)
        before = self.slots[self._slot(pages, first - 1)] if first else 0
        for position, token in enumerate(ids, first):
            before = mixed(before, token)
            self._write(pages, position, before)
        self.computed += len(ids)

    def _launch(self) -> None:
        tokens: dict[int, int] = {}
        self.events.append("step")
        for row, one in self.members.items():
            self._write(one.pages, one.length, mixed(one.length, one.token, one.seed))
            one.length += 1
            tokens[row] = one.token = self._chosen(one)
        self.flying.append((dict(self.members), tokens))

    def _full(self) -> bool:
        return any(one.length >= len(one.pages) * self.page_tokens for one in self.members.values())

    def _chosen(self, one: _Member) -> int:
        one.drawn += 1
        slots = (self.slots[self._slot(one.pages, position)] for position in range(one.length))
        return mixed(sum(slots), one.seed, one.drawn) % self.vocabulary

    def _write(self, pages: Sequence[int], position: int, value: int) -> None:
        page = pages[position // self.page_tokens]
        readers = [one for one in self.members.values() if page in one.pages and one.pages != list(pages)]
        assert not readers, "a page is written that another row reads"
        self.slots[self._slot(pages, position)] = value

    def _slot(self, pages: Sequence[int], position: int) -> int:
        page, offset = divmod(position, self.page_tokens)
        return pages[page] * self.page_tokens + offset


@dataclass
class FakeBackend:
    """What the loop asks of a backend."""

    chunk_tokens: int = 2048
    max_seq_len: int = 4096
    closed: bool = False

    def check_vocabulary(self, ids: Sequence[int]) -> None:
        if any(not 0 <= token < VOCABULARY for token in ids):
            raise UsageError(f"a token is not in the vocabulary of {VOCABULARY}")
