"""Checks value obligations, which are bounds of the integers stored in a tensor; raises E0913 if one is not satisfied.

A kernel that indexes with loaded integers is proven under `values(tensor, low, high, ...)`. Reading device memory back is
costly, so the caller gives evidence: the values on the host, bounds known on the host, a callback that checks, or `TRUSTED`.
With `check_values` the launcher copies the tensor back and checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import ValueCheck
from tilec.ir.types import DTYPES
from tilec.runtime.dims import evaluate
from tilec.runtime.driver import Driver
from tilec.runtime.errors import LaunchError
from tilec.runtime.scalars import exact_integer
from tilec.runtime.tensors import TensorView


class Trust(Enum):
    """The type of `TRUSTED`."""

    TRUSTED = "trusted"


TRUSTED = Trust.TRUSTED
"""The caller vouches for the values; the plan records the tensor in `trusted`."""


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """Bounds known on the host: every stored value v satisfies `low <= v < high`; the values are distinct if `distinct`,
    those of each row (along the last axis) if `distinct_in_rows`, ascending (not strictly) if `sorted`; with `ends`, the first
    is `low` and the last `high - 1`."""

    low: int
    high: int
    distinct: bool = False
    sorted: bool = False
    ends: bool = False
    distinct_in_rows: bool = False


Evidence = ValueBounds | Trust | Callable[..., bool] | NDArray[Any] | list[int]
"""A callback gets (low, high, distinct), plus `distinct_in_rows=True`, `sorted=True` and `ends=True` if the kernel declares
these; it returns whether every value complies."""


def check_evidence(
    check: ValueCheck,
    env: Mapping[str, int],
    view: TensorView,
    evidence: Evidence | None,
    *,
    kernel: str,
    read_back: Callable[[TensorView], NDArray[Any]] | None,
) -> None:
    """Raise E0913 unless the evidence shows that the values comply; `read_back` copies a tensor to the host."""
    low, high = evaluate(check.low, env, kernel, "value bound"), evaluate(check.high, env, kernel, "value bound")
    required = f"{low} <= value < {high}{check.words}"
    if check.low.constant is None or check.high.constant is None:
        required += f" (`{check.low} <= value < {check.high}`)"

    def refuse(message: str, given: str) -> LaunchError:
        return LaunchError("E0913", message, kernel=kernel, argument=check.tensor, given=given, required=required)

    if evidence is None and read_back is not None:
        evidence = read_back(view)
    if evidence is None:
        missing = "nothing in `values` (a host array, `ValueBounds`, a callback or `TRUSTED`), and `check_values` is off"
        raise refuse("the range of the stored values is unknown", missing)
    if isinstance(evidence, Trust):
        return
    if isinstance(evidence, ValueBounds):
        _check_bounds(check, evidence, (low, high), refuse)
        return
    if callable(evidence):
        options = {name: True for name in ("distinct_in_rows", "sorted", "ends") if getattr(check, name)}
        if not evidence(low, high, check.distinct, **options):
            raise refuse("the caller's check refused the values", "a callback that returned false")
        return
    try:
        values = np.asarray(evidence)
    except (ValueError, TypeError, OverflowError) as error:
        raise refuse("the host values are not an array", str(error)) from None
    _check_array(check, values, (low, high), view.shape, refuse)


def _check_bounds(
    check: ValueCheck, stated: ValueBounds, ends: tuple[int, int], refuse: Callable[[str, str], LaunchError]
) -> None:
    try:
        low, high = exact_integer(stated.low), exact_integer(stated.high)
    except TypeError as error:
        raise refuse("the stated bounds are not integers", str(error)) from None
    if low < ends[0] or high > ends[1] or (check.ends and (low, high) != ends):
        raise refuse("the stated bounds differ from the declared ones" if check.ends else "the stated bounds are too wide",
                     f"{low} <= value < {high}")  # fmt: skip
    for name, property_text in (
        ("distinct", "are distinct"), ("distinct_in_rows", "of each row are distinct"), ("sorted", "are sorted"),
        ("ends", "reach both ends"),
    ):  # fmt: skip
        implied = name == "distinct_in_rows" and stated.distinct
        if getattr(check, name) and not (getattr(stated, name) or implied):
            raise refuse(f"the stated bounds do not say that the values {property_text}", f"`{name}=False`")


def _check_array(
    check: ValueCheck,
    values: NDArray[Any],
    ends: tuple[int, int],
    shape: tuple[int, ...],
    refuse: Callable[[str, str], LaunchError],
) -> None:
    low, high = ends
    if values.shape != shape:
        raise refuse("the host values are not those of this tensor", f"shape {values.shape} for a tensor of shape {shape}")
    if values.dtype.kind not in "iub":
        raise refuse("the host values are not integers", f"`{values.dtype}`")
    flat = values.reshape(-1)
    out_of_range = np.flatnonzero((flat < low) | (flat >= high))
    if out_of_range.size:
        where = tuple(int(part) for part in np.unravel_index(int(out_of_range[0]), shape))
        raise refuse("a stored value is out of range", f"value {int(flat[out_of_range[0]])} at index {list(where)}")
    if check.sorted:
        descents = np.flatnonzero(flat[1:] < flat[:-1])
        if descents.size:
            first = int(descents[0])
            before, after = int(flat[first]), int(flat[first + 1])
            raise refuse("the stored values are not sorted", f"value {before} at index {first}, then {after}")
    if check.ends and (flat[0] != low or flat[-1] != high - 1):
        raise refuse("the stored values do not reach both ends", f"{int(flat[0])} first and {int(flat[-1])} last")
    if check.distinct:
        order = np.argsort(flat, kind="stable")
        equal = np.flatnonzero(flat[order][1:] == flat[order][:-1])
        if equal.size:
            first, second = int(order[equal[0]]), int(order[equal[0] + 1])
            raise refuse("two stored values are equal", f"value {int(flat[first])} at flat indices {first} and {second}")
    if check.distinct_in_rows:
        rows = values.reshape(-1, shape[-1])
        order = np.argsort(rows, axis=1, kind="stable")
        ordered = np.take_along_axis(rows, order, axis=1)
        equal = np.argwhere(ordered[:, 1:] == ordered[:, :-1])
        if equal.size:
            row, at = (int(part) for part in equal[0])
            first, second = int(order[row, at]), int(order[row, at + 1])
            given = f"value {int(rows[row, first])} at flat indices {row * shape[-1] + first} and {row * shape[-1] + second}"
            raise refuse("two stored values of a row are equal", given)


def read_back(driver: Driver, stream: int) -> Callable[[TensorView], NDArray[Any]]:
    """A function that copies a contiguous integer tensor to the host and waits for it."""

    def copy(view: TensorView) -> NDArray[Any]:
        start, end = view.byte_range()
        raw = np.empty(end - start, np.uint8)
        driver.copy_to_host(raw.ctypes.data, start, raw.nbytes, stream)
        driver.synchronize(stream)
        size = view.item_bytes
        typed = raw[view.pointer - start :].view(DTYPES[view.dtype].storage)
        return np.lib.stride_tricks.as_strided(typed, view.shape, tuple(stride * size for stride in view.strides)).copy()

    return copy
