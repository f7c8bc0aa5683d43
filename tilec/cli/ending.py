"""How the command ends when it is told to: SIGTERM and SIGHUP unwind it as Ctrl-C does, so that it takes its workers along.

In: signals, and the streams that a command was given. Out: `Terminated` where the program is; `main` turns it into one line and
exit status 128 + signal (129 SIGHUP, 130 Ctrl-C, 143 SIGTERM). Under `nohup` SIGHUP stays ignored. After SIGKILL nothing
runs here; the workers end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

SOON: Final = 0.01
"""Seconds after which a signal that came at a bad moment is raised."""


_told: list[int] = []
"""Signals that came."""


class Terminated(BaseException):
    """The process was told to end by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def hold_standard_streams() -> bool:
    """Whether there is a stdout. Of stdin, stdout and stderr, what is closed becomes the null device, so that no socket or file
    that is opened later is taken for it, by us or by a child."""
    has_stdout = sys.stdout is not None  # pyright: ignore[reportUnnecessaryComparison]
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            os.set_inheritable(number, True)
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(2, "w", closefd=False)  # `print` would take stdout
    return has_stdout


def unwind_on_signals() -> None:
    """From now on SIGTERM and SIGHUP raise `Terminated` in the main thread, and SIGINT KeyboardInterrupt, unless ignored."""
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(known) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(known, _raise)


def leave_signals() -> None:
    """All is done: a signal that comes now ends the process at once, not with an exception among what Python tidies up."""
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(known) is _raise:
            signal.signal(known, signal.SIG_DFL)


def raised() -> BaseException:
    """What the last signal raised, for code whose library lost it."""
    others = [number for number in _told if number != signal.SIGINT]
    return Terminated(others[-1]) if others else KeyboardInterrupt()


def _raise(number: int, frame: FrameType | None) -> None:
    _told.append(number)
    if _finalizes(frame):
        signal.signal(signal.SIGALRM, lambda _, now: _raise(number, now))
        signal.setitimer(signal.ITIMER_REAL, SOON)
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    for known in (signal.SIGTERM, signal.SIGHUP):  # once is enough: what follows takes the workers along
        signal.signal(known, signal.SIG_IGN)
    raise Terminated(number)


def _finalizes(frame: FrameType | None) -> bool:
    """Whether an object is being finalized, or the lock of a module that was imported: Python prints what is raised there, and
    goes on as if nothing had come."""
    while frame is not None and frame.f_code.co_name != "__del__" and not _forgets_lock(frame):
        frame = frame.f_back
    return frame is not None


def _forgets_lock(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "cb" and code.co_filename == "<frozen importlib._bootstrap>"


def status_of_end(error: KeyboardInterrupt | Terminated) -> int:
    """Say why the command ends; its exit status."""
    if isinstance(error, Terminated):
        print(f"ended by {signal.Signals(error.number).name}", file=sys.stderr)
        return 128 + error.number
    print("interrupted", file=sys.stderr)
    return 130
