"""Uploads weights from several threads, each with its own page-locked memory and stream, while kernels are loaded."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np

from tilec.runtime import Driver, DriverError

THREADS: Final = 8
"""Number of copying threads. One copies about 5 GB/s out of the page cache; a PCIe 5.0 link transfers about 50."""

STAGING_BYTES: Final = 32 << 20
"""Bytes of each thread's page-locked buffer. While the device reads one thread's, the other threads fill theirs."""

SWITCH_SECONDS: Final = 0.0002
"""How long a thread waits for Python's lock while weights are copied. A copying thread takes it three times for each chunk, and
each time the thread that verifies steps stops; at Python's own 5 ms nearly nothing is copied meanwhile."""

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the total, by one thread at a time."""


class WeightSource(Protocol):
    """The part of `engine.checkpoint.weights.Weights` that the upload needs. Several threads call `chunks` concurrently."""

    @property
    def destinations(self) -> Iterable[Any]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def weight_format(self) -> str: ...
    def chunks(self, name: str, limit_bytes: int) -> Iterable[tuple[int, memoryview]]: ...


class Upload:
    """An upload that starts when it is constructed. `wait` finishes it; `close` abandons the rest."""

    def __init__(
        self, driver: Driver, weights: WeightSource, pointers: Mapping[str, int], progress: Progress | None = None
    ) -> None:
        self._driver, self._weights, self._pointers, self._progress = driver, weights, dict(pointers), progress
        self._context = driver.context()
        self._closed = False
        self._lock, self._stopped, self._done = threading.Lock(), threading.Event(), 0
        # Threads pop from the end of this list: the largest first, so that no thread ends late with a large one.
        self._names = [item.name for item in sorted(weights.destinations, key=lambda item: item.bytes)]
        self._interval = sys.getswitchinterval()  # restored by `close`
        sys.setswitchinterval(min(SWITCH_SECONDS, self._interval))
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="upload")
        self._futures = [self._pool.submit(self._work) for _ in range(min(THREADS, len(self._names)))]

    def wait(self) -> None:
        """Wait until every byte is on the device; raises the first failure of any thread."""
        try:
            for future in self._futures:
                future.result()
        finally:
            self.close()

    def close(self) -> None:
        """Stop the threads after their current chunk; idempotent. Device memory may be freed afterwards."""
        if self._closed:
            return
        self._closed = True
        self._stopped.set()
        wait(self._futures)
        self._pool.shutdown()
        if self._interval > SWITCH_SECONDS:  # otherwise another upload has set it, and restores it
            sys.setswitchinterval(self._interval)

    def _work(self) -> None:
        """Copy tensors until none is left."""
        driver, staging = self._driver, 0
        driver.use_context(self._context)
        stream = driver.create_stream()
        try:
            staging = driver.allocate_host(STAGING_BYTES)
            while not self._stopped.is_set():
                with self._lock:
                    if not self._names:
                        break
                    name = self._names.pop()
                for offset, chunk in self._weights.chunks(name, STAGING_BYTES):
                    if self._stopped.is_set():
                        break
                    ctypes.memmove(staging, np.frombuffer(chunk, np.uint8).ctypes.data, chunk.nbytes)
                    driver.copy_to_device(self._pointers[name] + offset, staging, chunk.nbytes, stream)
                    driver.synchronize(stream)
                    self._advance(chunk.nbytes)
        except BaseException:
            self._stopped.set()
            raise
        finally:
            with suppress(DriverError):
                driver.synchronize(stream)  # a copy may still read the buffer
            if staging:
                driver.free_host(staging)
            driver.destroy_stream(stream)

    def _advance(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._weights.bytes)
