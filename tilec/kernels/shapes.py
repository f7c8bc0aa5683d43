"""Tensors in the shape that kernels take, and errors for sizes that they do not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

from tilec.ir.types import MAX_DIM

Found = TypeVar("Found")
MOST_REMEMBERED: Final = 1024
"""Most arguments of a check that are remembered."""
ALIGNMENT: Final = 16
"""Bytes of which the address of every tensor of a kernel is a multiple."""


def _never() -> bool:
    return False


_traced: Callable[[], bool] = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_dynamo_compiling", _never)
"""Whether Dynamo traces the call."""


def remembered(check: Callable[..., Found]) -> Callable[..., Found]:
    """A check of shapes, dtypes and numbers, whose result is remembered for equal ones. It must depend on nothing else: what
    holds of addresses, strides and elements is checked at every call. Errors, traced calls and symbolic sizes are not
    remembered."""
    results: dict[Any, Found] = {}

    @wraps(check)
    def call(*given: Any) -> Found:
        if _traced():
            return check(*given)
        try:
            found = results.get(given)
        except TypeError:  # a symbolic size has no hash
            return check(*given)
        if found is None:
            found = check(*given)
            if len(results) >= MOST_REMEMBERED:
                results.clear()
            results[given] = found
        return found

    return call


def flat(name: str, x: Any) -> Any:
    """The elements of `x`, an argument called `name`, along one axis without gaps: a view if possible, else a copy.
    ValueError if there are more than a kernel takes."""
    if x.numel() > MAX_DIM:
        raise ValueError(f"`{name}` has {x.numel()} elements; a kernel takes at most {MAX_DIM}")
    return whole(x if x.ndim == 1 else x.reshape(-1))


def shaped(x: Any, shape: Any) -> Any:
    """The elements of `x` in another shape: `x` itself if it has that, else a view if possible, else a copy."""
    return x if x.shape == shape else x.reshape(shape)


def whole(x: Any) -> Any:
    """`x` without gaps and at an address that kernels take: itself if possible, else a copy."""
    return x if x.is_contiguous() and is_aligned(x) else copied(x)


def rows_of(function: str, x: Any, limit: int | None = None, name: str = "x") -> Any:
    """`x`, an argument called `name`, as rows of its last axis, for a function; ValueError if there is none or it is longer
    than `limit`."""
    if len(x.shape) == 0:
        raise ValueError(f"{function}: `{name}` has no axes; at least 1 is needed")
    if limit is not None and x.shape[-1] > limit:
        raise ValueError(f"{function}: the last axis of `{name}` has {x.shape[-1]} elements; at most {limit} are supported")
    return whole(x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


def copied(x: Any) -> Any:
    """A copy of `x` without gaps, in memory of its own. Axes of one element have the strides of an array without gaps, which
    `clone` does not promise."""
    return x.reshape(-1).clone().reshape(x.shape) if x.is_contiguous() else x.contiguous()


def is_aligned(x: Any) -> bool:
    """Whether `x` begins at a whole vector of its storage, which begins at one. Dynamo traces no offsets or addresses, and
    wrapped tensors have no address: what remains unaligned, the launcher refuses (E0908)."""
    return _traced() or x.storage_offset() * x.element_size() % ALIGNMENT == 0


def zeros(like: Any, *others: Any) -> Any:
    """0 in the shape of a tensor, with a gradient of 0 for it and for `others` of its dtype, whatever their elements."""
    nothing = like.reshape(-1)[:0].sum()
    for other in others:
        nothing = nothing + other.reshape(-1)[:0].sum()
    return like.new_zeros(like.shape) + nothing
