"""What `ci.bench.engine.all_reduce` needs of torch, on the host: tensors of NumPy, and ranks that are threads of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from fake_gpus import Exchange

DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "int16": np.int16, "int64": np.int64, "float32": np.float32}


class Tensor:
    def __init__(self, array: Any) -> None:
        self.array = array

    def to(self, target: Any) -> Tensor:
        return self if isinstance(target, tuple) else Tensor(self.array.astype(target))

    def float(self) -> Tensor:
        return Tensor(self.array.astype(np.float32))

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype))

    def zero_(self) -> None:
        self.array[...] = 0

    def sum(self) -> Tensor:
        return Tensor(self.array.sum())

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array

    def numel(self) -> int:
        return self.array.size

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def __iadd__(self, other: Tensor) -> Tensor:
        self.array = self.array + other.array
        return self

    def __ne__(self, other: Any) -> Any:
        return Tensor(self.array != other.array)

    def __int__(self) -> int:
        return int(self.array)


class Graph:
    """Records nothing; `replays` counts."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class Distributed:
    """`torch.distributed` of some ranks, each in a thread."""

    def __init__(self, ranks: int) -> None:
        self._exchange, self._own = Exchange(ranks), threading.local()

    def init_process_group(self, backend: str, *, init_method: str, rank: int, **_: Any) -> None:
        assert backend == "nccl" and init_method.startswith("file:///")
        self._own.rank = rank

    def all_gather_object(self, found: list[Any], data: Any) -> None:
        found[:] = self._exchange.exchange(self._own.rank, data)

    def barrier(self) -> None:
        self._exchange.exchange(self._own.rank, b"")

    def all_reduce(self, values: Tensor) -> None:
        """Of zeros."""

    def destroy_process_group(self) -> None: ...


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


def torch_of(ranks: int) -> tuple[Any, Distributed]:
    """The modules `torch` and `torch.distributed`."""

    def tensor(make: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda shape, *, dtype=np.float32, device=None: Tensor(make(shape, dtype))

    class Generator:
        def manual_seed(self, seed: int) -> Any:
            return np.random.default_rng(seed)

    cuda = SimpleNamespace(
        set_device=lambda _: None, synchronize=lambda _: None, ExternalStream=lambda *_: None, CUDAGraph=Graph,
        device=nothing, graph=nothing, stream=nothing, _sleep=lambda _: None,
    )  # fmt: skip
    torch = SimpleNamespace(
        cuda=cuda, device=lambda *named: named, Generator=Generator, zeros=tensor(np.zeros), **DTYPES,
        empty_like=lambda one: Tensor(one.array.copy()), zeros_like=lambda one: Tensor(np.zeros_like(one.array)),
        randn=lambda shape, *, generator: Tensor(generator.standard_normal(shape).astype(np.float32)),
    )  # fmt: skip
    return torch, Distributed(ranks)
