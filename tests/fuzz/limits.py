"""Limits that an operating system may set for a process: memory, files, their size, processes, disk. For children, before they
start.

Every function returns a `preexec` for `subprocess`, or changes the calling process, which is about to become the victim.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

KINDS: Final = {
    "address space": resource.RLIMIT_AS,
    "open files": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
STRANGER: Final = 64321
"""A user without processes, so that a process limit counts only ours; root has no such limit."""
_KEPT: Final = (1 << 1) | (1 << 2) | (1 << 3)
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER (capabilities(7)): the other user can still use root's files."""
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2


def limited(kind: str, most: int) -> Callable[[], None]:
    """A limit of `most` bytes, files or processes."""

    def apply() -> None:
        if kind == "file size":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if kind == "processes" and os.geteuid() == 0:
            become_a_stranger()
        resource.setrlimit(KINDS[kind], (most, most))

    return apply


def become_a_stranger() -> None:
    """Changes to a user other than root that can still read and write root's files, but cannot exceed limits. Only as root."""
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresgid(STRANGER, STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if system.capset(header, struct.pack("=6I", _KEPT, _KEPT, _KEPT, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    for number in (1, 2, 3):
        system.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Generator[bool]:
    """Mounts a file system of `size` bytes at `folder`; False if that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)
