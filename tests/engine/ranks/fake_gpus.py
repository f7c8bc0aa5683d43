"""GPUs of ranks without any: drivers that launch nothing, and memory that processes share as that of one process."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.models.config import ModelConfig
from engine.models.qwen3.config import Qwen3Config
from engine.ranks.cuda import RankCuda
from engine.ranks.memory import HANDLE_BYTES, SharedMemory
from engine.ranks.peers import DriverCalls
from engine.ranks.weights import rank_weights
from tilec.runtime import Bundle, Device

sys.path.append(str(Path(__file__).resolve().parents[2] / "runtime"))
from fake_driver import FakeDriver

WORKER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fake_gpus import IpcApi
from fake_driver import FakeDriver
from engine.ranks import worker
from engine.ranks.peers import DriverCalls
from tilec.runtime import Device
def open_gpu(rank, ranks):
    driver = FakeDriver(devices=ranks)
    driver.rank = rank
    return DriverCalls(IpcApi(rank)), Device(driver)
worker.open_gpu = open_gpu
"""
"""A rank's process without a GPU, up to what a test changes in it; `RUN` follows."""
RUN = "worker.run(int(sys.argv[1]))"


class Handle:
    """`CUipcMemHandle`."""

    def __init__(self) -> None:
        self.data = ctypes.create_string_buffer(HANDLE_BYTES)

    def getPtr(self) -> int:
        return ctypes.addressof(self.data)


class IpcApi:
    """The calls of `cuda.bindings.driver` for memory that processes share. A mapping of a rank's memory in another one is at
    the same address, plus `MAPPED` times that rank's number plus one: nothing reads it. `fail` names a call that fails."""

    MAPPED = 1 << 56

    def __init__(self, rank: int = 0, fail: str = "") -> None:
        self.rank, self.fail, self.calls = rank, fail, list[tuple[Any, ...]]()
        self.blocks: dict[int, Any] = {}
        self.opened: set[int] = set()
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0)
        self.CUipcMemHandle = Handle

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == self.fail:
                return (801,)
            return 0, *getattr(self, f"of_{name}", lambda *_: ())(*arguments)

        return call

    def of_cuGetErrorName(self, code: int) -> tuple[bytes]:
        return (b"CUDA_ERROR_NOT_SUPPORTED",)

    def of_cuGetErrorString(self, code: int) -> tuple[bytes]:
        return (b"operation not supported",)

    def of_cuMemAlloc(self, size: int) -> tuple[int]:
        block = np.ones(size + 256, np.uint8)
        pointer = (block.ctypes.data + 255) // 256 * 256
        self.blocks[pointer] = block
        return (pointer,)

    def of_cuMemsetD8(self, pointer: int, byte: int, size: int) -> tuple[()]:
        ctypes.memset(pointer, byte, size)
        return ()

    def of_cuMemFree(self, pointer: int) -> tuple[()]:
        del self.blocks[pointer]
        return ()

    def of_cuIpcGetMemHandle(self, pointer: int) -> tuple[Handle]:
        handle = Handle()
        handle.data.raw = (self.MAPPED * (1 + self.rank) + pointer).to_bytes(HANDLE_BYTES, "little")
        return (handle,)

    def of_cuIpcOpenMemHandle(self, handle: Handle, flags: int) -> tuple[int]:
        assert flags == 1
        pointer = int.from_bytes(handle.data.raw, "little")
        self.opened.add(pointer)
        return (pointer,)

    def of_cuIpcCloseMemHandle(self, pointer: int) -> tuple[()]:
        self.opened.remove(pointer)
        return ()


class Exchange:
    """Where the ranks of a test exchange handles, each in a thread of its own."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._data = [b""] * ranks

    def stop(self) -> None:
        """Let all others fail."""
        self._barrier.abort()

    def exchange(self, rank: int, data: bytes) -> Sequence[bytes]:
        self._data[rank] = data
        self._barrier.wait()
        found = list(self._data)
        self._barrier.wait()
        return found


def shared_memory(rank: int, exchange_of_handles: Exchange, api: IpcApi) -> SharedMemory:
    """The memory of a rank of a test."""
    return SharedMemory(DriverCalls(api), rank, lambda data: exchange_of_handles.exchange(rank, data))


def model_of(bundle: Bundle, **changed: Any) -> Qwen3Config:
    """The model of a bundle, with two layers and a small vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    numbers: dict[str, Any] = {name: bundle.config[name] for name in names}
    numbers |= {"num_hidden_layers": 2, "vocab_size": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6, **changed}
    return Qwen3Config(**numbers, tie_word_embeddings=True, max_position_embeddings=40960, torch_dtype="bfloat16")


def together(ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank returns or raises, each in a thread of its own."""
    found: list[Any] = [None] * ranks

    def one(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@dataclass
class Ranks:
    backends: list[RankCuda]
    drivers: list[FakeDriver]
    apis: list[IpcApi]


def loaded(bundle: Bundle, drivers: list[FakeDriver], config: ModelConfig | None = None) -> list[Any]:
    """The backends of two ranks, or their errors. Of a given `config` no byte of a weight is read."""
    exchange_of_handles, apis, unread = Exchange(2), [IpcApi(rank) for rank in range(2)], config is not None
    config = model_of(bundle) if config is None else config

    def load(rank: int) -> tuple[RankCuda, IpcApi]:
        try:
            backend = RankCuda(bundle, shared_memory(rank, exchange_of_handles, apis[rank]), 2, Device(drivers[rank]))
            weights: Any = rank_weights(config, "", rank, 2, dummy=0)
            if unread:
                weights.chunks = lambda name, limit: ()
            backend.load(config, weights, 1024)
        except Exception:
            exchange_of_handles.stop()
            raise
        return backend, apis[rank]

    return together(2, load)


def kernels_of(driver: FakeDriver, first: int) -> list[str]:
    return [launch.function[1].split("_E")[0] for launch in driver.launches[first:]]
