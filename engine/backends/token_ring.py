"""Copies the tokens of each step to a host slot of that step, while later steps are already running."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.device_memory import DeviceMemory

SLOTS: Final = 4
"""Host slots; more than there are steps in flight."""
TOKEN_BYTES: Final = 4


class TokenRing:
    """A ring buffer on the host for the `count` tokens (i32) that every step writes to the buffer `name`; steps are numbered
    from 0."""

    def __init__(self, memory: DeviceMemory, name: str, count: int) -> None:
        self._driver, self._stream, self._count = memory.driver, memory.stream, count
        self._device, self._size = memory.allocations[name][0], count * TOKEN_BYTES
        self._events: list[Any] = []
        self._host = self._driver.allocate_host(SLOTS * self._size)
        try:
            for _ in range(SLOTS):
                self._events.append(self._driver.create_event())
        except BaseException:
            self.close()
            raise

    def fetch(self, number: int) -> None:
        """Enqueue the copy of a step's tokens; call it directly after the step was enqueued."""
        slot = number % SLOTS
        self._driver.copy_to_host(self._host + slot * self._size, self._device, self._size, self._stream)
        self._driver.record_event(self._events[slot], self._stream)

    def fetched(self, number: int) -> NDArray[np.int32]:
        """A step's tokens, (count,); waits for the copy."""
        self._driver.wait_event(self._events[number % SLOTS])
        return self._read_slot(number % SLOTS)

    def latest(self) -> NDArray[np.int32]:
        """The tokens of the last step, (count,). No fetched step may be outstanding."""
        self._driver.copy_to_host(self._host, self._device, self._size, self._stream)
        self._driver.synchronize(self._stream)
        return self._read_slot(0)

    def close(self) -> None:
        """Free events and host memory; idempotent. No copy may be in flight."""
        with ExitStack() as releases:
            if self._host:
                releases.callback(self._driver.free_host, self._host)
                self._host = 0
            while self._events:
                releases.callback(self._driver.destroy_event, self._events.pop())

    def _read_slot(self, slot: int) -> NDArray[np.int32]:
        tokens = (ctypes.c_int32 * self._count).from_address(self._host + slot * self._size)
        return np.ctypeslib.as_array(tokens).copy()
