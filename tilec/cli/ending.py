"""Signal handling: SIGTERM and SIGHUP unwind the command like Ctrl-C, so that it stops its workers.

In: signals, and the standard streams of the command. Out: `Terminated`, raised in the main thread; `main` turns it into one
line and exit status 128 + signal (129 SIGHUP, 130 Ctrl-C, 143 SIGTERM). Under `nohup` SIGHUP stays ignored. After SIGKILL no
handler runs; the workers end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

SOON: Final = 0.01
"""Seconds after which a signal is raised again if it arrived while exceptions are swallowed."""


_received: list[int] = []
"""Received signals, in order."""


class Terminated(BaseException):
    """The process received the terminating signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def open_standard_streams() -> bool:
    """Open the null device for each closed standard stream, so that no file or socket gets its descriptor, here or in a child.
    Returns whether there was a stdout."""
    has_stdout = sys.stdout is not None  # pyright: ignore[reportUnnecessaryComparison]
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
            os.set_inheritable(number, True)
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(2, "w", closefd=False)  # with None, `print` would use stdout
    return has_stdout


def unwind_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise `Terminated` in the main thread, and SIGINT KeyboardInterrupt, unless they are ignored."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signal_number, _raise)


def leave_signals() -> None:
    """Restore the default handlers: after the work is done, a signal ends the process without an exception during shutdown."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) is _raise:
            signal.signal(signal_number, signal.SIG_DFL)


def raised() -> BaseException:
    """The exception of the last signal, for callers of a library that swallowed it."""
    others = [number for number in _received if number != signal.SIGINT]
    return Terminated(others[-1]) if others else KeyboardInterrupt()


def _raise(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if _finalizes(frame):
        signal.signal(signal.SIGALRM, lambda _, now: _raise(number, now))
        signal.setitimer(signal.ITIMER_REAL, SOON)
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    for signal_number in (signal.SIGTERM, signal.SIGHUP):  # a second exception would interrupt the cleanup of workers
        signal.signal(signal_number, signal.SIG_IGN)
    raise Terminated(number)


def _finalizes(frame: FrameType | None) -> bool:
    """Whether a finalizer or the callback that removes a module's import lock is running. Python prints an exception raised
    there and continues."""
    while frame is not None and frame.f_code.co_name != "__del__" and not _forgets_lock(frame):
        frame = frame.f_back
    return frame is not None


def _forgets_lock(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "cb" and code.co_filename == "<frozen importlib._bootstrap>"


def status_of_end(error: KeyboardInterrupt | Terminated) -> int:
    """Print why the command ends. Returns its exit status."""
    if isinstance(error, Terminated):
        print(f"ended by {signal.Signals(error.number).name}", file=sys.stderr)
        return 128 + error.number
    print("interrupted", file=sys.stderr)
    return 130
