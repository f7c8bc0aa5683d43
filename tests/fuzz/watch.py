"""Watches the side effects of a reader of hostile input. In: a folder. Out: what the reader touched or ran outside of it.

Python reports imports, compiled and executed code, processes, sockets, libraries, pickles and files to audit hooks
(sys.addaudithook, PEP 578), and no code in the process can remove a hook. Between `begin` and `end`, every event on the list is
a violation, and so is every file that is opened, created or removed outside the folder. Run the reader once on a plain input
first, so that its own imports and compilations are done.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORBIDDEN = (
    "exec", "compile", "import", "code.__new__", "function.__new__", "marshal.", "pickle.", "subprocess.", "socket.",
    "ctypes.dlopen", "ctypes.dlsym", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile",
    "os.putenv", "os.kill",
    "webbrowser.", "shelve.", "sqlite3.", "urllib.", "http.", "ftplib.", "mmap.", "signal.", "sys.addaudithook",
)  # fmt: skip
FILES = (
    "open", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.listdir", "os.scandir", "os.chdir", "os.setxattr", "shutil.", "tempfile.", "glob.",
)  # fmt: skip


@dataclass
class Watch:
    """`violations` since the last `begin`; `inside` is the folder that may be touched, None while not watching."""

    inside: str | None = None
    violations: list[str] = field(default_factory=list[str])
    known: dict[str, bool | None] = field(default_factory=dict[str, "bool | None"])

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by Python for every event of the process, watched or not."""
        if self.inside is None:
            return
        kind = self.known.get(event, False) if event in self.known else self._kind(event)
        if kind is None:
            return
        if kind:
            self.violations.append(f"{event} {arguments!r:.200}")
            return
        for location in arguments[:2]:
            if isinstance(location, (str, bytes, os.PathLike)) and not self._is_inside(os.fsdecode(location)):
                self.violations.append(f"{event} {location!r:.200}")
            if event == "open":
                break

    def _kind(self, event: str) -> bool | None:
        """True if the event is forbidden, False if it touches a file, None if it is irrelevant."""
        kind = True if event.startswith(FORBIDDEN) else False if event.startswith(FILES) else None
        self.known[event] = kind
        return kind

    def _is_inside(self, path: str) -> bool:
        assert self.inside is not None
        location = os.path.abspath(path)
        return location == self.inside or location.startswith(f"{self.inside}/")


_WATCH = Watch()
_HOOKED: list[bool] = []


@contextmanager
def watched(folder: Path) -> Generator[list[str]]:
    """A list that fills with violations while the block runs; `folder` is an absolute path without links."""
    if not _HOOKED:
        sys.addaudithook(_WATCH.hook)
        _HOOKED.append(True)
    _WATCH.violations = []
    _WATCH.inside = str(folder)
    try:
        yield _WATCH.violations
    finally:
        _WATCH.inside = None


@dataclass
class Tally:
    """The outcome of a campaign: number of attempts, number refused by code or kind, and every violation."""

    tried: int = 0
    accepted: int = 0
    launched: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    violations: list[str] = field(default_factory=list[str])
    tracebacks: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    worst_seconds: float = 0.0
    worst: str = ""
    seconds: float = 0.0
    memory_growth_mib: float = 0.0
    """Growth of the process' peak memory during attempts; making mutants is not included."""

    def attempt(self, kind: str, number: int, folder: Path, use: Callable[[], str]) -> bool:
        """Whether one input was accepted: `use` returns the code of its refusal, or None, and asserts what must be true.
        Watched in `folder`, and timed in seconds of this process."""
        name, refusal = f"{kind} {number}", ""
        memory, began = peak_mib(), time.process_time()
        try:
            with watched(folder) as violations:
                refusal = use()
        except AssertionError as error:
            self.wrong.append(f"{name}: {error}")
            refusal = "wrong"
        except Exception:
            self.tracebacks.append(f"{name}: {traceback.format_exc()[-900:]}")
            refusal = "traceback"
        took = time.process_time() - began
        if took > self.worst_seconds:
            self.worst_seconds, self.worst = took, name
        self.memory_growth_mib += peak_mib() - memory
        self.violations += [f"{name}: {line}" for line in violations]
        self.tried += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if refusal:
            self.refused[refusal] = self.refused.get(refusal, 0) + 1
        else:
            self.accepted += 1
        return not refusal

    def end(self, folder: Path, names: set[str], began: float) -> None:
        """Only files of these names may be left in `folder`; `began` is on the monotonic clock."""
        if {one.name for one in folder.iterdir()} != names:
            self.violations.append(f"files left in {folder}")
        self.seconds = time.monotonic() - began

    def sound(self) -> bool:
        """Whether there was no violation."""
        return not (self.violations or self.tracebacks or self.wrong)

    def text(self) -> str:
        """A summary in a few lines."""
        lines = [f"{self.tried} tried, {self.accepted} accepted, {self.launched} launched in {self.seconds:.1f} s"]
        lines.append(
            f"worst {self.worst_seconds * 1000:.1f} ms ({self.worst}), memory grew by {self.memory_growth_mib:.0f} MiB"
        )
        lines.append("refused: " + ", ".join(f"{name} {count}" for name, count in sorted(self.refused.items())))
        for name in ("violations", "tracebacks", "wrong"):
            found: list[str] = getattr(self, name)
            lines.append(f"{name}: {len(found)}")
            lines += [f"  {line}" for line in found[:10]]
        return "\n".join(lines)


def command(
    campaign: Callable[[int, int, Path], Tally], limit: float, about: str | None, arguments: list[str] | None = None
) -> int:  # fmt: skip
    """Runs a campaign by hand; returns 1 if there was a violation, or an input took more than `limit` seconds."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the counts there too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=quick()) as name:
        tally = campaign(options.count, options.seed, Path(name))
    print(tally.text())
    if options.json is not None:
        options.json.write_text(json.dumps(dataclasses.asdict(tally), indent=1) + "\n")
    return int(not tally.sound() or tally.worst_seconds > limit)


def quick() -> str | None:
    """A folder in memory, if there is one, for files that are written by the thousand."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def peak_mib() -> float:
    """The peak memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
