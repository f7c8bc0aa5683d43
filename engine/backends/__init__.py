"""What runs a StepGraph: a GPU (`engine.backends.cuda`), or NumPy on any machine (`engine.backends.interpreter`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sampling import SamplingParams


class Backend(Protocol):
    """One model, loaded, with a cache of keys and values. Not for several threads at once.

    UsageError where tokens do not fit the cache or are outside the vocabulary, DeviceError where the device fails.
    """

    max_seq_len: int
    """Tokens that the cache holds."""
    position: int
    """Tokens that are in it."""

    @property
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""
        ...

    def prefill(self, ids: Sequence[int], sampling: SamplingParams | None = None) -> None:
        """Take in a prompt behind what the cache holds, and choose the token after it: the most likely one, or one drawn with
        the first random number of `sampling`'s seed."""
        ...

    def token(self) -> int:
        """The token that the last step chose; waits for it."""
        ...

    def stream_tokens(self, token: int, limit: int) -> Iterator[int]:
        """Take in `token` and give the choice of the next, which is taken in in turn, at most `limit` times. The choice is made
        as `prefill` was told; the n-th token after the prompt takes the n-th random number."""
        ...

    def prompt_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Take in a prompt and give the logits of its last token, (vocab,)."""
        ...

    def decode_logits(self, token: int) -> NDArray[np.float32]:
        """Take in one token; the logits after it, (vocab,)."""
        ...

    def reset(self) -> None:
        """Forget all tokens."""
        ...

    def close(self) -> None:
        """Give back what the model holds; idempotent."""
        ...
