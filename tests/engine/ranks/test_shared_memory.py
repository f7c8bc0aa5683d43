"""Memory that ranks map: every rank has the same offsets, what is not shared is refused, and nothing stays mapped."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import Exchange, IpcApi, shared_memory, together

import engine
import tilec
from engine.errors import DeviceError, EngineError
from engine.ranks.memory import Region, SharedMemory


def memories(apis: list[IpcApi]) -> list[SharedMemory]:
    exchange_of_handles = Exchange(len(apis))
    return [shared_memory(rank, exchange_of_handles, api) for rank, api in enumerate(apis)]


def test_all_ranks_map_all_memory_and_give_it_back() -> None:
    apis = [IpcApi(rank) for rank in range(3)]
    shared = memories(apis)
    regions: list[Region] = together(3, lambda rank: (shared[rank].allocate(4096), shared[rank].allocate(512))[0])
    for rank, region in enumerate(regions):
        own = region.pointers[rank]
        assert own in apis[rank].blocks and ctypes.string_at(own, 4096) == bytes(4096), "zero before others map it"
        mapped = [IpcApi.MAPPED * (1 + other) + regions[other].pointers[other] for other in range(3)]
        assert region.pointers == (*mapped[:rank], own, *mapped[rank + 1 :])
        assert shared[rank].of_ranks(own + 256, 128) == tuple(pointer + 256 for pointer in region.pointers)
        names = [call[0] for call in apis[rank].calls]
        assert names.index("cuMemsetD8") < names.index("cuCtxSynchronize") < names.index("cuIpcGetMemHandle")
    for memory, api in zip(shared, apis, strict=True):
        memory.close()
        memory.close()
        assert not api.blocks and not api.opened


def test_memory_that_is_not_shared_is_refused() -> None:
    shared = memories([IpcApi(rank) for rank in range(2)])
    region = together(2, lambda rank: shared[rank].allocate(4096))[0]
    for begin, size in ((-16, 16), (-16, 64), (4000, 100), (4096, 1)):
        with pytest.raises(EngineError, match="are in no memory that ranks share"):
            shared[0].of_ranks(region.pointers[0] + begin, size)
    with pytest.raises(EngineError, match="are in no memory that ranks share"):
        shared[0].of_ranks(region.pointers[1], 16)  # another rank's mapping is not this rank's own


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cuMemAlloc", r"the device cannot give 4096 bytes \(.*CUDA_ERROR_NOT_SUPPORTED"),
        ("cuIpcGetMemHandle", r"the memory of GPU 1 cannot be shared with other processes .*; take one GPU, or a system"),
        ("cuIpcOpenMemHandle", r"GPU 1 cannot map the memory of GPU 0 .*; take one GPU"),
    ],
)
def test_a_call_that_fails_is_one_error_and_leaves_nothing(call: str, message: str) -> None:
    apis = [IpcApi(0), IpcApi(1, call)]
    exchange_of_handles = Exchange(2)
    shared = [shared_memory(rank, exchange_of_handles, api) for rank, api in enumerate(apis)]

    def work(rank: int) -> Any:
        try:
            return shared[rank].allocate(4096)
        except DeviceError:
            exchange_of_handles.stop()
            raise

    error = together(2, work)[1]
    assert isinstance(error, DeviceError) and re.search(message, str(error)), error
    assert not apis[1].blocks and not apis[1].opened


def test_nothing_uses_nvlink_multicast() -> None:
    """A program that does can put the GPUs of a host out of service."""
    for package in (engine, tilec):
        for file in Path(str(package.__file__)).parent.rglob("*.py"):
            assert "cuMulticast" not in file.read_text(encoding="utf-8"), file
