"""Reads a file that someone else may have made: a path and a bound go in, the bytes come out, once and as one copy.

What is checked afterwards is the copy, in memory of this process alone, so that whoever writes, cuts or replaces the file
meanwhile changes nothing of what was checked, and no access can fault as one to a mapping of the file could. Pipes, devices,
folders and links are refused without waiting for them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path


def read_regular(
    path: str | Path, largest: int, check: Callable[[int, bytes], None] | None = None, *, own: bool = False
) -> bytes:  # fmt: skip
    """The bytes of a regular file of at most `largest` bytes. `check` gets its size and first 64 bytes, and may raise, before
    room is made for the rest. With `own` the file is the user's word: it may be reached by a link, and must belong to the user
    or to root, with nobody else allowed to write to it. OSError where it cannot be read; ValueError, as the end of a sentence,
    where it is not such a file, or changes its size meanwhile."""
    if "\0" in str(path):
        raise ValueError("has a name with a NUL")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # a pipe must not make us wait
    try:
        handle = os.open(path, flags if own else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not own and os.path.islink(path):
            raise ValueError("is a link; name the file that it leads to") from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a file")
        if own:
            _check_own(status)
        size = status.st_size
        if check is not None:
            check(size, os.pread(handle, 64, 0))
        if size > largest:
            raise ValueError(f"has {size} bytes, more than the {largest} that it may have")
        parts: list[bytes] = []
        left = size + 1
        while left and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(handle)
    if left != 1:
        raise ValueError("changed while it was read")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_own(status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"belongs to the user {status.st_uid}")
    if mode & 0o022:
        raise ValueError(f"may be written by others (mode {mode:04o}); run `chmod go-w` on it")
