"""Results on disk, whole or not at all: written beside their place and renamed into it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from engine.errors import EngineError


def check_writable(path: Path) -> None:
    """EngineError where no file can be made beside `path`, or a folder lies there; before anything is measured."""
    if path.is_dir():
        raise EngineError("is a folder", where=path, fix="name a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        os.unlink(name)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unwritable(path, error) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there; EngineError where it cannot be written."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: Exception) -> EngineError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return EngineError(f"cannot be written: {reason}", where=path, fix="name a file in a folder that can be written")
