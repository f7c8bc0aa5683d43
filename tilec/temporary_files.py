"""Temporary files beside what they become, and what is left of them where a process was killed.

In: the path of a file that is to be. Out: a name beside it, which tells the process that writes it, as an attestation beside it
does too. Whoever writes one holds a lock on it, so that `sweep` takes no file that is somebody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from tilec.signature_format import SIDECAR

_NAME: Final = re.compile(rf"\.tmp-([1-9][0-9]{{0,9}})-[0-9a-f]{{16}}(?:{re.escape(SIDECAR)})?", re.ASCII)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else has."""
    return path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")


@contextlib.contextmanager
def locked(path: Path) -> Generator[BinaryIO]:
    """A new file, locked as long as it is open. OSError where it cannot be made."""
    with open(path, "x+b") as file:
        lock(file)
        yield file


def lock(file: BinaryIO | FileIO) -> None:
    """Say that a file is somebody's, as long as it is open."""
    with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path) -> None:
    """Remove what was left in a folder. A file is somebody's while it is locked, wherever they are, and while the process that
    its name tells lives here, which may be about to lock it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sweep_open(handle)
        finally:
            os.close(handle)


def sweep_open(handle: int) -> None:
    """`sweep` of the folder with this descriptor. OSError where it cannot be read."""
    for name in os.listdir(handle):
        found = _NAME.fullmatch(name)
        if found is not None and not _lives(int(found[1])):
            _remove_unlocked(handle, name)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _remove_unlocked(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(handle, "rb", buffering=0) as file:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
