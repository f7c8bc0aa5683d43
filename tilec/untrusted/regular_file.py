"""Reads an untrusted file: takes a path and a bound, returns the bytes, read once as one copy.

Later checks use the copy in this process's memory. Concurrent writes, truncation or replacement of the file therefore cannot
change what was checked, and no access can fault as one to a mapping could. Pipes, devices, folders and links are rejected
without blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

WRITTEN_BY_OTHERS: Final = 0o022
USED_BY_OTHERS: Final = 0o077


def read_regular(
    path: str | Path, largest: int, check: Callable[[int, bytes], None] | None = None, *, forbidden_mode: int = 0
) -> bytes:  # fmt: skip
    """The bytes of a regular file of at most `largest` bytes. `check` gets its size and first 64 bytes, and may raise before
    memory for the rest is allocated. `forbidden_mode` (`WRITTEN_BY_OTHERS`, `USED_BY_OTHERS`) is for files that the user
    controls: such a file may be reached through a link, must belong to the user or to root, and must not have any of these
    permissions. OSError if it cannot be read; ValueError, whose text ends a sentence, if it is not such a file, or changes its
    size meanwhile."""
    if "\0" in str(path):
        raise ValueError("has a name with a NUL")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # do not block on a pipe
    try:
        handle = os.open(path, flags if forbidden_mode else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not forbidden_mode and os.path.islink(path):
            raise ValueError("is a link; name the file that it leads to") from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a file")
        if forbidden_mode:
            _check_own(status, forbidden_mode)
        size = status.st_size
        if check is not None:
            check(size, os.pread(handle, 64, 0))
        if size > largest:
            raise ValueError(f"has {size} bytes, more than the {largest} that it may have")
        parts: list[bytes] = []
        remaining = size + 1
        while remaining and (part := os.read(handle, remaining)):
            parts.append(part)
            remaining -= len(part)
    finally:
        os.close(handle)
    if remaining != 1:
        raise ValueError("changed while it was read")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_own(status: os.stat_result, forbidden: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"belongs to the user {status.st_uid}")
    if mode & forbidden:
        access, change = ("written", "go-w") if forbidden == WRITTEN_BY_OTHERS else ("read or written", "600")
        raise ValueError(f"may be {access} by others (mode {mode:04o}); run `chmod {change}` on it")
