"""`Folder`: an open directory whose files are accessed by single names and never through a link.

In: a directory descriptor and names without a slash. Out: bytes of plain files of bounded size, or nothing. A name is opened
relative to the descriptor, without following a symbolic link (`O_NOFOLLOW`) and without blocking on a FIFO or a device
(`O_NONBLOCK`), and the file type is checked (`fstat`) before a byte is read. Writes go to a temporary file that is renamed over
the target: concurrent readers see the old bytes or all of the new ones, a killed writer leaves a `.tmp-` file, and a link or a
FIFO of that name is replaced, not written through. A directory that others can write to can therefore cause a miss, but not an
access outside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from tilec.progress import scratch

TEMPORARY: Final = ".tmp-"
TEMPORARY_NAME: Final = re.compile(r"\.tmp-[0-9a-f]{16}", re.ASCII)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Folder:
    """A directory by descriptor. `mode` is the mode of new directories below it; files get it without the execute bits."""

    def __init__(self, handle: int, path: Path, mode: int = 0o700) -> None:
        self.handle = handle
        self.path = path
        self.mode = mode

    @classmethod
    def open(cls, path: Path) -> Folder:
        """The directory at `path`, following links: the caller vouches for them. OSError if it is not a directory."""
        handle = os.open(path, DIRECTORY)
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        return cls(handle, path, (mode & 0o2777) | 0o700)

    def sub(self, name: str, *, create: bool = True) -> Folder:
        """The directory `name` in this one; with `create`, it is created if missing, and anything else of that name is
        displaced."""
        created = False
        for last in (False, True):
            try:
                handle = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=self.handle)
            except OSError as error:
                if last or not create or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                if error.errno != errno.ENOENT:
                    self.displace(name)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, self.mode & 0o777, dir_fd=self.handle)
                    created = True
            else:
                if created:
                    os.fchmod(handle, self.mode)  # in a shared store, wider than the umask allows
                return Folder(handle, self.path / name, self.mode)
        raise AssertionError

    def close(self) -> None:
        """Closes the descriptor; idempotent."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def open_plain(self, name: str) -> tuple[int, os.stat_result]:
        """A read descriptor of the plain file `name`, and its status; OSError for anything else."""
        handle = os.open(name, _READ, dir_fd=self.handle)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a plain file", name)
        return handle, status

    def read(self, name: str, limit: int) -> tuple[bytes, os.stat_result] | None:
        """The bytes of the plain file `name` and its status; None if it is not a plain file or longer than `limit`."""
        try:
            handle, status = self.open_plain(name)
        except OSError:
            return None
        with open(handle, "rb", buffering=0) as file:
            if status.st_size > limit:
                return None
            try:
                data = file.read(status.st_size + 1)
            except OSError:
                return None
        return (data, status) if len(data) == status.st_size else None

    def write(self, name: str, data: bytes, *, used: float | None = None) -> None:
        """Replaces whatever has the name by a file with `data`, last used at `used`. OSError if it cannot be written."""
        with self.new(name) as file:
            write_all(file, data)
            os.fchmod(file.fileno(), self.mode & 0o666)
            if used is not None:
                os.utime(file.fileno(), (used, used))

    @contextlib.contextmanager
    def new(self, name: str) -> Generator[FileIO]:
        """A new file, for writing and reading, that replaces whatever has the name after the body completes; if the body
        raises, it is removed. OSError if it cannot be created."""
        temporary = self.temporary()
        with scratch(os.path.abspath(self.path / temporary)):  # before it exists: a supervisor removes it after a kill
            handle = os.open(temporary, _NEW, self.mode & 0o666, dir_fd=self.handle)
            try:
                with open(handle, "w+b", buffering=0) as file:
                    yield file
                self._rename(temporary, name)
            except BaseException:
                self.remove(temporary)
                raise

    def temporary(self) -> str:
        """A unique name."""
        return f"{TEMPORARY}{secrets.token_hex(8)}"

    def _rename(self, temporary: str, name: str) -> None:
        try:
            os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except (IsADirectoryError, NotADirectoryError):
            self.displace(name)
            os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def has(self, name: str) -> bool:
        """Whether anything has the name, including a dangling link."""
        try:
            os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        except OSError:
            return False
        return True

    def touch(self, name: str, used: float) -> None:
        """Sets the time of last use; no effect without permission."""
        with contextlib.suppress(OSError):
            os.utime(name, (used, used), dir_fd=self.handle, follow_symlinks=False)

    def displace(self, name: str) -> None:
        """Renames an entry that occupies the name of a file; `remove_tree` of a prune removes it later."""
        with contextlib.suppress(FileNotFoundError):
            other = self.temporary()
            os.rename(name, other, src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def discard(self, name: str) -> None:
        """Removes a name if possible, else displaces it."""
        if not self.remove(name):
            with contextlib.suppress(OSError):
                self.displace(name)

    def ensure_plain(self, name: str) -> None:
        """Creates an empty file if the name is free or taken by something else; OSError if it cannot be created."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mode):
                return
            self.displace(name)
        with contextlib.suppress(FileExistsError):
            handle = os.open(name, _NEW, self.mode & 0o666, dir_fd=self.handle)
            os.fchmod(handle, self.mode & 0o666)
            os.close(handle)

    def remove(self, name: str) -> bool:
        """Removes a name that is not a directory (the link, never its target); returns whether it succeeded."""
        try:
            os.unlink(name, dir_fd=self.handle)
        except OSError:
            return False
        return True

    def remove_tree(self, name: str) -> bool:
        """Removes a name with everything below it, following no link; False if something is left."""
        pending = [] if self.remove(name) else [name]
        try:
            while pending:
                with contextlib.closing(self.sub(pending[-1], create=False)) as folder:
                    # Subfolders are moved up here one by one, so that deep nesting needs no recursion or additional
                    # descriptors.
                    for item in [item for item, _ in folder.names() if not folder.remove(item)]:
                        other = f"{TEMPORARY}{secrets.token_hex(8)}"
                        os.rename(item, other, src_dir_fd=folder.handle, dst_dir_fd=self.handle)
                        pending.insert(0, other)
                os.rmdir(pending.pop(), dir_fd=self.handle)
        except OSError:
            return False
        return True

    def names(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every name with its status; names that disappear meanwhile are omitted."""
        with os.scandir(self.handle) as entries:
            listed = [entry.name for entry in entries]
        for name in listed:
            with contextlib.suppress(OSError):
                yield name, os.stat(name, dir_fd=self.handle, follow_symlinks=False)


def write_all(file: FileIO, data: bytes) -> None:
    """Writes all data to an unbuffered file, whose `write` may be partial."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
