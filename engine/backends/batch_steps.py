"""The batch interface of a backend: memory for several sequences, and steps that process one token of each.

`engine.batch` keeps track of the sequences and their tokens; the backend owns their memory. The `row` of a sequence is its
row in every input and output, and its part of every cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tilec.step.step import OutputMode

INPUTS: Final = ("ids", "positions", "batch.slots", "batch.lengths", "batch.going")
"""Inputs set before steps, (sequences,) i32 each. A step that chooses tokens updates them on the device for the next step."""

OUTPUT_MODES: Final[tuple[OutputMode, ...]] = ("argmax", "sample", "logits")
"""Output modes of a batch step."""


class BatchSteps(ABC):
    """Steps of `sequences` sequences on a loaded backend. Not thread-safe."""

    ahead: ClassVar[int] = 0
    """Steps enqueued beyond the one whose tokens are waited for."""

    sequences: int

    @abstractmethod
    def adopt(self, row: int, length: int) -> None:
        """Copy the first `length` slots of the backend's own cache, which a prefill wrote, to row `row` of the batch."""

    @abstractmethod
    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Set the inputs that stay the same for all steps of a generation, one row for each sequence."""

    @abstractmethod
    def send(self, inputs: Mapping[str, NDArray[np.int32]]) -> None:
        """Set the inputs of the next step, all of `INPUTS`."""

    @abstractmethod
    def run(self, output_mode: OutputMode, short: bool) -> None:
        """Run or enqueue a step on its current inputs; `short` selects the variant for short context (`Step.graph`)."""

    @abstractmethod
    def fetch(self, number: int) -> None:
        """Start copying the last step's tokens to the host, as step `number`."""

    @abstractmethod
    def fetched(self, number: int) -> NDArray[np.int32]:
        """The tokens of step `number`, (sequences,); waits for them."""

    @abstractmethod
    def logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (sequences, vocab)."""

    @abstractmethod
    def close(self) -> None:
        """Free the batch's resources; idempotent."""
