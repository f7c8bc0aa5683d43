"""Device tensors of other frameworks, and our own array."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_driver import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import InterfaceTensor

from tilec.runtime import Device, LaunchError, TensorView, view_tensor
from tilec.runtime.tensors import TYPE_STRINGS, DLTensor


class DlpackTensor:
    """An exporter that declares its NumPy memory as CUDA memory, to exercise the reader."""

    def __init__(self, array: Any, device_type: int = 2, ordinal: int = 0) -> None:
        self.array, self.device_type, self.ordinal = array, device_type, ordinal

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.ordinal

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream == -1
        return self.array.__dlpack__()


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(1, 7), max_size=4), typestr=st.sampled_from(sorted(TYPE_STRINGS)), explicit=st.booleans())
def test_interface_strides_are_bytes_and_views_are_elements(shape: list[int], typestr: str, explicit: bool) -> None:
    array = np.zeros(shape, np.dtype(typestr))
    interface: dict[str, Any] = {"shape": array.shape, "typestr": typestr, "data": (0x1000, False), "version": 3}
    if explicit:
        interface["strides"] = array.strides
    view = view_tensor(InterfaceTensor(interface))
    assert view == TensorView(0x1000, TYPE_STRINGS[typestr], array.shape, tuple(s // array.itemsize for s in array.strides))
    assert view.byte_range() == (0x1000, 0x1000 + array.nbytes)


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), transpose=st.booleans())
def test_dlpack_view_is_where_the_array_is(shape: list[int], transpose: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    array = array.T if transpose else array
    view = view_tensor(DlpackTensor(array))
    assert view.pointer == array.ctypes.data
    assert (view.dtype, view.shape) == ("i32", array.shape)
    assert all(e == 1 or s == b // 4 for e, s, b in zip(view.shape, view.strides, array.strides, strict=True))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3), [1, 2], None, 7, DlpackTensor(np.zeros(2), ordinal=3), DlpackTensor(np.zeros(2, np.complex64)),
        InterfaceTensor({"shape": (2,), "typestr": "<V2", "data": (16, False), "version": 3}),
    ],
    ids=["numpy", "list", "none", "int", "other device", "complex", "opaque"],
)  # fmt: skip
def test_values_other_than_device_tensors_are_refused_by_name(value: object) -> None:
    with pytest.raises(LaunchError) as caught:
        view_tensor(value, kernel="k", argument="x")
    assert (caught.value.code, caught.value.argument) == ("E0914", "x")


class HalfExported(DlpackTensor):
    @property
    def __cuda_array_interface__(self) -> Any:
        raise TypeError("bfloat16 has no type string")


class NotExported:
    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("requires grad")


def test_a_tensor_that_one_protocol_cannot_represent() -> None:
    array = np.zeros(4, np.int16)
    assert view_tensor(HalfExported(array)).pointer == array.ctypes.data
    with pytest.raises(LaunchError, match="requires grad"):
        view_tensor(NotExported())


def test_read_only_tensor_may_be_read_but_not_written() -> None:
    interface = {"shape": (4,), "typestr": "<f4", "data": (4096, True), "version": 3}
    assert view_tensor(InterfaceTensor(interface)).read_only


def test_byte_strides_that_split_an_element() -> None:
    interface = {"shape": (4,), "typestr": "<f4", "strides": (6,), "data": (4096, False), "version": 3}
    with pytest.raises(LaunchError, match="whole elements"):
        view_tensor(InterfaceTensor(interface))


def test_array_round_trip_and_stream_ordered_release() -> None:
    driver = FakeDriver()
    device = Device(driver)
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = device.from_numpy(host.T, stream=9)
    assert np.array_equal(array.to_numpy(), host.T)
    array.fill(0xFF)
    assert np.isnan(array.to_numpy()).all()
    pointer = array.pointer
    del array
    gc.collect()
    assert driver.freed == [(pointer, 9)]


def test_bf16_with_and_without_an_extension_dtype() -> None:
    device = Device(FakeDriver())
    host = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    assert device.from_numpy(host).dtype == "bf16"
    array = device.from_numpy(host.view(np.uint16), "bf16")
    assert array.dtype == "bf16"
    assert np.array_equal(array.to_numpy().view(ml_dtypes.bfloat16), host)
    with pytest.raises(LaunchError):
        device.from_numpy(np.zeros(2, np.float32), "bf16")
    with pytest.raises(LaunchError):
        device.from_numpy(np.zeros(2, np.complex64))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("name", [None, "u8", "i4", "i8"])
def test_elements_of_four_bits_in_bytes_of_their_own_are_no_packed_ones(dtype: Any, name: str | None) -> None:
    """A byte of such an array has one element, a byte of a packed tensor two; a name does not change it."""
    with pytest.raises(LaunchError, match=r"\[E0904\].*in a byte of its own.*np\.uint8\) & 15"):
        Device(FakeDriver()).from_numpy(np.zeros(8).astype(dtype), name)


def test_names_of_packed_and_unknown_element_types() -> None:
    device = Device(FakeDriver())
    host = np.zeros(4, np.uint8)
    for name, required in (("i4", "`u8`, two elements in each"), ("int8", "one of `f32`, ")):
        with pytest.raises(LaunchError, match=rf"\[E0904\].*{required}"):
            device.from_numpy(host, name)
        with pytest.raises(LaunchError, match=rf"\[E0904\] *.*`{name}`.*{required}"):
            device.empty((4,), name)
    assert device.from_numpy(host).dtype == "u8"


def test_dlpack_of_four_bits_names_the_view_of_bytes() -> None:
    """As PyTorch exports float4_e2m1fn_x2: code 17, two lanes of 4 bits."""
    tensor = DLTensor()
    tensor.code, tensor.bits, tensor.lanes = 17, 4, 2
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    class Exported:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, *, stream: int) -> Any:
            return capsule(ctypes.addressof(tensor), b"dltensor", None)

    with pytest.raises(LaunchError, match=r"\[E0914\].*bytes of two each.*\.view\(torch\.uint8\).*\(17, 4 bits\)"):
        view_tensor(Exported(), argument="w")


def test_capsule_is_released_once() -> None:
    array = np.zeros(4, np.float32)
    before = ctypes.c_ssize_t.from_address(id(array)).value
    for _ in range(10):
        view_tensor(DlpackTensor(array))
    gc.collect()
    assert ctypes.c_ssize_t.from_address(id(array)).value == before
