"""Files: atomic writes, and digests of source files remembered by path, size, inode and the times of modification and change.

The time of modification can be set back to what it was; the time of change (`st_ctime`) moves with every write and with every
such setting, and nobody sets it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SETTLED_NS = 50_000_000  # a file changed this recently may change again within one tick of the file system's clock


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`: readers see the old bytes or all of the new ones. OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


class FileDigests:
    """sha256 of files. `save` keeps them for the next process; an unreadable memory only costs time."""

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        if memory is not None:
            with contextlib.suppress(OSError, ValueError):
                data: Any = json.loads(memory.read_text(encoding="utf-8"))
                self._known = data if isinstance(data, dict) else {}

    def digest(self, path: Path | str) -> str:
        """Hex sha256 of the bytes of `path`; OSError where it cannot be read."""
        name = os.path.abspath(path)
        status = os.stat(name)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        known = self._known.get(name)
        if isinstance(known, list) and len(known) == 5 and known[:4] == stamp and isinstance(known[4], str):
            return known[4]
        with open(name, "rb") as file:
            value = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._known[name] = [*stamp, value]
            self._changed = True
        return value

    def combined(self, paths: Iterable[Path], base: Path) -> str:
        """One digest of many files and of their names relative to `base`."""
        total = hashlib.sha256()
        for path in sorted(paths):
            total.update(f"{path.relative_to(base).as_posix()}\0{self.digest(path)}\n".encode())
        return total.hexdigest()

    def save(self) -> None:
        """Remember what was hashed; a memory that cannot be written is left as it is."""
        if self._memory is not None and self._changed:
            with contextlib.suppress(OSError):
                write_atomically(self._memory, json.dumps(self._known).encode(), durable=False)
