"""Decode steps of sequences over pages: which are enqueued, and the tokens that came of them.

In: sequences with their pages, once their prompts are in the cache, and rows to free. Out: the next tokens by row, also of
guesses that one step verifies. `engine.paged_batch` computes prompts and says what holds of the tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.paged_steps import PagedSteps, bucket_of
from engine.cache_layout import Run
from engine.constraint import ConstrainedMarks
from engine.errors import UsageError
from engine.graph.doubts import Doubt, Doubts
from engine.graph.pages import PageTables
from engine.sampling import Logprobs
from engine.sequence import NO_TOKEN, Sequence
from tilec.step.step import OutputMode

NOTHING: Final[Mapping[int, Tokens[int]]] = {}


@dataclass(frozen=True, slots=True)
class _Guesses:
    """Tokens that a step processes besides the last ones of rows: guesses of these by row, and each row that is lent to one,
    with the row whose guess it is, in order."""

    by_row: Mapping[int, Tokens[int]] = field(default_factory=lambda: NOTHING)
    lent: Tokens[tuple[int, int]] = ()

    def of(self, owner: int) -> list[tuple[int, int]]:
        """The guesses of a row, each with the row that it is in."""
        rows = [row for row, one in self.lent if one == owner]
        return list(zip(self.by_row.get(owner, ()), rows, strict=True))


@dataclass(slots=True, eq=False)
class _Launched:
    """An enqueued step: its number, the sequences it has a token of, by row, of how many likely tokens rows ask for
    probabilities, and the tokens and probabilities once they are on the host. `fetched`: what all rows chose. `left`: rows
    whose sequence was removed since, of which it is the last step, with the pages that are in doubt until then."""

    number: int
    members: dict[int, Sequence]
    reported: dict[int, int]
    tokens: dict[int, int] | None = None
    fetched: NDArray[np.int32] | None = None
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    left: list[tuple[int, Doubt]] = field(default_factory=list[tuple[int, Doubt]])


class DecodingRows:
    """Sequences by row, on steps over pages whose tables and doubts are given. Not thread-safe."""

    def __init__(self, backend: Backend, steps: PagedSteps, tables: PageTables, doubts: Doubts, rows: int) -> None:
        self._backend, self._steps, self._tables, self._doubts, self._rows = backend, steps, tables, doubts, rows
        self.members: dict[int, Sequence] = {}
        self._pages: dict[int, Tokens[int]] = {}
        self._rooms: dict[int, int] = {}
        self._marks: dict[int, ConstrainedMarks] = {}
        self._in_flight: deque[_Launched] = deque()
        self._launched = 0
        self.tables_changed = self.members_changed = True

    def take(self, row: int, member: Sequence, pages: Tokens[int], room: int, marks: ConstrainedMarks | None) -> None:
        """Take a sequence with a token into a free row: the token shows that what is in its pages is finite."""
        self._tables.join(row, pages, member.length)
        self._doubts.proven(pages, member.length)
        self.members[row], self._pages[row], self._rooms[row] = member, pages, room
        if marks is not None:
            self._marks[row] = marks
        self.tables_changed = self.members_changed = True

    def remove(self, row: int) -> None:
        """End a sequence. Its tokens in enqueued steps are dropped; its pages are in doubt, as far as no token shows that they
        are finite."""
        member, pages = self.member(row), self._pages.pop(row)
        unknown = [step for step in self._in_flight if step.tokens is None and step.members.get(row) is member]
        if member.token == NO_TOKEN:
            self._doubts.raised(pages, 0, member.length)
        elif unknown:
            unknown[-1].left.append((row, self._doubts.raised(pages, member.length - len(unknown), member.length)))
        self._tables.remove(row)
        del self.members[row], self._rooms[row]
        self._marks.pop(row, None)
        self.tables_changed = True

    def member(self, row: int) -> Sequence:
        """The sequence of a row; UsageError if it has none."""
        if row not in self.members:
            raise UsageError(f"row {row} of the batch has no sequence")
        return self.members[row]

    @property
    def ahead(self) -> bool:
        """Whether steps are enqueued whose tokens no call has returned."""
        return bool(self._in_flight)

    def step(self, limit: int) -> tuple[dict[int, int], dict[int, Logprobs]]:
        """The next tokens by row, and probabilities where they are asked for; `limit` further steps are enqueued."""
        tokens_by_row, logprobs = dict[int, int](), dict[int, Logprobs]()
        while not tokens_by_row:
            self.enqueue()
            while len(self._in_flight) <= limit and (taking := self._with_room()):
                self._launch(taking)
            tokens_by_row, logprobs = self.enqueued()
        return tokens_by_row, logprobs

    def enqueue(self) -> None:
        """Enqueue a step of all rows, unless one is enqueued."""
        if not self.members:
            raise UsageError("the batch has no sequence", fix="let one join")
        if not self._in_flight:
            self._launch(self._all_with_room())

    def enqueued(self) -> tuple[dict[int, int], dict[int, Logprobs]]:
        """The tokens by row of the step that was enqueued first, and probabilities where they are asked for; waits for them."""
        if not self._in_flight:
            raise UsageError("no step is enqueued", fix="enqueue one")
        step = self._in_flight.popleft()
        tokens = self._tokens(step)
        rows = [row for row, member in step.members.items() if self.members.get(row) is member]
        return {row: tokens[row] for row in rows}, {row: step.logprobs[row] for row in rows if row in step.logprobs}

    def verify(
        self, by_row: Mapping[int, Tokens[int]], spare: Tokens[int]
    ) -> tuple[dict[int, list[int]], dict[int, Logprobs]]:  # fmt: skip
        """The next tokens of each row: one, and one more for each of its guesses that is right. No step may be enqueued.

        A guess whose values are not finite is next to the tokens before it, which have no token either then. So these are
        computed again, without guesses."""
        guesses = _Guesses(by_row, self._lent(by_row, spare))
        taking = self._all_with_room()
        before = {row: (self.members[row].length, self.members[row].token) for row in by_row}
        step = self._verified(taking, guesses)
        found = {row: self._right(step, row, guesses.of(row)) for row in taking}
        again = [row for row in by_row if found[row] == [NO_TOKEN]]
        for row in by_row:
            length, self.members[row].token = before[row]
            self._keep(step, row, length + (len(found[row]) if row not in again else 0), guesses.of(row))
        logprobs = step.logprobs
        if again:
            step = self._verified(again, _Guesses())
            for row in again:
                found[row] = [self._known(step, row)]
        for row in by_row:
            self.members[row].token = found[row][-1]
        return found, logprobs

    def logits(self) -> dict[int, NDArray[np.float32]]:
        """The logits, (vocab,), from which the next step chooses each row's token, by row; no token is chosen. UsageError if a
        row has penalties or bars: these count tokens of steps ahead, which are dropped."""
        if not self.members:
            raise UsageError("the batch has no sequence", fix="let one join")
        if any(member.sampling is not None and member.sampling.adjusts for member in self.members.values()):
            raise UsageError("a row has penalties or bars, which count the tokens that it drew itself")
        while self._in_flight:  # what was enqueued ahead is enqueued again
            for row, member in self._in_flight.pop().members.items():
                if self.members.get(row) is member:
                    member.length -= 1
                    self._tables.rewind(row, member.length)
        taking = self._all_with_room()
        self.members_changed = True
        self._send(taking, "logits", _Guesses(), self.members)
        self._steps.run(bucket_of(max(self.members) + 1, self._backend.buckets), "logits")
        for row in taking:
            length = self.members[row].length
            self._tables.rewind(row, length)
            self._doubts.raised(self._pages[row], length, length + 1)
        self.members_changed = True  # a step with logits does not write the inputs of the next one
        logits = self._steps.logits()
        return {row: logits[row] for row in taking}

    def _lent(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> list[tuple[int, int]]:
        """The rows that process guesses, each with the row whose they are, in the order of the guesses."""
        if self._in_flight:
            raise UsageError("steps are enqueued, so it is not known what follows", fix="take their tokens first")
        for row, tokens in guesses.items():
            member = self.member(row)
            if member.sampling is not None and (member.sampling.adjusts or member.sampling.logprobs is not None):
                raise UsageError(f"row {row} counts its tokens or reports them, so they are not guessed")
            if member.length + 1 + len(tokens) > self._rooms[row]:
                raise UsageError(f"row {row} has {self._rooms[row]} slots, and no room for {len(tokens)} guesses")
            self._backend.check_vocabulary(tokens)
        owners = [row for row, tokens in guesses.items() for _ in tokens]
        if len(owners) > len(spare):
            raise UsageError(f"there are {len(owners)} guesses, and {len(spare)} rows for them")
        return list(zip(spare, owners, strict=False))

    def _verified(self, taking: list[int], guesses: _Guesses) -> _Launched:
        """A step of these rows and their guesses, done. Other rows draw no token in it: they would count it."""
        for row, owner in guesses.lent:
            self.tables_changed |= self._tables.lend(row, owner)
        self.members_changed = True
        self._launch(taking, guesses)
        self.members_changed = True
        step = self._in_flight.popleft()
        self._tokens(step)
        return step

    def _right(self, step: _Launched, row: int, guesses: Tokens[tuple[int, int]]) -> list[int]:
        """The tokens of a row that a step with guesses of them verified."""
        found = [self._known(step, row)]
        for guess, at in guesses:
            following = self._known(step, at)
            if found[-1] != guess or following == NO_TOKEN:
                break
            found.append(following)
        return found

    def _keep(self, step: _Launched, row: int, length: int, guesses: Tokens[tuple[int, int]]) -> None:
        """Drop what a step with guesses wrote of a row from `length` on, and zero it if a guess has no token."""
        member = self.members[row]
        written, member.length = member.length + len(guesses), length
        self._tables.rewind(row, length)
        if any(self._known(step, at) == NO_TOKEN for _, at in guesses):
            pages, size = self._pages[row], self._tables.page_tokens
            self._steps.clear(Run(pages[slot // size] * size + slot % size, 1) for slot in range(length, written))

    def _with_room(self) -> list[int]:
        """The rows that a step may have now: what a constrained one may have next follows from its last token."""
        taking = [row for row, member in self.members.items() if member.length < self._rooms[row]]
        if not self._marks:
            return taking
        unknown = {row for step in self._in_flight if step.tokens is None for row in step.members}
        return [row for row in taking if row not in self._marks or not (row in unknown or self._marks[row].ended)]

    def _all_with_room(self) -> list[int]:
        """All rows; UsageError if one has no room for another token, or can have none."""
        taking = self._with_room()
        for row in self.members.keys() - set(taking):
            if row in self._marks and self._marks[row].ended:
                raise UsageError(f"no token can follow in row {row}, by its constraint", fix="remove it")
            raise UsageError(f"the sequence in row {row} fills the {self._rooms[row]} tokens of its pages", fix="remove it")
        return taking

    def _launch(self, taking: list[int], guesses: _Guesses | None = None) -> None:
        """Enqueue a step of some rows; with guesses, also of rows that are lent to theirs, and no other row draws a token."""
        output_mode: OutputMode = "sample" if any(member.sampling for member in self.members.values()) else "argmax"
        drawn = self.members if guesses is None else {row: self.members[row] for row in taking}
        given = guesses or _Guesses()
        self._send(taking, output_mode, given, drawn)
        last = max(self.members.keys() | {row for row, _ in given.lent})
        self._steps.run(bucket_of(last + 1, self._backend.buckets), output_mode)
        self._steps.fetch(self._launched, reported=bool(self._reported(taking)))
        self._in_flight.append(_Launched(self._launched, {row: self.members[row] for row in taking}, self._reported(taking)))
        self._launched += 1
        for row in taking:
            self.members[row].length += 1

    def _reported(self, taking: list[int]) -> dict[int, int]:
        """The rows that ask for probabilities, and of how many most likely tokens."""
        params = {row: self.members[row].sampling for row in taking}
        return {row: one.logprobs for row, one in params.items() if one is not None and one.logprobs is not None}

    def _send(self, taking: list[int], output_mode: OutputMode, guesses: _Guesses, drawn: Mapping[int, Sequence]) -> None:
        """Set the inputs of a step, in which rows of `drawn` draw tokens. The tokens of rows are on the device already, unless
        a sequence joined since. What enqueued steps left in pages that sequences begin now is zeroed."""
        if self.members_changed:
            for step in self._in_flight:
                self._tokens(step)
            ids = np.zeros(self._steps.bucket, np.int32)
            for row, member in self.members.items():
                ids[row] = max(0, member.token)
            for (row, _), token in zip(
                guesses.lent, (token for tokens in guesses.by_row.values() for token in tokens), strict=True
            ):
                ids[row] = token
            self._steps.send(ids=ids)
            if output_mode == "sample":
                by_row = {**drawn, **{row: self.members[owner] for row, owner in guesses.lent}}
                self._steps.set([by_row.get(row) for row in range(self._rows)])
        if self.tables_changed:
            self._steps.send(table=self._tables.table())
        self.members_changed = self.tables_changed = False
        inputs = self._tables.next_slots(taking, guesses.lent)
        self._steps.clear(self._doubts.step(inputs["slots"]))
        self._steps.send(**inputs)
        for row in self._marks.keys() & set(taking):
            self._steps.constrain(row, self.members[row].token, self._marks[row].next())

    def _tokens(self, step: _Launched) -> dict[int, int]:
        """The tokens of a step by row, NO_TOKEN for one that is none; waits until they are on the host."""
        if step.tokens is None:
            step.fetched, step.tokens = self._steps.fetched(step.number), {}
            if step.reported:
                values, likely = self._steps.logprobs(step.number)
                step.logprobs = {row: Logprobs.of_row(values[row], likely[row], count) for row, count in step.reported.items()}
            for row, member in step.members.items():
                member.token = step.tokens[row] = token = self._known(step, row)
                if row in self._marks and self.members.get(row) is member and token != NO_TOKEN:
                    self._marks[row].accept(token)
            for row, doubt in step.left:
                if step.tokens[row] != NO_TOKEN:
                    self._doubts.settle(doubt)
        return step.tokens

    def _known(self, step: _Launched, row: int) -> int:
        """What a fetched step chose in a row, NO_TOKEN if that is none."""
        assert step.fetched is not None  # `_tokens` fetched it
        token = int(step.fetched[row])
        return token if self._backend.is_token(token) else NO_TOKEN
