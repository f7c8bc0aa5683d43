"""Guesses of a generation's next tokens from its own text: what followed the last tokens where they stood before.

It is vLLM's `ngram` method (prompt lookup): of the longest run of `LONGEST` to `SHORTEST` tokens at the end that stood before,
the last place counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

SHORTEST: Final = 2
LONGEST: Final = 4


class Text:
    """The tokens of a prompt and its generation so far."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._tokens = np.empty(max(64, 2 * len(ids)), np.int32)
        self._tokens[: len(ids)] = ids
        self._count = len(ids)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            if self._count == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._tokens[self._count] = token
            self._count += 1

    def guesses(self, most: int) -> list[int]:
        """Up to `most` tokens that may be next; none if the last tokens never stood before."""
        known, end = self._tokens[: self._count], self._count
        if most < 1 or end <= SHORTEST:
            return []
        indices = np.flatnonzero(known[: end - 1] == known[end - 1])  # where the last token stood before
        best = -1
        for length in range(2, LONGEST + 1):
            indices = indices[indices >= length - 1]
            indices = indices[known[indices - (length - 1)] == known[end - length]] if length <= end else indices[:0]
            if not indices.size:
                break
            if length >= SHORTEST:
                best = int(indices[-1])
        return known[best + 1 : best + 1 + most].tolist() if best >= 0 else []
