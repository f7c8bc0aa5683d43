"""A backend with one sequence of its own, for tests of the backend that do not test sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.sequence import Sequence


class OneSequence:
    """Every attribute of `backend`; methods that take a sequence get the one of this object, which `reset` replaces."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.sequence: Sequence = backend.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    @property
    def position(self) -> int:
        """Tokens in the cache."""
        return self.sequence.length

    @position.setter
    def position(self, length: int) -> None:
        self.sequence.length = length

    def reset(self) -> None:
        """Begin a new sequence."""
        self.sequence = self.backend.begin()

    def prefill(self, *arguments: Any) -> None:
        self.backend.prefill(self.sequence, *arguments)

    def prompt_logits(self, *arguments: Any) -> Any:
        return self.backend.prompt_logits(self.sequence, *arguments)

    def decode(self, *arguments: Any) -> int:
        return self.backend.decode(self.sequence, *arguments)

    def decode_logits(self, *arguments: Any) -> Any:
        return self.backend.decode_logits(self.sequence, *arguments)

    def stream_tokens(self, *arguments: Any) -> Iterator[int]:
        return self.backend.stream_tokens(self.sequence, *arguments)
