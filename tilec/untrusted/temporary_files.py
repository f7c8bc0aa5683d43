"""Temporary files next to their targets, and removal of those that killed processes left.

In: the path of a target. Out: a temporary name next to it that contains the process id; a sidecar of attestations has such a
name too. The writer holds a lock on the file, so that `sweep` does not remove a file in use.
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

from tilec.artifact.signature_format import SIDECAR

_NAME: Final = re.compile(rf"\.tmp-([1-9][0-9]{{0,9}})-[0-9a-f]{{16}}(?:{re.escape(SIDECAR)})?", re.ASCII)


def temporary_name(path: Path) -> Path:
    """A unique name next to `path`."""
    return path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")


@contextlib.contextmanager
def locked(path: Path) -> Generator[BinaryIO]:
    """A new file, locked while it is open. OSError if it cannot be created."""
    with open(path, "x+b") as file:
        lock(file)
        yield file


def lock(file: BinaryIO | FileIO) -> None:
    """Locks a file that is in use, as long as it is open."""
    with contextlib.suppress(OSError):  # a file system without locks: `sweep` removes nothing there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path) -> None:
    """Removes leftovers from a folder. A file is in use while it is locked, by a process on any machine, or while the process
    in its name is alive on this one, since that process may be about to lock it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sweep_open(handle)
        finally:
            os.close(handle)


def sweep_open(handle: int) -> None:
    """`sweep` of the folder with this descriptor. OSError if it cannot be read."""
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
