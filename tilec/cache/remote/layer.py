"""What a server of entries can do.

A layer keeps bytes by key (64 hex digits), and may be able to lend a key for a while, so that one builder makes it. Its methods
may raise anything and take any time: `guard` bounds both. None is called after `close`, which ends what still goes on.
"""

from __future__ import annotations

from typing import Protocol


class Oversized(ValueError):
    """What lies under the key is longer than any entry."""


class Missing(Exception):
    """The library or the folder that a remote needs is not there: the text says what to install."""


class Layer(Protocol):
    """One remote."""

    def get(self, key: str, limit: int) -> bytes | None:
        """What lies under the key, None where nothing does; Oversized where it is longer than `limit` bytes."""
        ...

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Keep bytes under the key; without `replace` only where nothing is. False where something was."""
        ...

    def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """Lend the key to `holder`, or lend it for longer; False where another has it, None where the layer cannot."""
        ...

    def release(self, key: str, holder: str) -> None:
        """Take the key back from `holder`, if it has it."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
