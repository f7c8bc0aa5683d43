"""How every backend takes tokens in: what fits, and in which chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.errors import UsageError
from engine.graph.qwen3 import Head

CHUNK_TOKENS: Final = 1024
"""Tokens of a prefill step: enough for matrix products to be bound by arithmetic, few enough for small activations."""


class Answers:
    """Tells the answer that is being given from those before it: tokens of an older one must not come after all."""

    def __init__(self) -> None:
        self._current = 0

    def begin(self) -> int:
        """End the answer before; the number of the new one."""
        self._current += 1
        return self._current

    def is_current(self, number: int) -> bool:
        """Whether nothing has begun since."""
        return number == self._current

    def check(self, number: int) -> None:
        """UsageError where something has begun since."""
        if not self.is_current(number):
            raise UsageError("this answer ended when another began, or the engine was closed", fix="read one answer at a time")


def check_room(position: int, count: int, max_seq_len: int) -> None:
    """UsageError unless `count` tokens, one at least, fit behind the `position` that a cache of `max_seq_len` holds."""
    if count == 0:
        raise UsageError("the prompt is empty", fix="give at least one token")
    if position + count > max_seq_len:
        what = f"{position} tokens and {count} more do not fit max-seq-len {max_seq_len}"
        raise UsageError(what, fix="raise --max-seq-len or shorten the prompt")


def check_vocabulary(ids: Sequence[int], vocab_size: int) -> None:
    """UsageError for the first token outside the vocabulary."""
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise UsageError(f"token {outside} is not in the vocabulary of {vocab_size}")


def chunks(ids: Sequence[int], head: Head) -> Iterator[tuple[list[int], Head]]:
    """A prompt cut into steps; only the last has the head."""
    for begin in range(0, len(ids), CHUNK_TOKENS):
        chunk = list(ids[begin : begin + CHUNK_TOKENS])
        yield chunk, head if begin + len(chunk) == len(ids) else "none"
