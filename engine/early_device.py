"""What a start on a GPU does before it imports: wakes the CUDA driver in a thread, because it takes longer than the imports,
and keeps NumPy from starting threads that nothing would use.

`wake_device` makes the primary context of device 0, which `tilec.runtime.Device` takes later in its own thread; whichever comes
first waits for no more than what is left. Whatever goes wrong here goes wrong there too, where it is reported.
"""

from __future__ import annotations

import importlib
import os
import threading
from contextlib import suppress
from typing import Any, Final

BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"


def one_blas_thread() -> None:
    """Let NumPy, once it is imported here and in processes that this one starts, have one thread for matrix products, unless
    the environment says otherwise. It would start one for each processor, and each would spin for a third of the time that the
    import takes; where a GPU computes, the host multiplies no matrices."""
    os.environ.setdefault(BLAS_THREADS, "1")


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
