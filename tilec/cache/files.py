"""Digests of source files, cached by path, size, inode, device, modification time and change time.

A program can reset the modification time. It cannot set the change time (`st_ctime`), which every write and every such reset
updates.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilec.cache.notes import Notes, read_json

SETTLED_NS = 50_000_000  # a file changed this recently may change again within one tick of the file system's clock
LARGEST_FILE = 1 << 28  # bytes
MOST_REMEMBERED = 20_000  # files per note


class FileDigests:
    """sha256 of files. `save` writes them to a note for the next process; a malformed note only costs time. `texts` maps real
    paths to texts that replace the files' contents; their digests are not saved."""

    def __init__(self, notes: Notes | None = None, name: str = "digests", texts: Mapping[str, str] | None = None) -> None:
        self.texts: Mapping[str, str] = texts or {}
        self._notes = notes
        self._name = name
        self._used: dict[str, list[Any]] = {}
        self._changed = False
        data = read_json(notes, name) if notes is not None else None
        self._known: dict[str, Any] = data if isinstance(data, dict) else {}

    def digest(self, path: Path | str) -> str:
        """Hex sha256 of the bytes of `path`. OSError if it cannot be read, is not a plain file or exceeds `LARGEST_FILE`."""
        name = os.path.abspath(path)
        text = self.texts.get(os.path.realpath(name)) if self.texts else None
        if text is not None:
            return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        status = os.stat(name)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
        known = self._used.get(name) or self._known.get(name)
        if isinstance(known, list) and len(known) == 6 and known[:5] == stamp and isinstance(known[5], str):  # pyright: ignore[reportUnknownArgumentType]
            self._used[name] = known
            return known[5]
        value = _hash(name)
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._used[name] = [*stamp, value]
            self._changed = True
        return value

    def combined(self, paths: Iterable[Path], base: Path) -> str:
        """One digest of many files and of their names relative to `base`."""
        total = hashlib.sha256()
        for path in sorted(paths):
            total.update(f"{path.relative_to(base).as_posix()}\0{self.digest(path)}\n".encode())
        return total.hexdigest()

    def save(self) -> None:
        """Write the digests used, and older ones up to `MOST_REMEMBERED` files in all."""
        if self._notes is not None and self._changed:
            room = max(MOST_REMEMBERED - len(self._used), 0)
            older = [item for item in self._known.items() if item[0] not in self._used][:room]
            self._notes.set_texts({self._name: json.dumps(dict(older) | self._used)})


def _hash(name: str) -> str:
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)  # opening a FIFO must not block
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", name)
        if status.st_size > LARGEST_FILE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        return hashlib.file_digest(file, "sha256").hexdigest()
