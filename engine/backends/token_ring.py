"""Tokens on their way to the host: each step's are copied to a place of their own there, while later steps run already."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.device_memory import DeviceMemory

PLACES: Final = 4
"""For the tokens of steps on their way, more than are."""
TOKEN_BYTES: Final = 4


class TokenRing:
    """The `count` tokens (i32) that every step leaves in the buffer `name`; steps are numbered from 0."""

    def __init__(self, memory: DeviceMemory, name: str, count: int) -> None:
        self._driver, self._stream, self._count = memory.driver, memory.stream, count
        self._device, self._size = memory.places[name][0], count * TOKEN_BYTES
        self._events: list[Any] = []
        self._host = self._driver.allocate_host(PLACES * self._size)
        try:
            for _ in range(PLACES):
                self._events.append(self._driver.create_event())
        except BaseException:
            self.close()
            raise

    def fetch(self, number: int) -> None:
        """Enqueue the copy of a step's tokens, behind that step."""
        place = number % PLACES
        self._driver.copy_to_host(self._host + place * self._size, self._device, self._size, self._stream)
        self._driver.record_event(self._events[place], self._stream)

    def fetched(self, number: int) -> NDArray[np.int32]:
        """A step's tokens, (count,), once they are there."""
        self._driver.wait_event(self._events[number % PLACES])
        return self._held(number % PLACES)

    def now(self) -> NDArray[np.int32]:
        """The tokens of the last step, (count,), where none is on its way."""
        self._driver.copy_to_host(self._host, self._device, self._size, self._stream)
        self._driver.synchronize(self._stream)
        return self._held(0)

    def close(self) -> None:
        """Release events and host memory; idempotent. No copy may be under way."""
        with ExitStack() as releases:
            if self._host:
                releases.callback(self._driver.free_host, self._host)
                self._host = 0
            while self._events:
                releases.callback(self._driver.destroy_event, self._events.pop())

    def _held(self, place: int) -> NDArray[np.int32]:
        held = (ctypes.c_int32 * self._count).from_address(self._host + place * self._size)
        return np.ctypeslib.as_array(held).copy()
