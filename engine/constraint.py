"""Which tokens a generation may have next: what a grammar says, and the marks by which sampling knows it.

A row under a constraint has its next token computed only once the one before is on the host, because that decides the marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sampling import BARRED, SamplingParams, token_marks


class Constraint(Protocol):
    """What a generation may be, such as a text of a grammar, token by token."""

    @property
    def ended(self) -> bool:
        """Whether no token can follow."""
        ...

    def allowed(self) -> NDArray[np.uint8]:
        """For each token 1 if it may be next, else 0, (vocab,); at least one may. UsageError if that cannot be found."""
        ...

    def accept(self, token: int) -> None:
        """A token that was allowed is the next one."""
        ...


class ConstrainedMarks:
    """The marks (`token_marks`) of a generation under a constraint: its parameters', and bars for what may not be next."""

    def __init__(self, constraint: Constraint, params: SamplingParams, prompt: Iterable[int], vocabulary: int) -> None:
        self._constraint, self._marks = constraint, token_marks(params, prompt, (), vocabulary)

    @property
    def ended(self) -> bool:
        """Whether no token can follow."""
        return self._constraint.ended

    def accept(self, token: int) -> None:
        """A token was generated."""
        self._marks[token] += 1
        self._constraint.accept(token)

    def next(self) -> NDArray[np.int32]:
        """The marks for the next token, (vocab,)."""
        barred = (self._constraint.allowed() ^ 1).astype(np.int32)
        barred *= BARRED
        barred |= self._marks
        return barred
