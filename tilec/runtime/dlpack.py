"""Exports device memory to other libraries in place: a DLPack capsule for a view, with the owner of its memory.

The structures are those of dlpack.h, version 1.1. A capsule that is never consumed frees itself. A consumed one (renamed
`used_...`) is freed by its consumer through `deleter`, from any thread. The owner of the memory is kept alive until then.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from tilec.runtime.tensors import DLPACK_CODES, DLTensor, TensorView

VERSION: Final = (1, 1)
CUDA: Final = 2
"""DLPack's device type of CUDA memory."""


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("version", _Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_exports: dict[int, tuple[Any, ...]] = {}
"""Objects that an export keeps alive until it is freed, by its address."""


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free(address: int) -> None:
    _exports.pop(address, None)


_api: Final = ctypes.pythonapi
_Destructor: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
# A capsule under destruction is known only by its address: no reference to it may be created.
_is_valid: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@_Destructor
def _destroy_capsule(capsule: int) -> None:
    for name in NAMES:
        if _is_valid(capsule, name):
            _exports.pop(_get_pointer(capsule, name), None)


NAMES: Final = (b"dltensor", b"dltensor_versioned")


def export(view: TensorView, owner: Any, device: int, *, versioned: bool) -> Any:
    """A capsule for the memory of `view` on CUDA device `device`; it keeps `owner` alive."""
    rank = len(view.shape)
    extents = (ctypes.c_int64 * max(1, 2 * rank))(*view.shape, *view.strides)
    managed = _ManagedVersioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = view.pointer, CUDA, device, rank
    tensor.code, tensor.bits = DLPACK_CODES[view.dtype]
    tensor.lanes, tensor.byte_offset = 1, 0
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(ctypes.addressof(extents) + 8 * rank, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_free, ctypes.c_void_p)
    if isinstance(managed, _ManagedVersioned):
        managed.version.major, managed.version.minor = VERSION
    address = ctypes.addressof(managed)
    _exports[address] = (managed, extents, owner)
    return _new_capsule(address, NAMES[versioned], ctypes.cast(_destroy_capsule, ctypes.c_void_p))
