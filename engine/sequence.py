"""State of one sequence: its tokens in a cache, the next one to process, and how tokens are chosen. A sequence of the backend's
own has row 0 of the backend's steps; one of a batch has its row of the batch's (`engine.batch`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from engine.errors import UsageError
from engine.sampling import SamplingParams
from tilec.step.step import OutputMode

NO_TOKEN: Final = -1
"""The token of a row of a batch whose logits were not finite."""


@dataclass(slots=True, eq=False)
class Sequence:
    """`length`: its tokens in the cache once all enqueued steps are done. `room`: tokens that have slots in a batch's cache
    (`engine.cache_layout`). `token`: the last token known to the host, which the next step processes. `sampling`: how tokens
    are sampled, None for greedy. `start`: the slot of its prompt's last token. `prompt`: the tokens of its prompt."""

    length: int = 0
    room: int = 0
    token: int = 0
    sampling: SamplingParams | None = None
    start: int = 0
    prompt: list[int] = field(default_factory=list[int])
    _generation: int = 0

    @property
    def output_mode(self) -> OutputMode:
        """The output mode of a step that chooses its next token."""
        return "argmax" if self.sampling is None else "sample"

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
