"""Locks across processes that the kernel releases when their holder dies, so no lock is ever stale.

Each key locks one byte of one file, at an offset taken from the key. The locks belong to the open file description (Linux,
`F_OFD_SETLKW`), so they also exclude threads of one process. Whoever has to wait for another command says for which (process,
folder, since when), from a note that the holder leaves in `holders/` beside the lock file. A note is only read while its key
is locked, and is believed in nothing but that message: it may be anything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tilec import progress
from tilec.folder import Folder

MOST = 4096
"""Bytes of a note."""
HOLDERS = "holders"
"""Folder of the notes."""
UNNAMED = 10.0
"""Seconds to wait for a holder whose note is not there, before the wait is said without its name."""


@contextmanager
def locked(folder: Folder, name: str, key: str, what: str = "") -> Generator[None]:
    """Hold the lock of `key` (hex digits) in the lock file `name` of a folder, to make `what`; waits for whoever holds it."""
    offset = int(key[:15], 16)
    note = key[:15]
    # Neither a link is followed nor a device opened for ever: the folder may be one that others write to.
    handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder.handle)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "the lock is not a plain file", str(folder.path / name))
        request = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            if not _came_free(handle, request, folder, note):
                holder = _read(folder, note)
                if holder.get("command") != progress.command():  # our own workers are not worth a word
                    progress.say(waiting(holder, what))
                fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, request)
        _write(folder, note, what)
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.sub(HOLDERS, create=False).remove(note)
        os.close(handle)


def _came_free(handle: int, request: bytes, folder: Folder, note: str) -> bool:
    """Wait until the lock's holder has a note, or `UNNAMED` seconds; True if the lock was free first, and is now held.

    A holder leaves its note after it has the lock and removes it before it gives the lock back, so for a moment none is there.
    """
    until = time.monotonic() + UNNAMED
    while not _read(folder, note) and time.monotonic() < until:
        time.sleep(0.01)
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
            return True
    return False


def waiting(holder: dict[str, Any], what: str) -> str:
    """The line about a wait for `what`, of which another command left the note `holder`."""
    process, folder, since = holder.get("command"), holder.get("folder"), holder.get("since")
    if not (isinstance(process, int) and isinstance(folder, str) and isinstance(since, int | float) and 0 < since < 1e11):
        return f"waiting for another build, which makes {what or 'the same'}; this one goes on when that ends"
    shown = "".join(letter if letter.isprintable() else "?" for letter in folder[:1000])
    seconds = max(time.time() - since, 0)
    clock = time.strftime("%H:%M:%S", time.localtime(since))
    return (
        f"waiting for process {process} in `{shown}`, which makes {what or 'the same'} since {clock} ({seconds:.0f} s); "
        f"this one goes on when that ends, or at once if you end it (`kill {process}`)"
    )


def _write(folder: Folder, note: str, what: str) -> None:
    """Leave a note; nobody needs it, so what fails is left out."""
    data = json.dumps({"command": progress.command(), "folder": os.getcwd(), "since": time.time(), "what": what}).encode()
    with contextlib.suppress(OSError):
        folder.sub(HOLDERS).write(note, data[:MOST])


def _read(folder: Folder, note: str) -> dict[str, Any]:
    try:
        data = folder.sub(HOLDERS, create=False).read(note, MOST)
        found: Any = json.loads(data[0]) if data else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
