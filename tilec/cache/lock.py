"""Locks across processes. The operating system releases a lock when its holder dies, so no lock is ever stale.

Each key locks one byte of one file, at an offset derived from the key. The locks belong to the open file description (Linux,
`F_OFD_SETLKW`), so they also exclude threads of one process. A holder writes a note to `holders/` next to the lock file.
A command that waits for another one prints its process, folder and start time from that note. A note is untrusted: it is read
only while its key is locked, and is used only for that message.
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
from tilec.untrusted.folder import Folder

MOST = 4096
"""Bytes of a note."""
HOLDERS = "holders"
"""Folder of the notes."""
UNNAMED = 10.0
"""Seconds to wait for the holder's note before the wait is reported without a process."""


@contextmanager
def locked(folder: Folder, name: str, key: str, what: str = "") -> Generator[None]:
    """Hold the lock of `key` (hex digits) in the lock file `name` of a folder, to make `what`; waits for another holder."""
    offset = int(key[:15], 16)
    note = key[:15]
    # Others may be able to write to the folder: follow no link, and do not block on a device or FIFO.
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
                if holder.get("command") != progress.command():  # no message for this command's own workers
                    progress.notify(waiting(holder, what))
                fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, request)
        _write(folder, note, what)
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.sub(HOLDERS, create=False).remove(note)
        os.close(handle)


def _came_free(handle: int, request: bytes, folder: Folder, note: str) -> bool:
    """Wait until the holder has written its note, for at most `UNNAMED` seconds. True if the lock was acquired meanwhile.

    A holder writes its note after it acquires the lock and removes it before it releases the lock, so a held lock can briefly
    have no note.
    """
    until = time.monotonic() + UNNAMED
    while not _read(folder, note) and time.monotonic() < until:
        time.sleep(0.01)
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
            return True
    return False


def waiting(holder: dict[str, Any], what: str) -> str:
    """The message about a wait for `what`, given the note `holder` of another command."""
    process, folder, since = holder.get("command"), holder.get("folder"), holder.get("since")
    if not (isinstance(process, int) and isinstance(folder, str) and isinstance(since, int | float) and 0 < since < 1e11):
        return f"waiting for another build of {what or 'the same'}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in folder[:1000])
    seconds = max(time.time() - since, 0)
    clock = time.strftime("%H:%M:%S", time.localtime(since))
    return (
        f"waiting for process {process} in `{shown}` to build {what or 'the same'}, running since {clock} ({seconds:.0f} s); "
        f"end it with `kill {process}` to continue at once"
    )


def _write(folder: Folder, note: str, what: str) -> None:
    """Write the note. It only serves a message, so a failure is ignored."""
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
