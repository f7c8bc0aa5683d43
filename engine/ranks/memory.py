"""Device memory of a rank that all other ranks map: activations that they read, and the signals in which they write.

Every rank allocates the same sizes in the same order. A region is one allocation of `cuMemAlloc`, whose handle the other
processes open (CUDA driver API, `cuIpcGetMemHandle`). A buffer lies at the same offset in the region of each rank.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from engine.errors import DeviceError, EngineError
from engine.ranks.peers import DriverCalls

HANDLE_BYTES: Final = 64
"""Of `CUipcMemHandle` (`CU_IPC_HANDLE_SIZE`)."""
LAZY_PEER_ACCESS: Final = 1
"""`CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the memory may be of another GPU."""

Exchange = Callable[[bytes], Sequence[bytes]]
"""Gives all other ranks some bytes, and returns those of each rank, in order, once every rank has given its own."""


@dataclass(frozen=True, slots=True)
class Region:
    """`size` bytes of each rank; `pointers` are where this process has mapped them, in the order of ranks."""

    size: int
    pointers: tuple[int, ...]


class SharedMemory:
    """The regions of a rank. Not thread-safe; all ranks make the same calls."""

    def __init__(self, driver: DriverCalls, rank: int, exchange: Exchange) -> None:
        self.rank, self._driver, self._exchange = rank, driver, exchange
        self.regions: list[Region] = []

    def allocate(self, size: int) -> Region:
        """A region of zeros, which every rank has mapped when this returns. DeviceError if there is too little memory, or if
        processes cannot share it."""
        try:
            own = int(self._driver.call("cuMemAlloc", size))
        except DeviceError as error:
            raise DeviceError(f"the device cannot give {size} bytes ({error.what})", fix="shorten --max-seq-len") from None
        mapped: list[int] = []
        try:
            self._driver.call("cuMemsetD8", own, 0, size)
            self._driver.call("cuCtxSynchronize")  # zero before any rank can write here
            handles = self._exchange(self._handle(own))
            for rank, handle in enumerate(handles):
                mapped.append(own if rank == self.rank else self._opened(rank, handle))
        except BaseException:
            self._free(own, mapped)
            raise
        self.regions.append(Region(size, tuple(mapped)))
        return self.regions[-1]

    def of_ranks(self, pointer: int, size: int) -> tuple[int, ...]:
        """Where this process has the bytes of each rank that are at `pointer` in its own region. EngineError if they are not
        all in one region: then no other rank could read them."""
        for region in self.regions:
            offset = pointer - region.pointers[self.rank]
            if offset >= 0 and offset + size <= region.size:
                return tuple(base + offset for base in region.pointers)
        raise EngineError(f"{size} bytes at {pointer:#x} are in no memory that ranks share")

    def close(self) -> None:
        """Unmap and free all regions, once no rank uses them any more; idempotent."""
        if not self.regions:
            return
        with ExitStack() as releases:  # even after a failure
            while self.regions:
                region = self.regions.pop()
                releases.callback(self._free, region.pointers[self.rank], region.pointers)

    def _handle(self, pointer: int) -> bytes:
        try:
            handle = self._driver.call("cuIpcGetMemHandle", pointer)
        except DeviceError as error:
            what = f"the memory of GPU {self.rank} cannot be shared with other processes ({error.what})"
            raise DeviceError(what, fix="take one GPU, or a system whose driver supports CUDA IPC") from None
        return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)

    def _opened(self, rank: int, data: bytes) -> int:
        handle = self._driver.make("CUipcMemHandle")
        ctypes.memmove(int(handle.getPtr()), data, HANDLE_BYTES)
        try:
            return int(self._driver.call("cuIpcOpenMemHandle", handle, LAZY_PEER_ACCESS))
        except DeviceError as error:
            what = f"GPU {self.rank} cannot map the memory of GPU {rank} ({error.what})"
            raise DeviceError(what, fix="take one GPU, or a system whose driver supports CUDA IPC") from None

    def _free(self, own: int, mapped: Sequence[int]) -> None:
        with ExitStack() as releases:
            releases.callback(self._driver.call, "cuMemFree", own)
            for pointer in mapped:
                if pointer != own:
                    releases.callback(self._driver.call, "cuIpcCloseMemHandle", pointer)
