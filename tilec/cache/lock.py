"""Locks across processes that the kernel releases when their holder dies, so no lock is ever stale.

Each key locks one byte of one file, at an offset taken from the key. The locks belong to the open file description (Linux,
`F_OFD_SETLKW`), so they also exclude threads of one process.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, key: str) -> Generator[None]:
    """Hold the lock of `key` (hex digits) in the lock file `path`; waits for whoever holds it."""
    offset = int(key[:15], 16)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        request = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, request)
        yield
    finally:
        os.close(handle)
