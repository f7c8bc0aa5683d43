"""An audit hook (PEP 578) that records forbidden actions of a process: running foreign code, touching files outside, following
links.

An audit hook cannot be removed, so it belongs into a process of its own.
"""

from __future__ import annotations

import os
import site
import sys
import types
from pathlib import Path
from typing import Any, Final

RUNS: Final = (
    "pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.startfile",
    "socket.connect", "socket.bind", "sqlite3.connect", "sqlite3.connect/handle", "ctypes.dlopen",
)  # fmt: skip
CHANGES: Final = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
)  # fmt: skip
_CODE = tuple(os.path.realpath(path) for path in {sys.prefix, sys.base_prefix, *site.getsitepackages()})
_OWN = str(Path(__file__).resolve().parents[2])


class Watch:
    """Records violations into `seen` between `start` and `stop`: paths in `inside` may be used freely, those in `outside` not
    at all."""

    def __init__(self, inside: tuple[Path, ...], outside: Path) -> None:
        self.seen: list[str] = []
        self._inside = tuple(str(path) for path in inside)
        self._outside = str(outside)
        self._on = False
        sys.addaudithook(self._hook)

    def start(self) -> None:
        """Starts to record."""
        self._on = True

    def stop(self) -> None:
        """Stops recording."""
        self._on = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        self._on = False
        try:
            what = self._refused(event, arguments)
            if what and len(self.seen) < 20:
                self.seen.append(f"{event}: {what}")
        finally:
            self._on = True

    def _refused(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            path, _, flags = arguments
            return self._open(path, flags) if isinstance(path, str | bytes) else ""
        if event == "exec":
            code = arguments[0]
            ours = not isinstance(code, types.CodeType) or self._code(code.co_filename)
            return "" if ours else f"code of {code.co_filename}"
        if event == "import":
            return "" if not arguments[1] or self._code(os.path.realpath(arguments[1])) else f"module {arguments[:2]}"
        if event in RUNS:
            return ascii(arguments)[:200]
        if event in CHANGES:
            return self._change(arguments)
        return ""

    def _code(self, path: str) -> bool:
        # Generated code (dataclasses, named tuples, enums) has a name in angle brackets.
        return path.startswith((*_CODE, _OWN, "<frozen", "<string>", "<attrs", "<__")) or path in ("<string>", "<unknown>")

    def _open(self, path: str | bytes, flags: int) -> str:
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            # Relative to an open directory: a single name, never followed.
            plain = "/" not in name and bool(flags & (os.O_NOFOLLOW | os.O_DIRECTORY))
            return "" if plain else f"relative and followed: {name!a}"
        if name.startswith(self._outside):
            return f"outside: {name!a}"
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if self._is_inside(name) or (
            not writes and (self._code(os.path.realpath(name)) or name == os.path.realpath(name) == "/")
        ):
            return ""
        return f"{'writes' if writes else 'reads'} {name!a}" if writes or not self._above(name) else ""

    def _above(self, name: str) -> bool:
        return any(item.startswith(name.rstrip("/") + "/") for item in self._inside)

    def _is_inside(self, name: str) -> bool:
        return name.startswith(self._inside)

    def _change(self, arguments: tuple[Any, ...]) -> str:
        for item in arguments:
            if isinstance(item, str | bytes):
                name = os.fsdecode(item)
                if os.path.isabs(name) and not self._is_inside(name):
                    return f"{name!a}"
                if not os.path.isabs(name) and "/" in name:
                    return f"by a relative path: {name!a}"
        return ""
