"""One answer's tokens in the cache: a value that is passed to the backend, which keeps none of its own.

A cache holds one sequence at a time as yet: slots 0 to `length`. What holds several gives each its own slots here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError
from tilec.step.step import Head


@dataclass(slots=True, eq=False)
class Sequence:
    """`length` is how many tokens are in the cache, each in the slot of its position; `head` is how tokens are chosen."""

    length: int = 0
    head: Head = "argmax"
    _answer: int = 0

    def begin(self) -> int:
        """End the answer before; the number of the new one, so that tokens of an older one do not come after all."""
        self._answer += 1
        return self._answer

    def is_current(self, number: int) -> bool:
        """Whether nothing has begun since."""
        return number == self._answer

    def check(self, number: int) -> None:
        """UsageError where something has begun since."""
        if not self.is_current(number):
            raise UsageError("this answer ended when another began, or the engine was closed", fix="read one answer at a time")


def check_room(length: int, count: int, max_seq_len: int) -> None:
    """UsageError unless `count` tokens, one at least, fit behind the `length` that a cache of `max_seq_len` holds."""
    if count == 0:
        raise UsageError("the prompt is empty", fix="give at least one token")
    if length + count > max_seq_len:
        more = f"{length} tokens and {count} more do" if length else f"{count} tokens do"
        what = f"{more} not fit max-seq-len {max_seq_len}"
        raise UsageError(what, fix="raise --max-seq-len or shorten the prompt")
