"""Launches of one kernel at shapes that were checked before: only addresses and free scalars are given per launch.

A `Plan` is for tensors at fixed addresses. A `Prepared` is for any tensors of the same shapes and strides, and for any values
of scalars that no clause of the contract depends on: clauses that depend on the rest were checked when it was made, and
`launch` checks those that depend on addresses (alignment, overlaps, valid memory). So every launch satisfies the whole
contract. It is thread-safe and may be captured in a CUDA graph.

Tensor maps are encoded once, when a `Prepared` is made: a map of another tensor of the same shape and strides differs in its
address alone, which the driver replaces in place (CUDA driver API, `cuTensorMapReplaceAddress`) for a small part of the time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tilec.artifact.records import Manifest, ScalarSpec
from tilec.ir.facts.tensor_maps import MAP_ALIGNMENT, MAP_BYTES
from tilec.ir.types import DTYPES
from tilec.runtime.contract import ADDRESSES, Launch, check_launch
from tilec.runtime.kernel import Kernel, addresses, packed_arguments
from tilec.runtime.scalars import PACKING, pack_scalar
from tilec.runtime.tensor_maps import MAP_UNIT, request_of
from tilec.runtime.tensors import TensorView

Storage = tuple["memoryview[int]", "memoryview[float]", int, list[list[int]], Any]
"""Of one launch: the arguments as 64-bit words and as f32, the address of the array of their addresses, for each tensor map its
address, the index of its tensor and the address that it has now, and the buffer that keeps all of it alive."""


def free_scalars(manifest: Manifest) -> tuple[ScalarSpec, ...]:
    """The scalars that no clause of the contract depends on, in manifest order: all, such as the seed of a random mask, or the
    floats alone if a clause names an integer."""
    extents = [expr for spec in manifest.tensors for expr in (*spec.dims, *(spec.strides or ()))]
    ranges = [expr for check in manifest.value_checks for expr in (check.low, check.high)]
    conditions = [check.condition for check in manifest.launch_checks]
    named = {name for expr in (*extents, *ranges, *conditions, *manifest.grid) for name in expr.symbols()}
    named |= {slot.name for slot in manifest.abi if slot.kind in ("dim", "stride")}
    is_free = named.isdisjoint(spec.name for spec in manifest.scalars)
    return tuple(spec for spec in manifest.scalars if is_free or DTYPES[spec.dtype].is_float)


class Prepared:
    """`launch` is that of a checked plan. `fresh` names tensors that the caller allocates anew for every launch, so that no
    other tensor can overlap them. `scalars`: those of `free_scalars` that each launch gives anew; the floats if left out."""

    def __init__(
        self, kernel: Kernel, launch: Launch, fresh: Collection[str] = (), scalars: tuple[ScalarSpec, ...] | None = None
    ) -> None:  # fmt: skip
        manifest = kernel.manifest
        self.kernel, self.grid, self._launch = kernel, kernel.launched(launch.grid), launch
        self._enqueue, self._function = kernel.device.driver.launch, kernel.function
        self._block, self._shared = kernel.block, kernel.shared
        self._move = kernel.device.driver.move_tensor_map
        self._free: list[Storage] = []
        self._maps = kernel.maps.of_launch(launch.views)
        self._image = struct.pack(kernel.argument_format, *packed_arguments(manifest, launch))
        floats = tuple(spec for spec in manifest.scalars if DTYPES[spec.dtype].is_float)
        self.scalars = floats if scalars is None else scalars
        """The scalars that `launch` accepts."""
        tensors = {spec.name: index for index, spec in enumerate(manifest.tensors)}
        order = {spec.name: (index, spec.dtype) for index, spec in enumerate(self.scalars)}
        slots = list(enumerate(manifest.abi))
        self._pointers = tuple((position, tensors[slot.name]) for position, slot in slots if slot.kind == "pointer")
        self._mapped = [(slot.name, tensors[slot.name]) for slot in manifest.abi if slot.kind == "tensor_map"]
        given = [(position, *order[slot.name]) for position, slot in slots if slot.kind == "scalar" and slot.name in order]
        self._singles = tuple((2 * position, index) for position, index, dtype in given if dtype == "f32")
        self._integers = tuple(
            (position, index, (1 << 8 * DTYPES[dtype].bytes) - 1) for position, index, dtype in given if dtype in PACKING
        )
        self._halves = tuple(one for one in given if one[2] != "f32" and one[2] not in PACKING)
        spans = {name: (low - view.pointer, end - view.pointer) for name, view in launch.views.items()
                 for low, end in [view.byte_range()]}  # fmt: skip
        self._no_alias = tuple(
            (tensors[left], tensors[right], spans[left], spans[right])
            for left, right in manifest.no_alias
            if left not in fresh and right not in fresh
        )
        self._unaligned = max((spec.align for spec in manifest.tensors), default=1) - 1
        if self._mapped:
            self._unaligned |= MAP_UNIT - 1
        # Limit of the OR of all addresses, valid for every tensor. Tensors with bytes before their pointer are always checked.
        self._highest = -1 if any(low for low, _ in spans.values()) else ADDRESSES - max(end for _, end in spans.values())

    def launch(self, stream: int, pointers: Sequence[int], scalars: Sequence[float] = ()) -> None:
        """Enqueue on a stream handle. `pointers` are addresses in the order of the manifest's tensors, `scalars` values of
        `Prepared.scalars`, in the range of their dtypes. LaunchError E0908, E0909 or E0914 if an address violates the
        contract."""
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits & self._unaligned or bits > self._highest or 0 in pointers:
            self.check(pointers)
        for left, right, (a, b), (c, d) in self._no_alias:
            first, second = pointers[left], pointers[right]
            if first + a < second + d and second + c < first + b:
                self.check(pointers)
        try:
            words, singles, parameters, maps, _ = storage = self._free.pop()
        except IndexError:
            words, singles, parameters, maps, _ = storage = self._storage()
        for position, index in self._pointers:
            words[position] = pointers[index]
        for position, index in self._singles:
            singles[position] = scalars[index]
        for position, index, mask in self._integers:
            words[position] = int(scalars[index]) & mask
        for position, index, dtype in self._halves:
            words[position] = int.from_bytes(pack_scalar(dtype, scalars[index]), "little")
        for one in maps:
            pointer = pointers[one[1]]
            if pointer != one[2]:
                self._move(one[0], pointer)
                one[2] = pointer
        self._enqueue(self._function, self.grid, self._block, self._shared, stream, parameters, False)
        self._free.append(storage)  # the driver has copied the arguments; if anything raised, the storage is dropped

    def _views(self, pointers: Sequence[int]) -> dict[str, TensorView]:
        pairs = zip(self._launch.views.items(), pointers, strict=True)
        return {name: replace(view, pointer=pointer) for (name, view), pointer in pairs}

    def check(self, pointers: Sequence[int]) -> None:
        """LaunchError unless addresses satisfy the whole contract: each tensor its own alignment, which `launch` does not
        distinguish."""
        manifest, device, launch = self.kernel.manifest, self.kernel.device, self._launch
        scalars = {spec.name: launch.scalars[spec.name] for spec in manifest.scalars}
        bools = {spec.name: bool(scalars[spec.name]) for spec in manifest.scalars if spec.dtype == "bool"}
        dims = {slot.name: launch.env[slot.name] for slot in manifest.abi if slot.kind == "dim" and slot.name not in scalars}
        views = self._views(pointers)
        arguments = views | scalars | bools
        check_launch(manifest, arguments, dims=dims, device=device.ordinal, checked=self.kernel.checked)
        for spec in manifest.tensor_maps:
            request_of(spec, views[spec.tensor], manifest.kernel)

    def _storage(self) -> Storage:
        """Storage of one launch: eight bytes per argument, the array of their addresses, then tensor maps."""
        count = len(self.kernel.manifest.abi)
        argument_bytes = 8 * max(1, count)
        size = 2 * argument_bytes + (MAP_ALIGNMENT + len(self._maps) if self._mapped else 0)
        buffer = ctypes.create_string_buffer(self._image.ljust(argument_bytes, b"\0"), size)
        base = ctypes.addressof(buffer)
        first = base + 2 * argument_bytes + -(base + 2 * argument_bytes) % MAP_ALIGNMENT
        ctypes.memmove(first, self._maps, len(self._maps))
        struct.pack_into(f"<{count}Q", buffer, argument_bytes, *addresses(self.kernel.manifest, base, base, first))
        arguments = memoryview(buffer).cast("B")[:argument_bytes]
        maps = [
            [first + MAP_BYTES * number, index, self._launch.views[name].pointer]
            for number, (name, index) in enumerate(self._mapped)
        ]
        return arguments.cast("Q"), arguments.cast("f"), base + argument_bytes, maps, buffer
