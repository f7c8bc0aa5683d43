"""State of one generation: its tokens in the cache. The caller passes it to the backend, which keeps no such state itself.

A cache has one sequence at a time, in slots 0 to `length`. Batches have their own state (`engine.batch`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError
from tilec.step.step import OutputMode


@dataclass(slots=True, eq=False)
class Sequence:
    """`length`: tokens in the cache, each in the slot of its position. `output_mode`: output mode, how tokens are chosen."""

    length: int = 0
    output_mode: OutputMode = "argmax"
    _generation: int = 0

    def begin(self) -> int:
        """End the generation before; returns the number of the new one, which invalidates iterators of the older one."""
        self._generation += 1
        return self._generation

    def is_current(self, number: int) -> bool:
        """Whether no generation has begun since `number`."""
        return number == self._generation

    def check(self, number: int) -> None:
        """UsageError if another generation has begun since `number`."""
        if not self.is_current(number):
            raise UsageError(
                "this generation ended: another began, or the engine was closed", fix="run one generation at a time"
            )


def check_room(length: int, count: int, max_seq_len: int) -> None:
    """UsageError unless `count` tokens, at least one, fit after the `length` tokens in a cache of `max_seq_len`."""
    if count == 0:
        raise UsageError("the prompt is empty", fix="give at least one token")
    if length + count > max_seq_len:
        more = f"{length} tokens and {count} more do" if length else f"{count} tokens do"
        what = f"{more} not fit max-seq-len {max_seq_len}"
        raise UsageError(what, fix="raise --max-seq-len or shorten the prompt")
