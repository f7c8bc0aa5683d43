"""What a backend does for a batch: the memory of several sequences, and steps that take in a token of each.

`engine.batch` says which sequences there are and what they take in; a backend keeps what they hold. The place of a sequence is
its row in every input and output, and its part of every cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tilec.step.step import Head

INPUTS: Final = ("ids", "positions", "batch.slots", "batch.lengths", "batch.going")
"""What is set before steps, (sequences,) i32 each, and left by each step that chooses tokens as the next one needs it."""

HEADS: Final[tuple[Head, ...]] = ("argmax", "sample", "logits")
"""How a step of a batch may end."""


class BatchSteps(ABC):
    """Steps of `sequences` sequences on a backend that is loaded. Not for several threads at once."""

    ahead: ClassVar[int] = 0
    """Steps enqueued beyond the one whose tokens are waited for."""

    sequences: int

    @abstractmethod
    def adopt(self, place: int, length: int) -> None:
        """Give a place the first `length` slots of the backend's own cache, which a prompt was taken into."""

    @abstractmethod
    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Set what is the same for all steps of an answer: a row for each sequence."""

    @abstractmethod
    def send(self, inputs: Mapping[str, NDArray[np.int32]]) -> None:
        """Set the inputs of the next step, all of `INPUTS`."""

    @abstractmethod
    def run(self, head: Head, short: bool) -> None:
        """Run, or enqueue, a step on its inputs as they are; `short` is the form for short caches (`Step.graph`)."""

    @abstractmethod
    def fetch(self, number: int) -> None:
        """Let the tokens of the last step come to the host, as those of a number."""

    @abstractmethod
    def fetched(self, number: int) -> NDArray[np.int32]:
        """The tokens of a number, (sequences,); waits for them."""

    @abstractmethod
    def logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (sequences, vocab)."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the batch holds; idempotent."""
