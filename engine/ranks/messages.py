"""Arrays in the messages between the process of the engine and those of ranks, which are lines of JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DATA: Final = "data"


def encoded(value: Any) -> Any:
    """A number, or an array or list of them, as JSON."""
    if isinstance(value, (int, float)):
        return value
    array: NDArray[Any] = np.asarray(value)
    array = array.astype(np.int32) if array.dtype == np.int64 else array  # Python's integers; those of steps have 32 bits
    raw = b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), DATA: raw}


def decoded(value: Any) -> Any:
    """What `encoded` had."""
    if not isinstance(value, dict):
        return value
    record: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return np.frombuffer(b64decode(record[DATA]), np.dtype(record["dtype"])).reshape(record["shape"])


def encoded_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """`encoded` of each value."""
    return {name: encoded(value) for name, value in values.items()}


def decoded_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """`decoded` of each value."""
    return {name: decoded(value) for name, value in values.items()}
