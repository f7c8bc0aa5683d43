"""Converts any device tensor to a `TensorView` of pointer, dtype, shape and strides.

Three protocols are supported: `DeviceArray` (its `tensor_view`), `__cuda_array_interface__`, and `__dlpack__`. The CUDA array
interface has no bf16 or f8 dtype, so opaque elements are resolved through DLPack.
"""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Final

from tilec.ir.types import DTYPES
from tilec.runtime.errors import LaunchError, shown
from tilec.runtime.scalars import exact_integer

TYPE_STRINGS: Final = {
    f"{order}{dtype.kind}{dtype.bytes}": name
    for name, dtype in DTYPES.items()
    for order in ("<|" if dtype.bytes == 1 else "<")
    if not dtype.extension
}
"""Type strings of the CUDA array interface, which are those of the NumPy array interface."""
DLPACK_TYPES: Final = {(dtype.dlpack, 8 * dtype.bytes): name for name, dtype in DTYPES.items()}
"""Dtypes by DLPack's type code and bits."""
DLPACK_CODES: Final = {name: code for code, name in DLPACK_TYPES.items()}
DLPACK_CUDA: Final = frozenset({2, 13})
"""DLPack device types that a kernel can address: CUDA and CUDA managed memory."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """Device memory as a tensor: `pointer` is the address of element 0, `strides` are in elements, one per dim."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool = False

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].bytes

    def byte_range(self) -> tuple[int, int]:
        """First byte accessed and one past the last; empty if a dim is 0."""
        first, end = self.span()
        return self.pointer + first, self.pointer + end

    def span(self) -> tuple[int, int]:
        """`byte_range` relative to the pointer."""
        if 0 in self.shape:
            return 0, 0
        if min(self.shape, default=1) > 0 and self.strides == contiguous_strides(tuple(self.shape)):
            return 0, prod(self.shape) * self.item_bytes
        steps = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(step for step in steps if step < 0)
        high = sum(step for step in steps if step > 0)
        return low * self.item_bytes, (high + 1) * self.item_bytes

    def is_contiguous(self) -> bool:
        """Whether it is row-major without gaps; the stride of a dim of extent 1 is ignored."""
        expected = contiguous_strides(tuple(self.shape))
        return self.strides == expected or all(
            e == 1 or s == w for e, s, w in zip(self.shape, self.strides, expected, strict=True)
        )


@lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def view_tensor(value: Any, *, kernel: str = "", argument: str = "", device: int = 0) -> TensorView:
    """The view of a device tensor; E0914 if `value` is not one, or is in host memory or on another device."""

    def refuse(message: str, given: str) -> LaunchError:
        required = "a device tensor (`__cuda_array_interface__`, `__dlpack__` or `DeviceArray`)"
        return LaunchError("E0914", message, kernel=kernel, argument=argument, given=given, required=required)

    if isinstance(value, TensorView):
        return _exact(value, refuse)
    to_view = getattr(value, "tensor_view", None)
    if to_view is not None:
        return _exact(to_view(), refuse)
    kind = type(value).__module__ + "." + type(value).__qualname__
    # Frameworks raise errors of several types for a tensor or element type that one of the two protocols cannot represent.
    interface: Any = None
    failure = ""
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
    except Exception as error:
        failure = f" ({error})"
    fields: dict[str, Any] | None = interface if isinstance(interface, dict) else None  # pyright: ignore[reportUnknownVariableType]
    typestr = None if fields is None else fields.get("typestr")
    if fields is not None and isinstance(typestr, str) and typestr in TYPE_STRINGS:
        try:
            return _exact(_from_interface(fields, refuse, kind), refuse)
        except (TypeError, ValueError, KeyError) as error:
            raise refuse("its array interface is malformed", f"`{kind}` ({error})") from None
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        device_type, ordinal = (int(part) for part in value.__dlpack_device__())
        if device_type not in DLPACK_CUDA:
            raise refuse("the tensor is in host memory", f"`{kind}` on DLPack device type {device_type}")
        if ordinal != device:
            raise refuse("the tensor is on another device", f"device {ordinal}, the kernel is loaded on device {device}")
        # Stream -1 asks the producer not to synchronise: as for every other argument, the caller orders work on the stream.
        try:
            capsule = value.__dlpack__(stream=-1)
        except Exception as error:
            raise refuse("the tensor cannot be exported", f"`{kind}` ({error})") from None
        return _from_dlpack(capsule, refuse, kind)
    if fields is not None:
        raise refuse("the element type is unknown", f"`{kind}` of type string {shown(typestr, 60)}")
    raise refuse("the tensor cannot be exported" if failure else "not a device tensor", f"`{kind}`{failure}")


_PYTHON_INTEGERS: Final = {int}
_LARGEST: Final = 1 << 127
"""Bound of addresses, extents and strides: above 64 bits in any unit, and printable."""


def _exact(view: TensorView, refuse: Any) -> TensorView:
    """The view with Python integers: NumPy's wrap, and the clauses of a contract are about unbounded integers."""
    if len(view.shape) != len(view.strides):
        raise refuse("it needs one stride per dim", f"{len(view.strides)} strides for {len(view.shape)} dims")
    numbers = (view.pointer, *view.shape, *view.strides)
    if set(map(type, numbers)) == _PYTHON_INTEGERS and min(numbers) > -_LARGEST and max(numbers) < _LARGEST:
        return view
    try:
        exact = [exact_integer(number) for number in numbers]
    except TypeError as error:
        raise refuse("its address, shape and strides must be integers", str(error)) from None
    if not -_LARGEST < min(exact) <= max(exact) < _LARGEST:
        raise refuse("its address, shape and strides must fit 64 bits", shown(max(exact, key=abs), 60))
    rank = len(view.shape)
    return replace(view, pointer=exact[0], shape=tuple(exact[1 : rank + 1]), strides=tuple(exact[rank + 1 :]))


def _from_interface(interface: dict[str, Any], refuse: Any, kind: str) -> TensorView:
    dtype = TYPE_STRINGS[interface["typestr"]]
    shape = tuple(operator.index(extent) for extent in interface["shape"])
    size = DTYPES[dtype].bytes
    byte_strides = interface.get("strides")
    if byte_strides is None:
        strides = contiguous_strides(shape)
    else:
        if any(operator.index(stride) % size for stride in byte_strides):
            raise refuse("the strides are not whole elements", f"`{kind}` with byte strides {tuple(byte_strides)}")
        strides = tuple(operator.index(stride) // size for stride in byte_strides)
    pointer, read_only = interface["data"]
    return TensorView(int(pointer or 0), dtype, shape, strides, bool(read_only))


class DLTensor(ctypes.Structure):
    """The `DLTensor` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _from_dlpack(capsule: Any, refuse: Any, kind: str) -> TensorView:
    # The capsule is not consumed, so its own destructor releases the export; the caller keeps the tensor alive.
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    dtype = DLPACK_TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None and tensor.bits == 4:
        raise refuse("elements of 4 bits are passed as bytes of two each, as `.view(torch.uint8)` has them",
                     f"`{kind}` of DLPack type ({tensor.code}, 4 bits)")  # fmt: skip
    if dtype is None:
        raise refuse("the element type is unknown", f"`{kind}` of DLPack type ({tensor.code}, {tensor.bits} bits)")
    shape = tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim))
    strides = tuple(int(tensor.strides[axis]) for axis in range(tensor.ndim)) if tensor.strides else contiguous_strides(shape)
    return TensorView(int(tensor.data or 0) + int(tensor.byte_offset), dtype, shape, strides)
