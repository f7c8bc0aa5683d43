"""Leases: one builder makes a key, and the others wait for it while it is alive.

A lease lasts `LEASE` seconds and is renewed while its holder is alive, so others wait at most that long for a killed builder.
If no layer supports leases or answers, every claim is granted: work can then be done twice, but no build stops.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Final

from tilec.cache.remote.guard import Guard, Unavailable

LEASE: Final = 30.0


class Leases:
    """The leases of one builder, at the first layer that supports them."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = [guard for guard in guards if not guard.address.read_only]
        self._holder = secrets.token_hex(16)
        self._acquired: dict[str, Guard] = {}
        self._unable: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, key: str) -> bool:
        """Acquire the lease of `key`. True if this builder is to make it now."""
        for guard in self._guards:
            if guard.name in self._unable or guard.resting:
                continue
            try:
                lent = guard.call(lambda layer: layer.claim(key, self._holder, LEASE))
            except Unavailable:
                continue
            if lent is None:
                self._unable.add(guard.name)
                continue
            if lent:
                with self._lock:
                    self._acquired[key] = guard
                self._start()
            return lent
        return True

    def release(self, key: str) -> None:
        """Release the lease of a key: its entry is written back, or will not be made."""
        with self._lock:
            guard = self._acquired.pop(key, None)
        if guard is not None:
            try:
                guard.call(lambda layer: layer.release(key, self._holder))
            except Unavailable:
                return  # the lease expires by itself

    def close(self, deadline: float) -> None:
        """Release all leases, until `deadline` (of `time.monotonic`)."""
        self._closed.set()
        for key in list(self._acquired):
            if time.monotonic() >= deadline:
                return
            self.release(key)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        while not self._closed.wait(LEASE / 3):
            with self._lock:
                acquired = list(self._acquired.items())
            for key, guard in acquired:
                try:
                    guard.call(lambda layer, key=key: layer.claim(key, self._holder, LEASE))
                except Unavailable:
                    continue
