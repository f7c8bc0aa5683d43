"""What a server of entries can do.

A layer keeps bytes by key (64 hex digits), and may be able to lend a key for a while, so that one builder makes it. Its methods
may raise anything and take any time: `guard` bounds both. None is called after `close`, which ends what still goes on.
"""

from __future__ import annotations

from typing import Protocol


class Unusable(ValueError):
    """What lies under the key is no entry, and a good one may replace it; the text says why, as a sentence."""


class Oversized(Unusable):
    """What lies under the key is longer than any entry."""

    def __init__(self) -> None:
        super().__init__("it is larger than any entry")


class Nonsense(Exception):
    """The server answers what its protocol has no such answer for; the connection is of no more use."""


class Missing(Exception):
    """The library or the folder that a remote needs is not there: the text says what to install."""


def entry_bytes(found: object, limit: int) -> bytes | None:
    """What a library gave for an entry: bytes, or None for nothing. Nonsense for anything else, Oversized for too many."""
    if found is None:
        return None
    if not isinstance(found, bytes):
        raise Nonsense(f"the answer is of the type {type(found).__name__}, and no bytes")
    if len(found) > limit:
        raise Oversized
    return found


class Layer(Protocol):
    """One remote."""

    def get(self, key: str, limit: int) -> bytes | None:
        """What lies under the key, None where nothing does; Oversized where it is longer than `limit` bytes, Unusable where it
        is of another kind than bytes, Nonsense where the answer is none to this question."""
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
