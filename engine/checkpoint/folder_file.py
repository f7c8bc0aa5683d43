"""Opens files of a model folder safely: a hostile folder can neither block the reader nor redirect it to other files.

Returns an open regular file for a path, or raises a `ModelError` that names the path. Guarantees:

1. Only regular files are opened. A pipe, a device or a folder is refused without blocking.
2. A symbolic link is followed only to a file of the same folder, or to the `blobs` of Hugging Face's cache, where
   `models--*/snapshots/REVISION/FILE` links to `models--*/blobs/DIGEST`. Any other link is refused and its target is not
   opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from engine.errors import ModelError

DOWNLOAD_AGAIN: Final = "download the file again"


def open_file(path: Path, absent: str, *, links: bool = False) -> BinaryIO:
    """The file at `path`, open for reading. `absent` is the suggestion if there is no regular file. `links` follows symbolic
    links to any target, for files that the user names explicitly."""
    try:
        resolved = path.resolve(strict=True)
        if not links:
            _refuse_escape(path, resolved)
        handle = os.open(resolved, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
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
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the name; RuntimeError: a cycle of links
        raise _unreadable(path, error) from None


def read_bytes(path: Path, limit_bytes: int, absent: str, *, links: bool = False) -> bytes:
    """The contents of a file of at most `limit_bytes`; ModelError for a longer one, and as in `open_file`."""
    try:
        with open_file(path, absent, links=links) as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > limit_bytes:
        raise ModelError(f"is over {limit_bytes} bytes", where=path, fix=DOWNLOAD_AGAIN)
    return data


def path_exists(path: Path) -> bool:
    """Whether the path exists, as any kind of file. A dangling link counts as existing: it is damage, not absence. ModelError
    if the folder cannot be searched."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return True


def _refuse_escape(path: Path, resolved: Path) -> None:
    """ModelError unless `resolved`, the resolved `path`, is in the folder of `path` or in the blobs of its cache."""
    folder = path.parent.resolve(strict=True)
    allowed_folders = [folder]
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        allowed_folders.append(folder.parent.parent / "blobs")
    if not any(resolved.is_relative_to(root) for root in allowed_folders):
        raise ModelError("is a link to a file outside its folder", where=path, fix="put the file itself there")
    if not resolved.is_file():  # check before opening: opening a device can have side effects
        raise ModelError("is not a regular file", where=path, fix=DOWNLOAD_AGAIN)


def _unreadable(path: Path, error: Exception) -> ModelError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ModelError(f"cannot be read: {reason}", where=path, fix="make it a readable file")
