"""`DeviceArray` exported to other frameworks: in place, ordered on their streams, and alive as long as they use it."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver

from tilec.ir.types import DTYPES
from tilec.runtime import Device, DeviceArray, dlpack, view_tensor
from tilec.runtime.tensors import DLPACK_CODES


class Exported:
    """An array visible only through DLPack."""

    def __init__(self, array: DeviceArray, **options: Any) -> None:
        self.array, self.options = array, options

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream, **self.options)


@pytest.fixture
def device() -> Device:
    return Device(FakeDriver())


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_round_trips(device: Device, dtype: str) -> None:
    array = device.empty((3, 4), dtype)
    assert view_tensor(Exported(array)) == array.tensor_view()
    assert set(DLPACK_CODES) == set(DTYPES)


def test_a_consumer_keeps_the_memory_and_frees_it(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, which treats the memory as the host's: on this fake device it is."""
    monkeypatch.setattr(dlpack, "CUDA", 1)
    for version in (None, (1, 1)):
        array = device.empty((2, 3), "f32")
        array.fill(0)
        pointer, export_count = array.pointer, len(dlpack._exports)
        imported = np.from_dlpack(array) if version else np.from_dlpack(Exported(array))
        assert (imported.ctypes.data, imported.shape) == (pointer, (2, 3))
        del array
        gc.collect()
        assert pointer in device.driver.buffers
        del imported
        gc.collect()
        assert pointer not in device.driver.buffers
        assert len(dlpack._exports) == export_count


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0)])
def test_an_unconsumed_capsule_frees_itself(device: Device, version: tuple[int, int] | None) -> None:
    array = device.empty((4,), "i8")
    export_count = len(dlpack._exports)
    capsule = array.__dlpack__(max_version=version)
    assert ("dltensor_versioned" in repr(capsule)) is (version == (1, 0))
    assert len(dlpack._exports) == export_count + 1
    del capsule
    assert len(dlpack._exports) == export_count


def test_an_empty_array_and_one_of_no_dims(device: Device) -> None:
    for shape in ((), (0, 3)):
        array = device.empty(shape, "f32")
        assert view_tensor(Exported(array)).shape == shape


def test_order_on_streams(device: Device) -> None:
    """Work on the array's stream completes before a consumer on another stream starts, and the memory is freed after both."""
    waited: list[int] = []
    device.driver.synchronize = waited.append  # type: ignore[method-assign]
    for stream, consumer, expected in (
        (0, None, []),
        (0, 1, []),
        (0, -1, []),
        (7, 7, []),
        (7, -1, []),
        (7, 9, [7]),
        (7, None, [7]),
    ):
        array = device.empty((4,), "i8", stream=stream)
        array.__dlpack__(stream=consumer)
        assert waited == expected, (stream, consumer)
        waited.clear()
        del array
        gc.collect()
        assert waited == [1 if consumer is None else consumer for _ in expected], (stream, consumer)
        waited.clear()
    assert len(device.driver.freed) == 7


def test_unsupported_exports_are_refused(device: Device) -> None:
    array = device.empty((4,), "i8")
    for options in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}):
        with pytest.raises(BufferError, match="without a copy, on its own device"):
            array.__dlpack__(**options)
    assert array.__dlpack__(dl_device=(2, 0), copy=False) is not None


def test_the_structures_are_those_of_the_header() -> None:
    """Sizes and offsets of dlpack.h on 64-bit machines."""
    assert ctypes.sizeof(dlpack.DLTensor) == 48
    assert (ctypes.sizeof(dlpack._Managed), dlpack._Managed.deleter.offset) == (64, 56)
    assert (ctypes.sizeof(dlpack._ManagedVersioned), dlpack._ManagedVersioned.tensor.offset) == (80, 32)
