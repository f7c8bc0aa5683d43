"""The location of the store, and the check that only the user can write to it.

The default is the user's cache folder, so a project from someone else cannot ship a store; `TILEC_CACHE_DIR` selects another
one. Without a secret (`seal`) a store is trusted because only the user can have written it. It is refused if another user owns
it, if its group or others can write to it, or if somebody else could replace it: another user owns a parent folder, or can
write to one that is not sticky. Root is trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic

CACHE_DIR: Final = "TILEC_CACHE_DIR"
MOST_LINKS = 40


def store_root() -> Path:
    """Folder of the store: `TILEC_CACHE_DIR`, else `tilec` in the user's cache folder."""
    given = os.environ.get(CACHE_DIR)
    if given:
        return Path(given).absolute()
    import platformdirs  # imported here: most commands are given a folder, or need no store

    found = platformdirs.user_cache_dir("tilec")
    # A relative XDG_CACHE_HOME would depend on the working directory; the XDG specification says to ignore it.
    return Path(found if os.path.isabs(found) else os.path.expanduser("~/.cache/tilec"))


def create(root: Path) -> None:
    """Create the folder and its missing parents with mode 0700. OSError if that fails."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))


def check_private(root: Path) -> None:
    """CompileError E0711 if another user could write to the store `root` or replace it."""
    for path, status in _walk(root):
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()):
            raise _refused(root, path, f"belongs to the user {status.st_uid}", "use a folder of your own")
        if not stat.S_ISLNK(status.st_mode) and mode & 0o022 and not mode & stat.S_ISVTX:  # replacing a link needs its folder
            raise _refused(root, path, _writers(mode), f"`chmod go-w {path}`")


def check_own(root: Path, path: Path, handle: int) -> None:
    """CompileError E0711 if the user does not own the open folder `path` of the store, or others can write to it."""
    status = os.fstat(handle)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise _refused(root, path, f"belongs to the user {status.st_uid}", "use a folder of your own")
    if mode & 0o022:
        raise _refused(root, path, _writers(mode), f"`chmod go-w {path}`")


def _writers(mode: int) -> str:
    return f"may be written by {'everybody' if mode & 0o002 else 'its group'} (mode {mode:04o})"


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link on the path to `root`. Links are resolved here, so that each of them is checked."""
    pending = list(reversed(root.absolute().parts[1:]))
    current, links = Path("/"), 0
    yield current, os.lstat(current)
    while pending:
        name = pending.pop()
        if name == "..":
            current = current.parent
            continue
        path = current / name
        status = os.lstat(path)
        yield path, status
        if not stat.S_ISLNK(status.st_mode):
            current = path
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root))
        target = Path(os.readlink(path))
        pending.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        current = Path("/") if target.is_absolute() else current


def _refused(root: Path, path: Path, reason: str, hint: str) -> CompileError:
    subject = "it" if path == root else f"`{path}`"
    message = f"the cache at `{root}` is not private: {subject} {reason}"
    more = f"{hint}, set `{CACHE_DIR}` to one, or share this one under a key (`tilec explain E0711`)"
    return CompileError(Diagnostic("E0711", message, hint=more))
