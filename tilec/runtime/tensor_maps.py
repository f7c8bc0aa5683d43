"""Encodes the tensor maps of a launch: 128 bytes each, from a manifest and tensors that satisfy its contract (CUDA driver API,
`cuTensorMapEncodeTiled`).

A map covers exactly the whole tensor, so a kernel accesses only memory that the contract checked, and reads zeros elsewhere. A
tensor that cannot have a map is refused (E0918). Maps are cached by address and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tilec.artifact.records import Manifest, TensorMapSpec
from tilec.ir.facts.tensor_maps import MAP_BYTES
from tilec.runtime.errors import LaunchError
from tilec.runtime.tensors import TensorView

MAX_CACHED_MAPS: Final = 1024
"""Maximum number of cached maps per kernel."""
MAP_UNIT: Final = 16
"""Required alignment in bytes of the base and the strides of a mapped tensor."""
MAX_STRIDE: Final = 1 << 40
"""Upper bound (exclusive) of a map's stride in bytes."""
MAX_EXTENT: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class TensorMapRequest:
    """The driver's parameters of a map, innermost axis first: `strides` (bytes) of all axes but the innermost, `box` in
    elements per copy, `swizzle` in bytes."""

    pointer: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class Encoder(Protocol):
    """The part of a driver that encodes maps."""

    def encode_tensor_map(self, request: TensorMapRequest) -> bytes:
        """The 128 bytes of a map."""
        ...


class TensorMaps:
    """The tensor maps of one kernel."""

    def __init__(self, manifest: Manifest, driver: Encoder) -> None:
        self._kernel, self._specs, self._driver = manifest.kernel, manifest.tensor_maps, driver
        self.any = bool(manifest.tensor_maps)
        self._cache: dict[TensorMapRequest, bytes] = {}
        self._columns: dict[tuple[Any, ...], tuple[bytes, ...]] = {}

    def of_launch(self, views: Mapping[str, TensorView]) -> bytes:
        """All maps of a launch, concatenated in the order of the manifest. LaunchError E0918 if a tensor cannot have one."""
        return b"".join([self._encoded(request_of(spec, views[spec.tensor], self._kernel)) for spec in self._specs])

    def of_launches(self, views: Mapping[str, TensorView], addresses: Mapping[str, tuple[int, ...]]) -> tuple[bytes, ...]:
        """The same for several launches whose tensors equal `views` except for their addresses (`addresses`: the addresses of
        all launches, by name). Cached per tensor and addresses. Empty if the kernel has no maps."""
        columns = [self._column(spec, views[spec.tensor], addresses[spec.tensor]) for spec in self._specs]
        return tuple(map(b"".join, zip(*columns, strict=True)))

    def _column(self, spec: TensorMapSpec, view: TensorView, pointers: tuple[int, ...]) -> tuple[bytes, ...]:
        """The maps of one tensor in all launches."""
        key = spec, view.dtype, view.shape, view.strides, pointers
        column = self._columns.get(key)
        if column is None:
            request = request_of(spec, view, self._kernel)
            encoded: dict[int, bytes] = {}
            for pointer in dict.fromkeys(pointers):
                if pointer % MAP_UNIT:
                    request_of(spec, replace(view, pointer=pointer), self._kernel)  # raises for the misaligned address
                encoded[pointer] = self._encoded(replace(request, pointer=pointer))
            column = tuple(encoded[pointer] for pointer in pointers)
            if len(self._columns) >= MAX_CACHED_MAPS:
                self._columns.clear()
            self._columns[key] = column
        return column

    def _encoded(self, request: TensorMapRequest) -> bytes:
        encoded = self._cache.get(request)
        if encoded is None:
            encoded = self._driver.encode_tensor_map(request)
            if len(encoded) != MAP_BYTES:
                raise LaunchError("E0915", "the driver's tensor map has an unexpected size", given=f"{len(encoded)} bytes")
            if len(self._cache) >= MAX_CACHED_MAPS:
                self._cache.clear()
            self._cache[request] = encoded
        return encoded


def request_of(spec: TensorMapSpec, view: TensorView, kernel: str) -> TensorMapRequest:
    """The parameters of a tensor's map; LaunchError E0918 if it cannot have one."""

    def refuse(given: str, required: str) -> LaunchError:
        return LaunchError(
            "E0918", "it cannot have a tensor map", kernel=kernel, argument=spec.tensor, given=given, required=required
        )  # fmt: skip

    size = view.item_bytes
    if view.pointer % MAP_UNIT:
        raise refuse(f"address {view.pointer:#x}", f"a multiple of {MAP_UNIT} bytes")
    if any(not 1 <= extent <= MAX_EXTENT for extent in view.shape):
        raise refuse(f"shape {list(view.shape)}", f"1 to {MAX_EXTENT} elements on every axis")
    if view.strides[-1] != 1 and view.shape[-1] != 1:
        raise refuse(f"strides {list(view.strides)}", "the elements of the last axis side by side")
    strides: list[int] = []
    row = view.shape[-1] * size
    for stride, extent in reversed(list(zip(view.strides, view.shape, strict=True))[:-1]):
        fits = (stride * size) % MAP_UNIT == 0 and 0 < stride * size < MAX_STRIDE
        # The stride of an axis of extent 1 is never used; if it is not valid for a map, the dense stride replaces it.
        strides.insert(0, stride * size if fits or extent != 1 else -(-row // MAP_UNIT) * MAP_UNIT)
        row = max(row, strides[0] * extent)
    if any(stride % MAP_UNIT or not 0 < stride < MAX_STRIDE for stride in strides):
        required = f"multiples of {MAP_UNIT // size} elements on all axes but the last, above 0 and below 2^40 bytes"
        raise refuse(f"strides {list(view.strides)} for shape {list(view.shape)}", required)
    return TensorMapRequest(view.pointer, view.dtype, view.shape[::-1], tuple(strides[::-1]), spec.box[::-1], spec.swizzle)
