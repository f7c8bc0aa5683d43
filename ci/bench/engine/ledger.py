"""What this process holds of a GPU: a count of what the driver gave it and what it gave back.

The free memory of a card says nothing about one process: others allocate and free meanwhile. So every call of the CUDA driver
API that creates something is counted, and every call that ends it. A leak of the engine or of the runtime, such as a graph that
is instantiated and never destroyed, is something created and not ended, however busy the card is. What the driver keeps for
itself is not counted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ci.bench.front import Unfinished
from tilec.runtime import Device
from tilec.runtime.driver import CudaDriver

ENDS: Final = {
    "cuMemAllocAsync": "cuMemFreeAsync", "cuMemAllocHost": "cuMemFreeHost", "cuModuleLoadData": "cuModuleUnload",
    "cuStreamCreate": "cuStreamDestroy", "cuEventCreate": "cuEventDestroy", "cuStreamEndCapture": "cuGraphDestroy",
    "cuGraphInstantiate": "cuGraphExecDestroy",
}  # fmt: skip
"""The call that ends what a call creates. The primary context is not here: it is retained once and lives as long as the
process."""
SIZED: Final = ("cuMemAllocAsync", "cuMemAllocHost")
"""Calls whose first argument is a number of bytes."""
STRAY: Final = "ended, not created"
_SHORT: Final = re.compile(r"GB of device memory and [\d.]+ of [\d.]+ GB are free|cannot give \d+ bytes")
"""What the engine says if the card has too little free memory (`engine.backends.device_memory`)."""


class Ledger:
    """`cuda.bindings.driver`, whose calls are counted."""

    def __init__(self, api: Any = None) -> None:
        self._api = importlib.import_module("cuda.bindings.driver") if api is None else api
        self._sizes: dict[str, dict[int, int]] = {name: {} for name in ENDS}
        self._creator = {end: name for name, end in ENDS.items()}
        self._strays = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name in ENDS:
            return partial(self._create, name, found)
        if name in self._creator:
            return partial(self._end, self._creator[name], found)
        return found

    def _create(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        code, *results = call(*arguments)
        if code == self._api.CUresult.CUDA_SUCCESS:
            self._sizes[name][int(results[0])] = int(arguments[0]) if name in SIZED else 1
        return (code, *results)

    def _end(self, creator: str, call: Callable[..., Any], handle: Any, *arguments: Any) -> Any:
        known = self._sizes[creator].pop(int(handle), None)  # before the call: another thread may be given the handle after it
        code, *results = call(handle, *arguments)
        if code != self._api.CUresult.CUDA_SUCCESS:
            self._sizes[creator] |= {} if known is None else {int(handle): known}
        elif known is None:
            self._strays += 1
        return (code, *results)

    def kept(self) -> dict[str, int]:
        """Bytes, or objects, that each call created and that were not ended; and how often something else was ended. What is 0
        is left out."""
        found = {name: sum(sizes.values()) for name, sizes in self._sizes.items()} | {STRAY: self._strays}
        return {name: count for name, count in found.items() if count}

    def device(self) -> Device:
        """The device, with a driver whose calls are counted here."""
        driver = CudaDriver()
        driver._api = self  # pyright: ignore[reportPrivateUsage]
        return Device(driver)


def refuse_shared_card(message: str) -> None:
    """Unfinished if the engine says in `message` that too little device memory is free: when it is asked, this process holds
    none, so the others must go first."""
    if _SHORT.search(message):
        raise Unfinished(f"no verdict, because other processes hold the card ({message})")
