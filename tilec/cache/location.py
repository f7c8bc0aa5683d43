"""Where the store lies, and whether it is the user's own.

The default is the user's cache folder, so that a project that someone else wrote cannot bring a store along: `TILEC_CACHE_DIR`
chooses another one. Without a secret (`seal`) a store is trusted because only the user can have written it, so it is refused
where that is not so: another user owns it, its group or others may write to it, or somebody else could put another folder in
its place, because a folder above it is theirs or may be written by them and is not sticky. Root is trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tilec.diagnostics import CompileError, Diagnostic

CACHE_DIR: Final = "TILEC_CACHE_DIR"
MOST_LINKS = 40


def store_root() -> Path:
    """Folder of the store: `TILEC_CACHE_DIR`, else `tilec` in the user's cache folder."""
    given = os.environ.get(CACHE_DIR)
    if given:
        return Path(given).absolute()
    import platformdirs  # here, since most commands are told where, or need no store

    found = platformdirs.user_cache_dir("tilec")
    # A relative XDG_CACHE_HOME would mean a folder of wherever the command runs; the XDG specification says to ignore it.
    return Path(found if os.path.isabs(found) else os.path.expanduser("~/.cache/tilec"))


def create(root: Path) -> None:
    """Make the folder and those above it that are missing, for the user alone. OSError where that cannot be."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))


def check_private(root: Path) -> None:
    """CompileError E0711 where someone else could have written to the store `root`, or could put another in its place."""
    for path, status in _walk(root):
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()):
            raise _refused(root, path, f"belongs to the user {status.st_uid}", "take a folder of your own")
        if not stat.S_ISLNK(status.st_mode) and mode & 0o022 and not mode & stat.S_ISVTX:  # who replaces a link owns its folder
            raise _refused(root, path, _writers(mode), f"`chmod go-w {path}`")


def check_own(root: Path, path: Path, handle: int) -> None:
    """CompileError E0711 where the open folder `path` of the store is not the user's, or may be written by others."""
    status = os.fstat(handle)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise _refused(root, path, f"belongs to the user {status.st_uid}", "take a folder of your own")
    if mode & 0o022:
        raise _refused(root, path, _writers(mode), f"`chmod go-w {path}`")


def _writers(mode: int) -> str:
    return f"may be written by {'everybody' if mode & 0o002 else 'its group'} (mode {mode:04o})"


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link on the way to `root`, links followed by hand so that none is left out."""
    pending = list(reversed(root.absolute().parts[1:]))
    here, links = Path("/"), 0
    yield here, os.lstat(here)
    while pending:
        name = pending.pop()
        if name == "..":
            here = here.parent
            continue
        path = here / name
        status = os.lstat(path)
        yield path, status
        if not stat.S_ISLNK(status.st_mode):
            here = path
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root))
        target = Path(os.readlink(path))
        pending.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        here = Path("/") if target.is_absolute() else here


def _refused(root: Path, path: Path, why: str, hint: str) -> CompileError:
    what = "it" if path == root else f"`{path}`"
    message = f"the cache at `{root}` is not yours alone: {what} {why}"
    more = f"{hint}, set `{CACHE_DIR}` to one, or share this one under a key (`tilec explain E0711`)"
    return CompileError(Diagnostic("E0711", message, hint=more))
