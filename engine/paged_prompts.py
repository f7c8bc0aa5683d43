"""Prompts over pages: pieces of several of them, and which of these are computed in one launch.

In: pieces in order. Out: launches, each with parts of pieces. A token of a prompt has the same bits whatever else its launch
has, so only time depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.backends.backend import Backend
from engine.constraint import Constraint
from engine.errors import UsageError
from engine.graph.pages import Part
from engine.launch_limits import Filling, LaunchLimits
from engine.sampling import SamplingParams
from tilec.step.step import OutputMode


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `ids` of a prompt from position `first` on, of a sequence in no row, which has these pages. With a `row` they are
    its last ones: the sequence is in that row then, and has its first token, chosen as `PagedBatch.join` says."""

    pages: Sequence[int]
    first: int
    ids: Sequence[int]
    row: int | None = None
    sampling: SamplingParams | None = None
    prompt: Sequence[int] | None = None
    constraint: Constraint | None = None

    @property
    def whole(self) -> list[int]:
        """All tokens of the prompt, as far as they were given."""
        return list(self.ids if self.prompt is None else self.prompt)

    def check(self, backend: Backend, room: int) -> None:
        """UsageError unless a model of this backend takes it, with `room` slots."""
        first, sampling = self.first, self.sampling
        if sampling is not None:
            sampling.check_tokens(backend.config.vocab_size)
            if sampling.adjusts and len(self.whole) != first + len(self.ids):
                what = f"the prompt has {first + len(self.ids)} tokens, and penalties are given {len(self.whole)} of them"
                raise UsageError(what)
        if (self.constraint is not None) != (sampling is not None and sampling.masked):
            raise UsageError("a constraint needs masked sampling, and masked sampling a constraint")
        if not self.ids:
            raise UsageError("the prompt is empty", fix="give at least one token")
        if first < 0 or first + len(self.ids) > room:
            last = first + len(self.ids) - 1
            what = f"tokens {first} to {last} do not fit {len(self.pages)} pages and max-seq-len {backend.max_seq_len}"
            raise UsageError(what, fix="give more pages, or raise --max-seq-len")
        backend.check_vocabulary(self.ids)

    @property
    def on_host(self) -> bool:
        """Whether its first token is chosen on the host: the head of a chunk lacks what it asks for."""
        return self.row is not None and self.sampling is not None and not self.sampling.simple


class Stretch(NamedTuple):
    """`tokens` tokens of the piece of this number, from the `start`-th of it on; `last`: they are its last ones."""

    piece: int
    start: int
    tokens: int
    last: bool


def head_of(ending: Collection[Piece]) -> OutputMode:
    """The output mode of a launch in which these prompts end."""
    if not ending:
        return "none"
    if any(piece.on_host for piece in ending):
        return "logits"
    return "argmax" if all(piece.sampling is None for piece in ending) else "sample"


def parts_of(pieces: Sequence[Piece], launch: Sequence[Stretch]) -> list[Part]:
    """What a launch computes of each prompt."""
    return [Part(pieces[one.piece].pages, pieces[one.piece].first + one.start, one.tokens) for one in launch]


def launches(pieces: Sequence[Piece], limits: LaunchLimits) -> Iterator[list[Stretch]]:
    """The launches of some pieces, in order. A piece with more tokens than one takes has several, the last with its rest. The
    end of one whose token the host chooses has one of its own. Tokens of which none is chosen are the last ones of theirs:
    what they leave in tiles with others shows in the tokens of these."""
    launch, filling = list[Stretch](), Filling()
    for number, piece in enumerate(pieces):
        for start in range(0, len(piece.ids), limits.tokens):
            count = min(limits.tokens, len(piece.ids) - start)
            last = start + count == len(piece.ids)
            more = limits.added(filling, count, end := piece.first + start + count)
            alone = last and piece.on_host
            if launch and (more is None or alone):
                yield launch
                launch, more = [], None
            launch, filling = [*launch, Stretch(number, start, count, last)], more or limits.alone(count, end)
            if alone or not last or piece.row is None:
                yield launch
                launch, filling = [], Filling()
    if launch:
        yield launch
