"""Reads a file that someone else may have made: a path and a bound go in, the bytes come out, once and as one copy.

What is checked afterwards is the copy, so that whoever writes the file meanwhile changes nothing of what was checked. Pipes,
devices and folders are refused without waiting for them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path


def read_regular(path: str | Path, largest: int, check: Callable[[int, bytes], None] | None = None) -> bytes:
    """The bytes of a regular file of at most `largest` bytes. `check` gets its size and first 64 bytes, and may raise, before
    room is made for the rest. OSError where it cannot be read; ValueError, as the end of a sentence, where it is not such a
    file, or changes its size meanwhile."""
    if "\0" in str(path):
        raise ValueError("has a name with a NUL")
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe must not make us wait
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a file")
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
