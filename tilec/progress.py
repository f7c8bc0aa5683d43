"""Reports a worker's current activity so that its parent can read it even after the worker was killed.

In: `note(what)` from any layer, per obligation or operation, about a microsecond each; `stage(what, limits)` around work with a
budget; `scratch(path)` while a temporary file exists. Out: a `Slot` of memory shared with the process that supervises the
worker (`tilec.workers.server`), which enforces the budget, reports the activity, and removes the file. Without a supervisor
these functions do nothing.
"""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from typing import Final

SIZE: Final = 8192
_NUMBERS: Final = struct.Struct("<QdQdQ")
"""Number of the stage (0: none is running), then CPU seconds and bytes of memory at its start, and the limits on top of
these."""
_STAGE, _NOTE, _SCRATCH = (64, 512), (512, 2048), (2048, SIZE)
"""Start and end of each text: two bytes of length, then UTF-8."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one stage of one kernel: `seconds` of CPU time (`STILL` times as many of idle time), `memory_mb` in MiB."""

    seconds: float = 120.0
    memory_mb: int = 8192


DEFAULT_LIMITS: Final = Limits()
STILL: Final = 5
"""Seconds of idle time allowed per second of CPU time."""


@dataclass(frozen=True, slots=True)
class Running:
    """The running stage, as recorded in its slot: `number` is different for each stage; limits of 0 mean none."""

    number: int
    seconds_before: float
    bytes_before: int
    seconds: float
    bytes: int
    what: str


def private_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process that is not file-backed; OSError if it has ended."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        words = file.read().split()
    return (int(words[1]) - int(words[2])) * _PAGE


class Slot:
    """Shared memory with one writer. Reads during writes may be inconsistent; after the writer has died, all data is
    consistent."""

    def __init__(self, memory: mmap) -> None:
        self._memory = memory
        self._number = 0

    def begin(self, what: str, limits: Limits) -> None:
        """Records the start of a stage."""
        self._number += 1
        self._put(_STAGE, what.encode(errors="replace"))
        self._put(_NOTE, b"")
        self._memory[:8] = bytes(8)  # a reader sees either no stage or all of this one
        before = (time.process_time(), private_bytes())
        data = _NUMBERS.pack(self._number, *before, limits.seconds, limits.memory_mb << 20)
        self._memory[8 : len(data)] = data[8:]
        self._memory[:8] = data[:8]

    def end(self) -> None:
        """Records that no stage is running."""
        self._memory[:8] = bytes(8)

    def note(self, what: str) -> None:
        """Records the current step of the stage."""
        self._put(_NOTE, what.encode(errors="replace"))

    def scratch(self, path: str) -> None:
        """Records a file to delete if the writer dies now; an empty text for none."""
        data = os.fsencode(path)
        self._put(_SCRATCH, data if len(data) <= SIZE - 2050 else b"")

    def running(self) -> Running | None:
        """The running stage, or what was running when the writer died."""
        number, cpu, memory, seconds, more = _NUMBERS.unpack_from(self._memory)
        what = self._get(_STAGE).decode(errors="replace")
        return Running(number, cpu, memory, seconds, more, what) if number else None

    def noted(self) -> str:
        """The last note of the stage."""
        return self._get(_NOTE).decode(errors="replace")

    def scratched(self) -> str:
        """The file to delete."""
        return os.fsdecode(self._get(_SCRATCH))

    def _put(self, extent: tuple[int, int], data: bytes) -> None:
        data = data[: extent[1] - extent[0] - 2]
        self._memory[extent[0] : extent[0] + 2 + len(data)] = len(data).to_bytes(2, "little") + data

    def _get(self, extent: tuple[int, int]) -> bytes:
        length = int.from_bytes(self._memory[extent[0] : extent[0] + 2], "little")
        return self._memory[extent[0] + 2 : min(extent[0] + 2 + length, extent[1])]


_slot: Slot | None = None
_tell: Callable[[str], None] | None = None
_command = 0


def attach(slot: Slot | None, tell: Callable[[str], None] | None = None, command: int = 0) -> None:
    """From now on this process writes to `slot` and passes its messages to `tell`; it works on behalf of the process
    `command`."""
    global _slot, _tell, _command
    _slot, _tell, _command = slot, tell, command


def command() -> int:
    """The process on whose behalf this one works: in a worker the command that started it, else this process."""
    return _command or os.getpid()


def note(what: str) -> None:
    """Records the current activity: the obligation and the operation that a budget error should name. Cheap."""
    if _slot is not None:
        _slot.note(what)


def notify(text: str) -> None:
    """Passes one line to the user of the command immediately."""
    if _tell is not None:
        _tell(text)


@contextmanager
def stage(what: str, limits: Limits) -> Generator[None]:
    """Runs the body under a budget; `what` is for the error, such as "stage `proofs` of kernel `k`"."""
    if _slot is None:
        yield
        return
    _slot.begin(what, limits)
    known = _bound_address_space(limits)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, known)
        _slot.end()


def _bound_address_space(limits: Limits) -> tuple[int, int]:
    """Limits the address space, so that one allocation far above the budget fails between two checks of the supervisor; returns
    the previous limits."""
    known = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as file:
        mapped = int(file.read().split()[0]) * _PAGE
    most = mapped + (limits.memory_mb << 20) * 5 // 4 + (1 << 30)
    if known[0] == resource.RLIM_INFINITY or most < known[0]:
        resource.setrlimit(resource.RLIMIT_AS, (most, known[1]))
    return known


@contextmanager
def scratch(path: str) -> Generator[None]:
    """While the body runs, `path` is deleted if this process is killed."""
    if _slot is None:
        yield
        return
    _slot.scratch(path)
    try:
        yield
    finally:
        _slot.scratch("")
