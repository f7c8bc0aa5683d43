"""`Remote`: all remote layers of a build. It fetches entries, writes them back, and holds leases.

Layers are tried in order. An entry found in a later layer is written to the earlier ones; an entry made here is written to all
writable ones. Background threads write them, from the received bytes or from the local store. `close` waits for these at most
`FLUSH` seconds and counts the rest as late. A worker process only reads and starts no writer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tilec.cache.remote.address import Address
from tilec.cache.remote.envelope import LARGEST, Received, pack, unpack
from tilec.cache.remote.guard import Guard, Unavailable
from tilec.cache.remote.layer import Unusable
from tilec.cache.remote.lease import Leases
from tilec.cache.remote.signer import signer_of
from tilec.cache.statistics import Statistics

FLUSH: Final = 10.0
"""Seconds for which the end of a build waits for pending writes."""
LONGEST_REASON: Final = 300
WRITERS: Final = 4
READERS: Final = 8
"""Threads that fetch several entries at once."""

Check = Callable[[Received], None]
"""Raises ValueError if the products do not belong to their key; the text ends a sentence."""
Load = Callable[[str], tuple[dict[str, bytes], int] | None]
"""Outputs of a key in the local store, and the CPU milliseconds to make them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The picklable arguments of a `Remote`, for this process or a worker."""

    addresses: tuple[Address, ...]
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class _Write:
    key: str
    layers: tuple[Guard, ...]
    data: bytes | None = field(repr=False)
    """The bytes to write; None: load them from the local store."""
    done: Callable[[], None] | None = None


class Remote:
    """The remotes of a build. `problems` collects one line per entry that was not used, `statistics` counts."""

    def __init__(self, settings: Settings, load: Load | None = None) -> None:
        self.settings = settings
        self.guards = [Guard(address) for address in settings.addresses]
        self.signer = signer_of(settings.key)
        self.leases = Leases(self.guards if self.signer.writes else ())
        self.statistics = Statistics()
        self.problems: list[str] = []
        self._load = load
        self._lock = threading.Lock()
        self.spoiled: set[tuple[str, str]] = set()
        """Layer and key of entries that were refused, here or in a worker; good ones overwrite them."""
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._writers: list[threading.Thread] = []
        self._closing = False

    def working(self) -> tuple[Address, ...]:
        """The layers whose circuit is not open."""
        return tuple(guard.address for guard in self.guards if not guard.resting)

    def fetch(self, key: str, label: str, check: Check, *, again: bool = False) -> Received | None:
        """The verified entry of `key`; None if no layer has a usable one. With `again` a miss is not counted."""
        missed: list[Guard] = []
        for guard in self.guards:
            if guard.resting:
                continue
            data = self._get(guard, key, label, again=again)
            found = None if data is None else self._opened(guard, key, label, data, check)
            if found is None or data is None:
                missed.append(guard)
                continue
            self._count(guard, "hits")
            self._count(guard, "bytes_in", len(data))
            self._count(guard, "saved_ms", found.cost)
            self._write(_Write(key, tuple(missed), data))
            return found
        return None

    def _get(self, guard: Guard, key: str, label: str, *, again: bool) -> bytes | None:
        try:
            data = guard.call(lambda layer: layer.get(key, LARGEST))
        except Unavailable:
            self._count(guard, "failures")
            return None
        except Unusable as error:
            self._refuse(guard, key, label, str(error))
            return None
        if data is None and not again:
            self._count(guard, "misses")
        return data

    def _opened(self, guard: Guard, key: str, label: str, data: bytes, check: Check) -> Received | None:
        try:
            found = unpack(key, data, self.signer)
            check(found)
        except ValueError as error:
            self._refuse(guard, key, label, str(error))
            return None
        except Exception as error:  # unforeseen errors of a reader: an entry of a remote must not end a build
            self._refuse(guard, key, label, f"it cannot be read ({type(error).__name__})")
            return None
        return found

    def _refuse(self, guard: Guard, key: str, label: str, reason: str) -> None:
        clean = "".join(letter if letter.isprintable() else " " for letter in reason)[:LONGEST_REASON]  # can quote the entry
        self._count(guard, "refused")
        with self._lock:
            self.spoiled.add((guard.name, key))
            self.problems.append(f"entry {label or key[:12]} of the remote cache {guard.name}: {clean}; it is not used")

    def _count(self, guard: Guard, name: str, value: int = 1) -> None:
        with self._lock:
            self.statistics.add(guard.name, name, value)

    def spoil(self, entries: Iterable[tuple[str, str]]) -> None:
        """Add entries that a worker refused."""
        with self._lock:
            self.spoiled.update(entries)

    def publish(self, keys: Iterable[str], done: Callable[[], None] | None = None) -> None:
        """Write entries of the local store back in the background; `done` is called after the last one."""
        found = list(keys) if self.signer.writes else []
        for position, key in enumerate(found):
            self._write(_Write(key, tuple(self.guards), None, done if position + 1 == len(found) else None))
        if not found and done is not None:
            done()

    def _write(self, write: _Write) -> None:
        if self._load is None or not self.signer.writes:
            return
        layers = tuple(guard for guard in write.layers if not guard.address.read_only)
        if not layers and write.done is None:
            return
        with self._idle:
            self._pending += 1
        self._queue.put(_Write(write.key, layers, write.data, write.done))
        if len(self._writers) < WRITERS:
            thread = threading.Thread(target=self._work, name="write back", daemon=True)
            self._writers.append(thread)
            thread.start()

    def _work(self) -> None:
        while (write := self._queue.get()) is not None:
            try:
                self._store(write)
            finally:
                if write.done is not None:
                    write.done()
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _store(self, write: _Write) -> None:
        data = write.data
        for guard in write.layers:
            if guard.resting or self._closing:
                self._count(guard, "late")
                continue
            if data is None:
                assert self._load is not None
                found = self._load(write.key)
                data = None if found is None else pack(write.key, found[0], found[1], self.signer)
                if data is None:
                    return
            self._put(guard, write, data)

    def _put(self, guard: Guard, write: _Write, data: bytes) -> None:
        with self._lock:
            spoiled = (guard.name, write.key) in self.spoiled
        try:
            stored = guard.call(lambda layer: layer.put(write.key, data, replace=spoiled))
        except Unavailable:
            self._count(guard, "failures")
            return
        if stored:
            self._count(guard, "stored")
            self._count(guard, "bytes_out", len(data))
        elif write.data is None:
            self._count(guard, "twice")

    def close(self, seconds: float = FLUSH) -> None:
        """Wait at most `seconds` for pending writes, then send nothing more."""
        deadline = time.monotonic() + seconds
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0 or not self.working(), seconds)
        self._closing = True
        for _ in self._writers:
            self._queue.put(None)
        self.leases.close(max(deadline, time.monotonic() + 1.0))
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0, max(deadline - time.monotonic(), 0.0))
        for guard in self.guards:
            guard.hang_up()

    def troubles(self) -> list[str]:
        """One line per layer that failed."""
        return [
            f"the remote cache {guard.name} failed {guard.failures} times and is no longer used: {guard.trouble}"
            for guard in self.guards
            if guard.failures
        ]
