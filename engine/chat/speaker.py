"""Who replies in a conversation: what a session asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
"""`role` and `content`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a reply: of its thought, of its content, or its end, whose text is the reason: `stop` or `length`."""

    kind: Literal["thought", "content", "end"]
    text: str


class Speaker(ABC):
    """A model that replies to one conversation at a time. `name` is the model's."""

    name: str

    def __init__(self) -> None:
        self.interrupted = False

    def reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """The reply to a conversation, which ends early, without an end, once `interrupt` was called. EngineError if there is
        none."""
        self.interrupted = False
        yield from self._reply(messages)

    def interrupt(self) -> None:
        """End the reply in progress; called by a handler of signals."""
        self.interrupted = True

    @abstractmethod
    def close(self) -> None:
        """Free what the speaker has; idempotent."""

    @abstractmethod
    def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]: ...
