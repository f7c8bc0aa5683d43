"""Holds a layer to its time: every operation bounded, a few tried again, and a layer that fails left alone for a while.

An operation runs in a thread of its own, so that a server which accepts and never answers, or answers a byte at a time, costs
`seconds` and no more; the thread is left behind and keeps no process alive. After `FAILURES` in a row the circuit is open: for
`REST` seconds every operation fails at once; then one is tried. What comes late is used, and counts as a failure, so that a
layer which always is just in time does not slow a build down for long.
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
"""The part of `seconds` after which an answer is late."""
ATTEMPTS: Final = 2
PAUSE: Final = 0.05
"""Seconds before the second attempt, on average."""
QUICK: Final = 0.5
"""Seconds within which a failure must come for a second attempt: what took long will again."""
OPENING: Final = 20.0
"""Seconds that opening a layer may take: libraries are imported, and nothing is sent, or not much."""
_USER: Final = re.compile(r"//[^/\s@]*@")
"""User and password of a URL, which no message shows."""
T = TypeVar("T")


class Unavailable(Exception):
    """The layer did not do it: in time, or at all."""


class Guard:
    """A layer under guard. `failures` counts operations that did not come about, `trouble` is the first reason."""

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
        """Whether the circuit is open: it is not asked now."""
        return self._in_a_row >= FAILURES and time.monotonic() < self._until

    def call(self, operation: Callable[[Layer], T]) -> T:
        """What `operation` gives; Unavailable where it does not, in time; Unusable as it is."""
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
                    self.hang_up()  # what comes next on that connection may be the answer to something else
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

    def _failed(self, why: str) -> None:
        with self._lock:
            self.failures += 1
            clean = "".join(letter if letter.isprintable() else " " for letter in why).replace(self.address.url, self.name)
            self.trouble = self.trouble or _USER.sub("//", clean)[:200]
            self._in_a_row += 1
            if self._in_a_row >= FAILURES:
                self._until = time.monotonic() + REST

    def _bounded(self, operation: Callable[[Layer], T]) -> T:
        with self._opening:
            layer = self._layer
            if layer is None and self.resting:
                raise TimeoutError  # who came first waited for nothing
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
            with self._lock:  # neither gets better by asking again now
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
    """What `run` gives or raises; TimeoutError after `seconds`, when its thread is left behind."""
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
    if error is not None:  # a library's own way to give up, which would end the build
        raise OSError(f"{type(error).__name__}: {error}")
    return found  # pyright: ignore[reportReturnType]
