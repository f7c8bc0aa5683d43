"""The server: forks workers on request, enforces their budgets, reports how each ended, and kills all of them when it ends.

In, on a message socket: `{"start": ID}` with the worker's pipe, and `{"kill": ID}`. Out: `{"ready"}` when everything is
loaded, `{"started": ID, "pid"}` or `{"refused": ID, "why"}`, and for each worker that ended `{"ended": ID, "status", "what",
"note", "over", "used", "limit"}`. At the end of the socket the server kills its workers, removes their partial files and exits.
If the server itself is killed, the operating system kills its workers (`death`).
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
"""Seconds between checks of what workers use."""
GAP: Final = 1.0
"""Most seconds that one check adds: the machine may have slept in between, or the command may have been stopped."""
WAITING: Final = ("S", "D")
"""Process states (proc(5)) that count as idle: sleeping and disk sleep. A runnable process on a busy machine is not idle."""
COLLECTED: Final = 20_000
"""Threshold of the youngest garbage collection in a worker: a stage makes graphs of about so many objects and drops them
together."""
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
    death.die_with(parent, PARENT_DIED)  # the default action ends the process until `_Server` installs a handler
    for name in preload:
        with contextlib.suppress(Exception):  # the stage that needs the module fails again and has a diagnostic for it
            importlib.import_module(name)
    gc.freeze()  # no worker's collector visits the loaded modules, so their copy-on-write pages stay shared
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
                if self.control.fileno() in ready and not self.handle_message():
                    return
                now = time.monotonic()
                self.check_budgets(min(now - before, GAP))
                before = now
        except OSError:  # the parent has exited
            return
        finally:
            self.stop()

    def send(self, message: dict[str, Any]) -> None:
        self.control.send(json.dumps(message).encode())

    def handle_message(self) -> bool:
        """Handle one message; False at the end of the socket."""
        data, handles, _, _ = socket.recv_fds(self.control, 4096, 1)
        if not data:
            return False
        request = json.loads(data)
        if "kill" in request:
            self.kill(request["kill"])
            return True
        number = request["start"]
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
            warnings.simplefilter("ignore")  # fork warns about threads of libraries, which the child does not need
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
        """Kill a worker if it is still running; `reap` reports its end."""
        for pid, child in self.children.items():
            if child.number == number:
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Report every worker that has ended."""
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

    def check_budgets(self, elapsed: float) -> None:
        """Kill every worker whose stage exceeds its budget; `elapsed` are the seconds since the last check."""
        for pid, child in self.children.items():
            running = child.slot.running()
            if running is None or child.over is not None:
                continue
            if running.number != child.stage:
                child.stage, child.still = running.number, 0.0
            with contextlib.suppress(OSError, IndexError):  # the worker has just ended
                state, spent = usage(pid)
                child.still += elapsed if state in WAITING else 0.0
                child.over = over_budget(pid, running, spent, child.still)
            now = child.slot.running()
            if child.over is not None and now is not None and now.number == child.stage:
                os.kill(pid, signal.SIGKILL)
            else:
                child.over = None

    def stop(self) -> None:
        """Kill and reap all workers and remove their partial files."""
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for pid, child in self.children.items():
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
            _remove_scratch(child.slot)


def _woken(*_: object) -> None:
    """Do nothing: the wakeup descriptor receives the signal number."""


def _remove_scratch(slot: Slot) -> None:
    path = slot.scratched()
    if os.path.basename(path).startswith(".tmp-"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def usage(pid: int) -> tuple[str, float]:
    """State of a process and the CPU seconds of all its threads (proc(5)); OSError if it has exited."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), (int(fields[11]) + int(fields[12])) / _TICKS


def over_budget(pid: int, running: Running, spent: float, still: float) -> tuple[str, float, float] | None:
    """The budget that the stage exceeds, what it used and the limit; None if it is within all budgets. `spent` are CPU seconds,
    `still` idle seconds."""
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
