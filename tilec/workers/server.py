"""The server: forks workers on request, keeps their budgets, tells how each ended, and takes all of them along when it goes.

In, on a socket of messages: `{"start": ID}` with the worker's pipe, and `{"kill": ID}`. Out: `{"ready"}` when everything is
loaded, `{"started": ID, "pid"}` or `{"refused": ID, "why"}`, and for each worker that ended `{"ended": ID, "status", "what",
"note", "over", "used", "limit"}`. The end of the socket ends the server: workers are killed, and the files that they had half
written are removed. Should the server itself be killed, the kernel kills its workers (`death`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from tilec import progress
from tilec.progress import STILL, Running, Slot
from tilec.workers import death, worker
from tilec.workers.death import PARENT_DIED

LOOK: Final = 0.1
"""Seconds between looks at what workers use."""
GAP: Final = 1.0
"""Seconds of the clock that one look counts at most: a machine may have slept in between, or the command been stopped."""
WAITING: Final = ("S", "D")
"""States in which a process stands still; one that could run and is not let, on a busy machine, does not."""
COLLECTED: Final = 20_000
"""Objects that a worker makes between collections of its youngest: a stage makes graphs of as many, and drops them whole."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Child:
    number: int
    slot: Slot
    stage: int = 0
    still: float = 0.0
    over: tuple[str, float, float] | None = None


def serve(control: socket.socket, parent: int, preload: Sequence[str]) -> NoReturn:
    """Main of the server process."""
    death.die_with(parent, PARENT_DIED)  # which ends us, until there is something to do before
    for name in preload:
        with contextlib.suppress(Exception):  # the stage that needs it meets it again, and has a diagnostic for it
            importlib.import_module(name)
    gc.freeze()  # what was loaded stays: no worker's collector looks at it, or writes to pages that all share
    gc.set_threshold(COLLECTED)
    _Server(control, parent).run()
    os._exit(0)


class _Server:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.command = parent
        self.children: dict[int, _Child] = {}
        self.ended, wake = os.pipe()
        for end in (self.ended, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for known in (signal.SIGCHLD, PARENT_DIED):
            signal.signal(known, _woken)

    def run(self) -> None:
        """Serve until the parent closes its end or dies."""
        before = time.monotonic()
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.ended, select.POLLIN)
        try:
            self.send({"ready": True})
            while True:
                ready = {handle for handle, _ in poll.poll(LOOK * 1000 if self.children else None)}
                if self.ended in ready and PARENT_DIED in os.read(self.ended, 4096):
                    return
                self.reap()
                if self.control.fileno() in ready and not self.ask():
                    return
                now = time.monotonic()
                self.look(min(now - before, GAP))
                before = now
        except OSError:  # the parent has gone
            return
        finally:
            self.stop()

    def send(self, message: dict[str, Any]) -> None:
        self.control.send(json.dumps(message).encode())

    def ask(self) -> bool:
        """Take one message; False at the end."""
        data, handles, _, _ = socket.recv_fds(self.control, 4096, 1)
        if not data:
            return False
        asked = json.loads(data)
        if "kill" in asked:
            self.kill(asked["kill"])
            return True
        number = asked["start"]
        try:
            self.fork(number, handles[0])
        except (OSError, IndexError) as error:
            self.send({"refused": number, "why": getattr(error, "strerror", None) or "too many open files"})
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def fork(self, number: int, handle: int) -> None:
        slot = Slot(mmap.mmap(-1, progress.SIZE))
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries have threads, which the child does not need
            pid = os.fork()
        if pid == 0:
            self.become_worker(slot, handle, server)
        self.children[pid] = _Child(number, slot)
        self.send({"started": number, "pid": pid})

    def become_worker(self, slot: Slot, handle: int, server: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for known in (signal.SIGCHLD, PARENT_DIED, signal.SIGTERM):
                signal.signal(known, signal.SIG_DFL)
            death.die_with(server, signal.SIGKILL)
            os.close(self.control.detach())
            status = worker.serve(Connection(os.dup(handle)), slot, self.command)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def kill(self, number: int) -> None:
        """End a worker; nothing where it has ended by itself. That it has is told like any other end."""
        for pid, child in self.children.items():
            if child.number == number:
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Tell of every worker that has ended."""
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid)
            _remove_scratch(child.slot)
            running = child.slot.running()
            over, used, limit = child.over or ("", 0.0, 0.0)
            self.send(
                {
                    "ended": child.number, "status": os.waitstatus_to_exitcode(status),
                    "what": running.what if running else "", "note": child.slot.noted() if running else "",
                    "over": over, "used": used, "limit": limit,
                }
            )  # fmt: skip

    def look(self, passed: float) -> None:
        """Kill every worker whose stage is over its budget."""
        for pid, child in self.children.items():
            running = child.slot.running()
            if running is None or child.over is not None:
                continue
            if running.number != child.stage:
                child.stage, child.still = running.number, 0.0
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                state, spent = usage(pid)
                child.still += passed if state in WAITING else 0.0
                child.over = over_budget(pid, running, spent, child.still)
            now = child.slot.running()
            if child.over is not None and now is not None and now.number == child.stage:
                os.kill(pid, signal.SIGKILL)
            else:
                child.over = None

    def stop(self) -> None:
        """Kill and reap all, remove what they had half written."""
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for pid, child in self.children.items():
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
            _remove_scratch(child.slot)


def _woken(*_: object) -> None:
    """The number of the signal is in the pipe."""


def _remove_scratch(slot: Slot) -> None:
    path = slot.scratched()
    if os.path.basename(path).startswith(".tmp-"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def usage(pid: int) -> tuple[str, float]:
    """State of a process and its CPU time, all threads (proc(5)); OSError where it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return words[0].decode(), (int(words[11]) + int(words[12])) / _TICKS


def over_budget(pid: int, running: Running, spent: float, still: float) -> tuple[str, float, float] | None:
    """Which budget the stage is over, what it used and what it may use; None while it is within all."""
    if running.bytes:
        used = progress.private_bytes(pid) - running.bytes_before
        if used > running.bytes:
            return "memory", float(used), float(running.bytes)
    if running.seconds:
        if spent - running.seconds_before > running.seconds:
            return "cpu", spent - running.seconds_before, running.seconds
        if still > STILL * running.seconds:
            return "still", still, STILL * running.seconds
    return None
