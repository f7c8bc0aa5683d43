"""File output of all commands: takes a folder and names below it, writes whole files, never through a link.

An `Output` is anchored at the project's root, or at a folder that the user named. Links on the way to the anchor are followed:
the user vouches for them. Below it, each part of a path is opened relative to the descriptor of its parent (`openat`,
`O_NOFOLLOW`), so that nothing created meanwhile can redirect it. A link, a device or a pipe in place of a folder or a file is
an error that names it, and so is a path that leaves the project by `..`. A file is written under a temporary name, which
contains the process id and is locked (`temporary_files`), and renamed: readers see the old bytes or all of the new ones. A file
with the same bytes is not rewritten. A file is appended to only if it has a single name, because a hard link may be anywhere.

A path from the command line may also be a stream (`write_named`): `-`, a descriptor, a character device or a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.diagnostics.visible import visible
from tilec.untrusted.folder import DIRECTORY, Folder
from tilec.untrusted.folder import write_all as write_all
from tilec.untrusted.temporary_files import lock, sweep_open, temporary_name

MODE: Final = 0o777
"""Mode of new folders and, without the execute bits, of new files, before the user's umask."""
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DESCRIPTOR: Final = re.compile(r"-|/dev/stdout|/dev/stderr|(?:/dev|/proc/self)/fd/([0-9]{1,9})", re.ASCII)
_STREAM: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
LONGEST_SHOWN: Final = 300
"""Maximum characters of a path in a message."""


class InTheWay(OSError):
    """The name of a file or folder is taken by something that must not be written through; `strerror` describes it, `hint`
    suggests a remedy."""

    def __init__(self, number: int, problem: str, hint: str) -> None:
        super().__init__(number, problem)
        self.hint = hint


class OpenOutput(Folder):
    """An output folder by descriptor: an entry that is neither folder nor file is an error, not displaced."""

    def sub(self, name: str, *, create: bool = True) -> OpenOutput:
        """The folder `name` in this one, created if missing. InTheWay for a link or a file of that name."""
        flags = DIRECTORY | os.O_NOFOLLOW
        for last in (False, True):
            try:
                return OpenOutput(os.open(_one(name), flags, dir_fd=self.handle), self.path / name, MODE)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise self._in_the_way(name, "folder") from None
                if error.errno != errno.ENOENT or last or not create:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.handle)
        raise AssertionError

    @contextlib.contextmanager
    def new(self, name: str) -> Generator[FileIO]:
        """As `Folder.new`, and locked while open. InTheWay if a link, a folder or the like has the name."""
        self.check_free(name)
        with super().new(_one(name)) as file:
            lock(file)
            yield file

    def temporary(self) -> str:
        """A unique name that contains the process id."""
        return temporary_name(Path("any")).name

    def displace(self, name: str) -> None:
        """Always raises InTheWay: nothing is displaced here."""
        raise self._in_the_way(name, "file")

    def check_free(self, name: str) -> None:
        """InTheWay if the name is taken by something other than a regular file."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(_one(name), dir_fd=self.handle, follow_symlinks=False).st_mode):
                raise self._in_the_way(name, "file")

    def create(self, name: str, data: bytes, mode: int) -> None:
        """Creates a complete file with these permissions and syncs it to disk. FileExistsError if anything has the name."""
        temporary = self.temporary()
        try:
            with super().new(temporary) as file:  # a second, unique name
                os.fchmod(file.fileno(), mode)  # before it has contents
                write_all(file, data)
                os.fsync(file.fileno())
            os.link(temporary, _one(name), src_dir_fd=self.handle, dst_dir_fd=self.handle, follow_symlinks=False)
        finally:
            self.remove(temporary)

    def check_writable(self, name: str) -> None:
        """OSError, including InTheWay, if no file of that name can be written; leaves no file."""
        self.check_free(name)
        with super().new(temporary := self.temporary()):
            pass
        self.remove(temporary)

    @contextlib.contextmanager
    def appended(self, name: str) -> Generator[FileIO]:
        """The file `name`, created if missing, for reading and appending. InTheWay for anything else."""
        self.check_free(name)
        try:
            handle = os.open(_one(name), _APPEND, MODE & 0o666, dir_fd=self.handle)
        except OSError as error:
            raise (self._in_the_way(name, "file") if error.errno == errno.ELOOP else error) from None
        with open(handle, "r+b", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise self._in_the_way(name, "file")
            if status.st_nlink > 1:
                problem = f"`{shown(self.path / name)}` is one of {status.st_nlink} names of one file (hard links)"
                hint = "replace the file by a copy: `cp` it to another name, and `mv` that back"
                raise InTheWay(errno.EMLINK, problem, hint)
            yield file

    def _in_the_way(self, name: str, wanted: str) -> InTheWay:
        path = self.path / name
        try:
            mode = os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mode
        except OSError:
            mode = 0
        if stat.S_ISLNK(mode):
            hint = "remove the link, or name what it leads to; commands write through no link"
            return InTheWay(errno.ELOOP, f"`{shown(path)}` is a link", hint)
        kind = "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device, pipe or socket"
        return InTheWay(errno.EEXIST, f"`{shown(path)}` is a {kind}", f"move it away, or name another {wanted}")


@dataclass(frozen=True, slots=True)
class Output:
    """A command's output folder, created at the first write unless `is_there`. `root` is the project's root, which contains the
    folder; None if the user named the folder. Methods with a file name also accept one with folders, such as `sm_90a/k.json`.
    Write errors are CompileError E0702 unless documented otherwise."""

    folder: Path
    root: Path | None
    is_there: bool = False

    @classmethod
    def file(cls, path: Path) -> tuple[Output, str]:
        """The folder of a file that the user named, which must exist, and the file's name in it."""
        return cls(path.parent, None, is_there=True), path.name

    def path(self, name: str) -> Path:
        """The path of a file of that name."""
        return self.folder / name

    def opened(self, folders: Sequence[str] = (), *, create: bool = True) -> OpenOutput:
        """The folder at `folders` below this one. OSError, including InTheWay, if it cannot be opened."""
        if self.root is None:
            anchor, parts = self.folder, list(folders)
            if create and not self.is_there:
                anchor.mkdir(parents=True, exist_ok=True)
        else:
            anchor, parts = self.root, [*_below(self.root, self.folder), *folders]
        current = OpenOutput(os.open(anchor, DIRECTORY), anchor, MODE)
        for part in parts:
            with contextlib.closing(current):
                current = current.sub(part, create=create)
        return current

    def write(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Replaces a file by `data` unless it has these bytes already; returns whether it was written. `durable`: sync it to
        disk."""
        with self._refusals(name), self._folder_of(name) as (folder, last):
            found = folder.read(last, len(data))
            if found is not None and found[0] == data:
                return False
            with folder.new(last) as file:
                write_all(file, data)
                if durable:
                    os.fsync(file.fileno())
        return True

    def append_line(self, name: str, line: bytes) -> None:
        """Appends a line to a file and syncs it to disk; terminates an incomplete last line of a killed run first."""
        with self._refusals(name), self._folder_of(name) as (folder, last), folder.appended(last) as file:
            size = os.fstat(file.fileno()).st_size
            unfinished = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            write_all(file, (b"\n" if unfinished else b"") + line + b"\n")
            os.fsync(file.fileno())

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file of at most `limit` bytes, without following links below the anchor. OSError."""
        folders, last = _split(name)
        with contextlib.closing(self.opened(folders, create=False)) as folder:
            found = folder.read(last, limit)
            if found is None:
                folder.check_free(last)
                number = errno.EFBIG if folder.has(last) else errno.ENOENT
                raise OSError(number, os.strerror(number), str(self.path(name)))
        return found[0]

    def remove(self, name: str) -> None:
        """Removes a file or a link if it exists, never a link's target."""
        with self._refusals(name), contextlib.suppress(FileNotFoundError):
            folders, last = _split(name)
            with contextlib.closing(self.opened(folders, create=False)) as folder:
                os.unlink(last, dir_fd=folder.handle)

    def sweep(self, *folders: str) -> None:
        """Removes leftovers of killed writers from a folder below this one, as far as possible."""
        with contextlib.suppress(OSError), contextlib.closing(self.opened(folders, create=False)) as folder:
            sweep_open(folder.handle)

    def check(self, *folders: str) -> None:
        """CompileError E0702 if something blocks a folder below this one; called before its contents are produced."""
        with self._refusals("/".join(folders)), contextlib.suppress(FileNotFoundError):
            self.opened(folders, create=False).close()

    @contextlib.contextmanager
    def _folder_of(self, name: str) -> Generator[tuple[OpenOutput, str]]:
        folders, last = _split(name)
        with contextlib.closing(self.opened(folders)) as folder:
            yield folder, last

    @contextlib.contextmanager
    def _refusals(self, name: str) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise unwritable(self.path(name), error) from None


def write_named(path: str, data: bytes, *, durable: bool = True) -> bool:
    """Writes to a path from the command line, never to a link's target; returns whether it is a file. A file is replaced as by
    `Output`; a stream gets the bytes unchanged, a terminal gets them escaped. CompileError E0702 on failure; BrokenPipeError if
    the reader has closed the pipe."""
    try:
        handle = open_stream(path)
        if handle is not None:
            write_stream(handle, data)
            return False
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(Path(path), error) from None
    output, name = Output.file(Path(path))
    output.write(name, data, durable=durable)
    return True


def is_stream(path: str) -> bool:
    """Whether a path is `-`, a descriptor, a character device or a pipe, and not a link to one."""
    if _DESCRIPTOR.fullmatch(path):
        return True
    try:
        return _can_stream(os.stat(path, follow_symlinks=False))
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


def open_stream(path: str) -> int | None:
    """A descriptor of a stream for writing, which the caller must close; None if `path` is not a stream. InTheWay if a pipe has
    no reader, because a file of the project could be one, and if a parent folder is a link; OSError."""
    if not is_stream(path):
        return None
    found = _DESCRIPTOR.fullmatch(path)
    if found:
        number = int(found[1] or (2 if path == "/dev/stderr" else 1))
        if fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:  # not inherited: one of this process's own by chance
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        return os.dup(number)
    folder = os.path.dirname(os.path.abspath(path))
    if (real := os.path.realpath(folder)) != folder:
        problem = f"`{shown(Path(folder))}` leads through a link"
        raise InTheWay(errno.ELOOP, problem, f"name `{shown(Path(real, os.path.basename(path)))}` if that is what you mean")
    try:
        handle = os.open(path, _STREAM)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise InTheWay(errno.ENXIO, "nobody reads from the pipe", "start its reader first, or name a file") from None
    if not _can_stream(os.fstat(handle)):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no longer a device or pipe", path)
    os.set_blocking(handle, True)  # writes wait for a slow reader
    return handle


def write_stream(handle: int, data: bytes) -> None:
    """Writes all data to a stream, after everything printed so far, and closes it."""
    with open(handle, "wb", buffering=0) as file:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()
        shows = os.isatty(handle)
        write_all(file, visible(data.decode("utf-8", "backslashreplace")).encode() if shows else data)


def _can_stream(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode)


def unwritable(path: Path, error: OSError | ValueError) -> CompileError:
    """E0702: `path` cannot be written, with the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = error.hint if isinstance(error, InTheWay) else "free space or permissions there, or name another place"
    return CompileError(Diagnostic("E0702", f"`{shown(path)}` cannot be written: {reason}", hint=hint))


def shown(path: Path) -> str:
    """A path for a message, shortened to fit a line."""
    text = str(path)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN // 2]}...{text[-LONGEST_SHOWN // 2 :]}"


def _below(root: Path, folder: Path) -> tuple[str, ...]:
    """The parts of `folder` below `root`, without `..`; computed from the text, because no link is followed there. InTheWay if
    it lies outside."""
    text = os.path.relpath(folder, root)
    parts = PurePosixPath(text).parts
    if ".." in parts:
        hint = f"commands write inside the project's folder, `{shown(root)}`; name a folder there"
        raise InTheWay(errno.EXDEV, "it lies outside of the project", hint)
    return parts


def _split(name: str) -> tuple[tuple[str, ...], str]:
    *folders, last = map(_one, name.split("/"))
    return tuple(folders), last


def _one(name: str) -> str:
    """The name, which must be a single path component; else ValueError."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"`{name[:80]}` is not a file name")
    return name
