"""Fake tensors of PyTorch as the launch contract sees them: shapes, strides and shared memory, without addresses.

A size that is symbolic is checked at the value it was traced with, which adds no guard to the trace: a compiled model keeps its
dynamic shapes, and the launcher checks every later size. A size that depends on data has no such value, and is left to the
launcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tilec.runtime import LaunchError, TensorView
from tilec.runtime.tensors import contiguous_strides

DEVICES: Final = ("cuda", "meta")
"""Device types of a fake tensor; one of the host would be refused at run time."""


def traced_number(value: Any) -> Any:
    """The value itself; of a symbolic number, the value it was traced with; None if that depends on data."""
    node = getattr(value, "node", None)
    return value if node is None else getattr(node, "hint", None)


def traced_view(dtype: str, shape: tuple[Any, ...], strides: tuple[Any, ...] | None = None) -> TensorView | None:
    """The view of a tensor without an address; contiguous without `strides`. None if a size depends on data."""
    sizes = tuple(map(traced_number, shape))
    if None in sizes:
        return None
    steps = contiguous_strides(sizes) if strides is None else tuple(map(traced_number, strides))
    return None if None in steps else TensorView(0, dtype, sizes, steps)


def check_devices(kernel: str, tensors: Mapping[str, Any]) -> None:
    """E0914 unless all fake tensors are on one device that a kernel can run on."""
    first = next(iter(tensors.values())).device
    for name, tensor in tensors.items():
        if tensor.device != first or first.type not in DEVICES:
            required = f"`{first}`, as the first tensor" if first.type in DEVICES else "a CUDA device: `.cuda()`"
            raise LaunchError(
                "E0914", "the tensor is on another device", kernel=kernel, argument=name, given=f"`{tensor.device}`",
                required=required,
            )  # fmt: skip


def check_overlaps(kernel: str, tensors: Mapping[str, Any], views: Mapping[str, TensorView], written: frozenset[str]) -> None:
    """E0909 if a written tensor shares bytes of a storage with another argument."""
    used: dict[str, tuple[Any, int, int]] = {}
    for name, tensor in tensors.items():
        with suppress(AttributeError, NotImplementedError, RuntimeError):  # a subclass without storage
            offset = traced_number(tensor.storage_offset())
            if offset is not None:
                low, end = views[name].span()
                start = offset * views[name].item_bytes
                used[name] = tensor.untyped_storage()._cdata, start + low, start + end
    names = list(used)
    for index, left in enumerate(names):
        for right in names[index + 1 :]:
            (storage, a, b), (other, c, d) = used[left], used[right]
            if storage == other and a < d and c < b and (left in written or right in written):
                raise LaunchError(
                    "E0909", f"overlaps `{right}` in memory", kernel=kernel, argument=left,
                    given=f"bytes {a} to {b} of a storage, and `{right}` bytes {c} to {d} of the same",
                    required=f"memory of its own: `{left}.clone()`",
                )  # fmt: skip
