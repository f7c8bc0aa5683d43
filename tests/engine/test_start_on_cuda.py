"""What a start does in other threads, or no longer twice, on a driver that launches nothing: it stays as checked as it was."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cuda_backend import SMALLEST

from engine.backends import device_pages, upload
from engine.backends.cuda import CudaBackend
from engine.backends.prompts import only_mode
from engine.errors import DeviceError
from engine.graph.integers import GraphError
from engine.models.families import family_of
from engine.models.family import Family
from engine.paged_batch import PagedBatch
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, BundleError, Device, DriverError, open_bundle
from tilec.step.expressions import StepError
from tilec.step.requests import choices, requests

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver


class Late(FakeDriver):
    """A driver whose copies from page-locked memory are done when their stream is synchronised, and no sooner. `turns`: calls
    of threads that copy."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = iter(range(8, 1 << 20))
        self.turns, self.pending = list[str](), dict[int, list[tuple[int, int, int]]]()

    def create_stream(self) -> int:
        return next(self.streams)

    def copy_to_device(self, pointer: int, host: int, size: int, stream: int) -> None:
        if not threading.current_thread().name.startswith("upload"):
            super().copy_to_device(pointer, host, size, stream)
            return
        self.turns.append("copy")
        self.pending.setdefault(stream, []).append((pointer, host, size))

    def synchronize(self, stream: int) -> None:
        super().synchronize(stream)
        if threading.current_thread().name.startswith("upload"):
            self.turns.append("synchronize")
        for copy in self.pending.pop(stream, ()):
            ctypes.memmove(*copy)


def test_weights_arrive_though_copies_are_late(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """No buffer is filled again, or freed, before the device has read it; each chunk takes two calls of the driver."""
    monkeypatch.setattr(upload, "STAGING_BYTES", 1 << 16)
    driver, weights = Late(), dummy_weights(SMALLEST, "bf16")
    chunks = sum(1 for item in weights.destinations for _ in weights.chunks(item.name, 1 << 16))
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, weights, 256, serves=True)
    backend.finish()
    assert not driver.pending
    for item in weights.destinations:
        pointer, size = backend.memory.allocations[item.name]
        arrived = ctypes.string_at(pointer, size) == weights.array(item.name).tobytes()
        assert arrived, item.name
    assert len(driver.turns) == 2 * chunks + upload.THREADS  # and one when a thread ends
    backend.close()
    assert not driver.buffers


@pytest.mark.parametrize("call", ["copy_to_device", "synchronize"])
def test_a_copy_that_fails_is_reported_and_frees_all(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    driver = FakeDriver()
    real: Any = getattr(driver, call)

    def failing(*values: Any) -> None:
        if threading.current_thread().name.startswith("upload"):
            raise DriverError(call, "CUDA_ERROR_ILLEGAL_ADDRESS")
        real(*values)

    monkeypatch.setattr(driver, call, failing)
    backend = CudaBackend(bundle, Device(driver))
    with pytest.raises(DriverError):
        backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256)
    backend.close()
    assert not driver.buffers


class Pools(FakeDriver):
    """A driver that knows which threads allocated memory, and whether they had the context."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated, self.ready = dict[str, int](), {threading.current_thread().name}

    def use_context(self, context: int) -> None:
        super().use_context(context)
        self.ready.add(threading.current_thread().name)

    def allocate(self, size: int, stream: int) -> int:
        name = threading.current_thread().name
        assert name in self.ready, "a thread without a context"
        self.allocated[name] = max(size, self.allocated.get(name, 0))
        return super().allocate(size, stream)


@pytest.fixture
def serving(bundle: Bundle) -> Iterator[tuple[CudaBackend, Pools]]:
    driver = Pools()
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256, serves=True)
    backend.finish()
    driver.allocated.clear()
    yield backend, driver
    backend.close()
    assert not driver.buffers, "something was not freed"


def test_pools_are_allocated_while_rows_are_checked(
    serving: tuple[CudaBackend, Pools], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    backend, driver = serving
    begun, checking, verify_rows = threading.Event(), threading.Event(), device_pages.verify_rows
    fill = driver.fill

    def checked(*values: Any) -> None:
        checking.set()
        assert begun.wait(60), "the pools wait for the check"
        verify_rows(*values)

    def filled(*values: Any) -> None:
        begun.set()
        assert checking.wait(20), "the check waits for the pools"
        fill(*values)

    monkeypatch.setattr(device_pages, "verify_rows", checked)
    monkeypatch.setattr(driver, "fill", filled)
    with PagedBatch(backend, 2, pages=400) as batch:
        (other,) = driver.allocated.keys() - {threading.current_thread().name}
        assert driver.allocated[other] > driver.allocated[threading.current_thread().name]
        for pointer, slot_bytes in batch._steps.device._pools:  # type: ignore[attr-defined]
            assert not np.frombuffer(ctypes.string_at(pointer, 400 * 64 * slot_bytes), np.uint8).any()


def test_what_is_refused_meanwhile_frees_the_pools(
    serving: tuple[CudaBackend, Pools], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A check that fails, a pool that the device cannot give, and a pool that is too large, which is refused before."""
    backend, driver = serving
    before = set(driver.buffers)

    def refused(*_: Any) -> None:
        raise GraphError("rows differ", where="here")

    with monkeypatch.context() as patch:
        patch.setattr(device_pages, "verify_rows", refused)
        with pytest.raises(GraphError, match="rows differ"):
            PagedBatch(backend, 2, pages=20)
    assert set(driver.buffers) == before
    with monkeypatch.context() as patch:
        patch.setitem(driver.fail, "cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY")
        with pytest.raises(DeviceError, match="cannot give"):
            PagedBatch(backend, 2, pages=20)
    assert set(driver.buffers) == before
    driver.allocated.clear()
    with pytest.raises(DeviceError, match="GB of device memory"):
        PagedBatch(backend, 2, pages=1 << 20)
    assert not driver.allocated


def test_one_mode_has_the_constants_that_it_has_among_others(bundle: Bundle) -> None:
    backend = CudaBackend(bundle, Device(FakeDriver()))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256, serves=True)
    step, modes = backend.step, list(backend.step.declaration.modes)
    for find in (requests, choices):
        found = {mode: [repr(one) for one in find(only_mode(step, mode), bundle.tuning)] for mode in modes}  # type: ignore[arg-type]
        whole = list(find(step, bundle.tuning))
        for mode in modes:
            assert found[mode] == [repr(one) for one in whole if one.op.startswith(f"{mode}_")]
        assert sum(map(len, found.values())) == len(whole) and found["chunk"]
    assert list(step.declaration.modes) == modes  # the step itself has them all
    backend.close()


def test_the_engines_own_step_is_not_read_again(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is another one taken for it, or a syntax that Python finds equal; one that is invalid is refused."""
    own = family_of("qwen3").declaration()
    opened = open_bundle(bundle.path, trust="none", decode=family_of("qwen3").decode)
    assert opened.declaration is own
    assert opened.declaration.syntax == bundle.declaration.syntax and bundle.declaration is not own
    assert open_bundle(bundle.path, trust="none", decode=family_of("llama").decode).declaration is not own
    one, true = (["Module", [["Assign", [["Name", "a"]], ["Constant", value]]]] for value in (1, True))
    family: Any = family_of("qwen3")
    monkeypatch.setattr(Family, "declaration", lambda self: type("Own", (), {"syntax": one}))
    with pytest.raises(StepError):
        family.decode(true)
    assert family.decode(one).syntax is one

    def invalid(syntax: Any) -> Any:
        raise StepError("not this one")

    with pytest.raises(BundleError, match="its step: not this one"):
        open_bundle(bundle.path, trust="none", decode=invalid)
