"""Leases as files of a shared folder, `URL/lease-<key>`: a line with the holder and the time of expiry.

A lease appears with its contents in one step: it is written under a temporary name and then linked, which fails if the lease
exists (`link(2)`). Renewal renames a new file over it. So no builder ever reads a lease that is empty or half written.

Of several builders that read an expired lease, the holder of a second lease, `lease-<key>-next`, replaces it, and only if its
text is still the same. A holder that stops between reading its own lease and renewing it, for longer than the rest
of the lease, is not noticed: work is then done twice.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

LONGEST: Final = 200
"""Bytes of a lease; more are not read."""
TAKEOVER: Final = "-next"
TAKEOVER_SECONDS: Final = 30.0
"""A builder that stops while it takes over a lease delays others by so long."""


def parsed(text: str) -> tuple[str, float]:
    """Holder and expiry (Unix time, seconds) of a lease; no holder and 0 for other text."""
    try:
        holder, until = text.split()[:2]
        return holder, float(until)
    except ValueError:
        return "", 0.0


def lease_text(holder: str, seconds: float) -> str:
    """The contents of a lease that expires in `seconds`."""
    return f"{holder} {time.time() + seconds:.3f}"


def is_in_force(until: float, seconds: float) -> bool:
    """Whether a lease is in force. An expiry too far ahead is invalid."""
    return time.time() < until < time.time() + 2 * seconds


def claim(path: Path, holder: str, seconds: float) -> bool | None:
    """Acquire or renew the lease at `path`. False if another holder has it; None if the file system has no hard links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        made.write_text(lease_text(holder, seconds), encoding="ascii")
        linked = _link(made, path)
        text = _read(path) if linked is False else None
        if text is None:
            return linked
        known, until = parsed(text)
        if is_in_force(until, seconds):
            if known == holder:
                made.replace(path)
            return known == holder
        with _takeover(path, text) as mine:
            if mine:
                made.replace(path)
        return mine
    finally:
        made.unlink(missing_ok=True)


def release(path: Path, holder: str) -> None:
    """Remove the lease if it is the holder's."""
    text = _read(path) or ""
    known, until = parsed(text)
    if known == holder and time.time() < until:
        path.unlink(missing_ok=True)
    elif known == holder:
        with _takeover(path, text) as mine:
            if mine:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _takeover(path: Path, text: str) -> Generator[bool]:
    """Whether this builder alone may replace the expired lease with this text."""
    second, holder = path.with_name(path.name + TAKEOVER), secrets.token_hex(16)
    if not claim(second, holder, TAKEOVER_SECONDS):
        yield False
        return
    try:
        yield _read(path) == text
    finally:
        release(second, holder)


def _link(made: Path, path: Path) -> bool | None:
    try:
        path.hardlink_to(made)
    except FileExistsError:
        return False
    except OSError:
        return None
    return True


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST).decode("ascii", "replace")
    except FileNotFoundError:
        return None
