"""The interface of a remote layer.

A layer stores bytes by key (64 hex digits). It can support leases, so that only one builder makes a key. Its methods can raise
any exception and take any time: `guard` handles both. `close` aborts operations in progress; no method is called after it.
"""

from __future__ import annotations

from typing import Protocol


class Unusable(ValueError):
    """The object under the key is not an entry, and a good one may replace it; the text says why, as a sentence."""


class Oversized(Unusable):
    """The object under the key is longer than any entry."""

    def __init__(self) -> None:
        super().__init__("it exceeds the size limit of an entry")


class Nonsense(Exception):
    """The server's answer violates its protocol; the connection must be closed."""


class Missing(Exception):
    """The library that a remote needs is not installed; the text says what to install."""


def entry_bytes(found: object, limit: int) -> bytes | None:
    """Checks what a library returned for an entry: bytes, or None for no entry. Nonsense for another type, Oversized for more
    than `limit` bytes."""
    if found is None:
        return None
    if not isinstance(found, bytes):
        raise Nonsense(f"the response is of type {type(found).__name__}, not bytes")
    if len(found) > limit:
        raise Oversized
    return found


class Layer(Protocol):
    """One remote."""

    def get(self, key: str, limit: int) -> bytes | None:
        """The bytes under the key, None if there are none. Oversized if they are more than `limit`, Unusable if the value is
        not bytes, Nonsense if the answer violates the protocol."""
        ...

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Store bytes under the key; without `replace` only if the key has none. False if it had some."""
        ...

    def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """Acquire or renew the lease of the key for `holder`. False if another builder holds it, None if unsupported."""
        ...

    def release(self, key: str, holder: str) -> None:
        """Release the lease of the key if `holder` holds it."""
        ...

    def close(self) -> None:
        """Close every connection and abort operations in progress."""
        ...
