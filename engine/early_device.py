"""Wakes the CUDA driver in a thread while the modules of a start are imported: it takes longer than these.

Makes the primary context of device 0, which `tilec.runtime.Device` takes later in its own thread; whichever comes first waits
for no more than what is left. Whatever goes wrong here goes wrong there too, where it is reported.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import Any


def wake_device() -> threading.Thread:
    """Begin; the thread ends by itself, and a program that ends earlier waits for it."""
    thread = threading.Thread(target=_wake, name="early device")
    thread.start()
    return thread


def _wake() -> None:
    with suppress(Exception):
        # The bindings directly: `tilec.runtime.driver` comes with modules that the other thread imports meanwhile.
        api: Any = importlib.import_module("cuda.bindings.driver")
        api.cuInit(0)
        _, device = api.cuDeviceGet(0)
        api.cuDevicePrimaryCtxRetain(device)
