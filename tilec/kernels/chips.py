"""What is prebuilt for the current device, where chips differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from tilec.ops.kernels import current_device
from tilec.runtime import LaunchError
from tilec.runtime.driver import DriverError

Choice = TypeVar("Choice")


@cache
def _architecture(ordinal: int) -> str:
    return current_device().architecture


def of_architecture(most: Choice, others: Mapping[str, Choice]) -> Choice:
    """What `others` has for the current device, by the first letters of its architecture, such as `sm_10`; else, and without a
    device, as when tracing, `most`."""
    try:
        return others.get(_architecture(current_device().ordinal)[:5], most)
    except (DriverError, LaunchError):
        return most
