"""One builder makes a key: the others wait for it, as long as it lives.

A loan lasts `LEASE` seconds and is renewed while its holder lives, so a builder that is killed is waited for no longer than
that. A layer that cannot lend, or does not answer, lends everything to everybody: work may then be done twice, and nothing
stops.
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
    """The loans of one builder, at the first layer that can lend."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = [guard for guard in guards if not guard.address.read_only]
        self._holder = secrets.token_hex(16)
        self._held: dict[str, Guard] = {}
        self._unable: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, key: str) -> bool:
        """Whether this builder is to make `key` now."""
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
                    self._held[key] = guard
                self._start()
            return lent
        return True

    def release(self, key: str) -> None:
        """Give a key back: it is made and written back, or will not be."""
        with self._lock:
            guard = self._held.pop(key, None)
        if guard is not None:
            try:
                guard.call(lambda layer: layer.release(key, self._holder))
            except Unavailable:
                return  # it expires

    def close(self, deadline: float) -> None:
        """Give back what is held, until `deadline` (of `time.monotonic`)."""
        self._closed.set()
        for key in list(self._held):
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
                held = list(self._held.items())
            for key, guard in held:
                try:
                    guard.call(lambda layer, key=key: layer.claim(key, self._holder, LEASE))
                except Unavailable:
                    continue
