"""Timeouts, a retry and a circuit breaker for a layer.

An operation runs in its own thread, so a server that never answers, or answers a byte at a time, costs at most `seconds`. The
thread is a daemon and is abandoned. After `FAILURES` consecutive failures the circuit opens: for `REST` seconds every operation
fails at once; then one is tried. A late answer is used but counts as a failure, so that a layer which is always just in time
does not slow a build down for long.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tilec.cache.remote.address import Address
from tilec.cache.remote.layer import Layer, Missing, Nonsense, Unusable
from tilec.cache.remote.opening import open_layer

FAILURES: Final = 3
REST: Final = 30.0
LATE: Final = 0.5
"""Fraction of `seconds` after which an answer is late."""
ATTEMPTS: Final = 2
PAUSE: Final = 0.05
"""Seconds before the second attempt, on average."""
QUICK: Final = 0.5
"""Only a failure within so many seconds is retried: a slow one would be slow again."""
OPENING: Final = 20.0
"""Timeout for opening a layer, in seconds: it imports libraries and sends little or nothing."""
_USER: Final = re.compile(r"//[^/\s@]*@")
"""User and password of a URL, which are removed from messages."""
T = TypeVar("T")


class Unavailable(Exception):
    """The operation failed, timed out, or was not tried because the circuit is open."""


class Guard:
    """A guarded layer. `failures` counts failed and late operations, `trouble` is the reason of the first."""

    def __init__(self, address: Address, open_: Callable[[Address], Layer] = open_layer) -> None:
        self.address = address
        self.name = address.shown
        self.failures = 0
        self.trouble = ""
        self._open = open_
        self._layer: Layer | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._in_a_row = 0
        self._until = 0.0
        self._probing = False

    @property
    def resting(self) -> bool:
        """Whether the circuit is open, so that operations fail at once."""
        return self._in_a_row >= FAILURES and time.monotonic() < self._until

    def call(self, operation: Callable[[Layer], T]) -> T:
        """The result of `operation`. Unavailable if it fails or times out; Unusable passes through."""
        with self._lock:
            if self._in_a_row >= FAILURES:
                if self._probing or time.monotonic() < self._until:
                    raise Unavailable
                self._probing = True
        try:
            return self._attempts(operation)
        finally:
            with self._lock:
                self._probing = False

    def _attempts(self, operation: Callable[[Layer], T]) -> T:
        for attempt in range(ATTEMPTS):
            start = time.monotonic()
            try:
                found = self._bounded(operation)
            except Unusable:
                raise
            except TimeoutError:
                self._failed(f"no answer within {self.address.seconds:g} s")
                raise Unavailable from None
            except Exception as error:
                if isinstance(error, Nonsense):
                    self.hang_up()  # the next bytes of this connection may answer another request
                final = attempt + 1 == ATTEMPTS or isinstance(error, Missing) or time.monotonic() - start > QUICK
                if final:
                    self._failed(f"{type(error).__name__}: {error}")
                    raise Unavailable from None
                time.sleep(PAUSE * (0.5 + random.random()))
            else:
                if time.monotonic() - start > LATE * self.address.seconds:
                    self._failed(f"answers take more than {LATE * self.address.seconds:g} s")
                else:
                    self._in_a_row = 0
                return found
        raise AssertionError

    def _failed(self, reason: str) -> None:
        with self._lock:
            self.failures += 1
            clean = "".join(letter if letter.isprintable() else " " for letter in reason).replace(self.address.url, self.name)
            self.trouble = self.trouble or _USER.sub("//", clean)[:200]
            self._in_a_row += 1
            if self._in_a_row >= FAILURES:
                self._until = time.monotonic() + REST

    def _bounded(self, operation: Callable[[Layer], T]) -> T:
        with self._opening:
            layer = self._layer
            if layer is None and self.resting:
                raise TimeoutError  # a thread before this one failed to open it
            if layer is None:
                layer = self._layer = self._opened()
        try:
            return within(self.address.seconds, lambda: operation(layer), self.name)
        except TimeoutError:
            self.hang_up()
            raise

    def _opened(self) -> Layer:
        try:
            return within(max(OPENING, self.address.seconds), lambda: self._open(self.address), self.name)
        except (Missing, TimeoutError):
            with self._lock:  # a retry now would not help
                self._in_a_row = FAILURES
                self._until = time.monotonic() + REST
            raise

    def hang_up(self) -> None:
        """Close the connections; the next operation opens new ones."""
        layer, self._layer = self._layer, None
        if layer is not None:
            with contextlib.suppress(Exception):
                layer.close()


def within(seconds: float, run: Callable[[], T], name: str) -> T:
    """What `run` returns or raises. TimeoutError after `seconds`; its thread is then abandoned."""
    box: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def work() -> None:
        try:
            box.append((run(), None))
        except BaseException as error:
            box.append((None, error))
        done.set()

    threading.Thread(target=work, name=f"remote {name}", daemon=True).start()
    if not done.wait(seconds):
        raise TimeoutError
    found, error = box[0]
    if isinstance(error, Exception):
        raise error
    if error is not None:  # such as SystemExit of a library, which would end the build
        raise OSError(f"{type(error).__name__}: {error}")
    return found  # pyright: ignore[reportReturnType]
