"""Writes results atomically, to a temporary file in the same folder that is then renamed. Streams are written to directly."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from engine.errors import EngineError
from tilec.untrusted.output import OpenOutput, Output, is_stream, open_stream, write_all, write_stream


def check_writable(path: Path) -> None:
    """EngineError if no file can be created at `path`, or a folder is there. Called before anything is measured."""
    if os.path.isdir(path):
        raise EngineError("is a folder", where=path, fix="name a file")
    if is_stream(str(path)):
        return
    try:
        with closing(_folder(path)) as folder:
            folder.check_writable(path.name)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unwritable(path, error) from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, or write to a stream (`tilec.untrusted.output.is_stream`); EngineError if that fails."""
    try:
        handle = open_stream(str(path))
        if handle is not None:
            write_stream(handle, data)
            return
        with closing(_folder(path)) as folder, folder.new(path.name) as file:
            write_all(file, data)
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _folder(path: Path) -> OpenOutput:
    return Output(path.parent, None).opened(create=False)


def _unwritable(path: Path, error: Exception) -> EngineError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return EngineError(f"cannot be written: {reason}", where=path, fix="name a file in a folder that can be written")
