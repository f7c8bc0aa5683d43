"""Checks scalar arguments: converts a Python or NumPy number to the declared dtype and its bytes."""

from __future__ import annotations

import math
import operator
import struct
from typing import Any, Final

import numpy as np

from tilec.artifact.records import ScalarSpec
from tilec.ir.types import DTYPES, DType
from tilec.runtime.errors import LaunchError, shown

_FORMATS: Final = {1: "b", 2: "h", 4: "i", 8: "q"}


def _format(dtype: DType) -> str:
    if dtype.kind == "b":
        return "?"
    letter = _FORMATS[dtype.bytes]
    return letter.upper() if dtype.kind == "u" else letter


PACKING: Final = {name: _format(dtype) for name, dtype in DTYPES.items() if not dtype.is_float}
"""Format characters of the `struct` module for integers and bool."""


def exact_integer(value: Any) -> int:
    """An integer of any kind (Python, NumPy, an array of rank 0) as a Python integer, which never wraps. TypeError for floats,
    bools and arrays of other ranks."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or str(getattr(value, "dtype", "")) == "bool":
        raise TypeError(f"`{shown(value)}` is a bool, not an integer")
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError(f"`{shown(value)}` of type `{type(value).__name__}` is not an integer") from None


def check_scalar(spec: ScalarSpec, value: Any, kernel: str) -> int | float:
    """The value as a Python number; E0912 if it has another type or does not fit."""
    dtype = DTYPES[spec.dtype]

    def refuse(message: str, required: str) -> LaunchError:
        given = f"`{shown(value)}` of type `{type(value).__name__}`"
        return LaunchError("E0912", message, kernel=kernel, argument=spec.name, given=given, required=required)

    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # NumPy's bool has either name
    if dtype.is_float:
        if is_bool or not isinstance(value, (int, float, np.integer, np.floating)):
            raise refuse("not a number", f"a number for `{dtype}`")
        try:
            number = float(value)  # pyright: ignore[reportUnknownArgumentType]
        except OverflowError:
            raise refuse("does not fit", f"a value of `{dtype}`") from None
        if math.isfinite(number) and abs(number) > dtype.largest:
            raise refuse("does not fit", f"a value of `{dtype}`, at most {dtype.largest:g}")
        return number
    if dtype.kind == "b":
        if not is_bool:
            raise refuse("not a bool", "`True` or `False`")
        return int(bool(value))
    if is_bool:
        raise refuse("a bool where an integer belongs", f"an integer for `{dtype}`")
    try:
        integer = exact_integer(value)
    except TypeError:
        raise refuse("not an integer", f"an integer for `{dtype}`") from None
    low, high = dtype.integer_range()
    if not low <= integer <= high:
        raise refuse("does not fit", f"{low} to {high} (`{dtype}`)")
    return integer


def pack_scalar(dtype: str, value: int | float) -> bytes:
    """Little-endian bytes of a checked scalar; floats are rounded to nearest even."""
    if dtype in PACKING:
        return struct.pack("<" + PACKING[dtype], value)
    if dtype == "f16":
        return np.float16(value).tobytes()
    bits = int(np.float32(value).view(np.uint32))
    if dtype == "bf16":
        if math.isnan(value):
            return struct.pack("<H", (bits >> 16) | 0x40)
        return struct.pack("<H", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
    if dtype == "f32":
        return struct.pack("<I", bits)
    raise ValueError(f"a scalar of `{dtype}` has no calling convention")
