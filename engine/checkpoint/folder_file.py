"""Files of a model folder, opened so that a hostile folder can neither hold the reader up nor lead it elsewhere.

A path goes in, an open regular file of the folder comes out, or a `ModelError` that names the path. What holds:

1. only regular files are opened: a pipe without a writer, a device or a folder is refused, never waited for;
2. a link is followed only to a file of the same folder, or to the `blobs` of the cache that Hugging Face's tools keep, where
   `models--*/snapshots/REVISION/FILE` leads to `models--*/blobs/DIGEST`; any other link is refused, and its target not opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from engine.errors import ModelError

DOWNLOAD_AGAIN: Final = "download the file again"


def open_file(path: Path, absent: str, *, links: bool = False) -> BinaryIO:
    """The file at `path`, open for reading; `absent` is the advice where there is none, or not a regular one. `links` follows
    links to anywhere, for files that the user names one by one."""
    try:
        place = path.resolve(strict=True)
        if not links:
            _refuse_escape(path, place)
        handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
        except BaseException:
            os.close(handle)
            raise
        if not regular:
            os.close(handle)
            raise ModelError("is not a regular file", where=path, fix=absent)
        return os.fdopen(handle, "rb")
    except FileNotFoundError:
        raise ModelError("there is no such file", where=path, fix=absent) from None
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the name; RuntimeError: links in a circle
        raise _unreadable(path, error) from None


def read_bytes(path: Path, limit_bytes: int, absent: str, *, links: bool = False) -> bytes:
    """All of a file of at most `limit_bytes`; ModelError for a longer one, and as in `open_file`."""
    try:
        with open_file(path, absent, links=links) as file:
            found = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(found) > limit_bytes:
        raise ModelError(f"is over {limit_bytes} bytes", where=path, fix=DOWNLOAD_AGAIN)
    return found


def is_there(path: Path) -> bool:
    """Whether a folder has a file of this name, of any kind: a link that leads nowhere is damage, not absence. ModelError where
    the folder cannot be searched."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return True


def _refuse_escape(path: Path, place: Path) -> None:
    """ModelError unless `place`, which `path` leads to, is in the folder of `path` or in the blobs of its cache."""
    folder = path.parent.resolve(strict=True)
    within = [folder]
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        within.append(folder.parent.parent / "blobs")
    if not any(place.is_relative_to(root) for root in within):
        raise ModelError("is a link to a file outside its folder", where=path, fix="put the file itself there")
    if not place.is_file():  # before it is opened: opening a device can act on it
        raise ModelError("is not a regular file", where=path, fix=DOWNLOAD_AGAIN)


def _unreadable(path: Path, error: Exception) -> ModelError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ModelError(f"cannot be read: {reason}", where=path, fix="make it a readable file")
