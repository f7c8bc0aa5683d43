"""Launches of one kernel at shapes that were checked before: only addresses and free scalars are given per launch.

A `Plan` is for tensors at fixed addresses. A `Prepared` is for any tensors of the same shapes and strides, and for any values
of scalars that no clause of the contract depends on: clauses that depend on the rest were checked when it was made, and
`launch` checks those that depend on addresses (alignment, overlaps, valid memory). So every launch satisfies the whole
contract. It is thread-safe and may be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from tilec.artifact.records import Manifest, ScalarSpec
from tilec.ir.types import DTYPES
from tilec.runtime.contract import ADDRESSES, Launch, check_launch
from tilec.runtime.kernel import Kernel, Plan, addresses, packed_arguments
from tilec.runtime.scalars import pack_scalar

MAX_PLANS: Final = 64
"""Maximum number of cached launches with tensor maps: encoding maps dominates the host's time, and addresses recur."""


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
        self._free: list[tuple[memoryview[int], memoryview[float], int, Any]] = []
        self._map_plans: dict[tuple[Any, ...], Plan] = {}
        self._image = struct.pack(kernel.argument_format, *packed_arguments(manifest, launch))
        floats = tuple(spec for spec in manifest.scalars if DTYPES[spec.dtype].is_float)
        self.scalars = floats if scalars is None else scalars
        """The scalars that `launch` accepts."""
        tensors = {spec.name: index for index, spec in enumerate(manifest.tensors)}
        order = {spec.name: (index, spec.dtype) for index, spec in enumerate(self.scalars)}
        slots = list(enumerate(manifest.abi))
        self._pointers = tuple((position, tensors[slot.name]) for position, slot in slots if slot.kind == "pointer")
        self._scalars = tuple(
            (position, *order[slot.name]) for position, slot in slots if slot.kind == "scalar" and slot.name in order
        )
        spans = {name: (low - view.pointer, end - view.pointer) for name, view in launch.views.items()
                 for low, end in [view.byte_range()]}  # fmt: skip
        self._no_alias = tuple(
            (tensors[left], tensors[right], spans[left], spans[right])
            for left, right in manifest.no_alias
            if left not in fresh and right not in fresh
        )
        self._unaligned = max((spec.align for spec in manifest.tensors), default=1) - 1
        # Limit of the OR of all addresses, valid for every tensor. Tensors with bytes before their pointer are always checked.
        # checked.
        self._highest = -1 if any(low for low, _ in spans.values()) else ADDRESSES - max(end for _, end in spans.values())

    def launch(self, stream: int, pointers: Sequence[int], scalars: Sequence[float] = ()) -> None:
        """Enqueue on a stream handle. `pointers` are addresses in the order of the manifest's tensors, `scalars` values of
        `Prepared.scalars`, in the range of their dtypes. LaunchError E0908, E0909 or E0914 if an address violates the
        contract."""
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits & self._unaligned or bits > self._highest or 0 in pointers:
            self._check(pointers)
        for left, right, (a, b), (c, d) in self._no_alias:
            first, second = pointers[left], pointers[right]
            if first + a < second + d and second + c < first + b:
                self._check(pointers)
        if self.kernel.maps.any:
            key = (*pointers, *map(repr, scalars))  # `repr` distinguishes the sign of zero
            plan = self._map_plans.get(key)
            (self._plan(key, pointers, scalars) if plan is None else plan).launch(stream)
            return
        try:
            words, singles, parameters, _ = storage = self._free.pop()
        except IndexError:
            words, singles, parameters, _ = storage = self._storage()
        for position, index in self._pointers:
            words[position] = pointers[index]
        for position, index, dtype in self._scalars:
            if dtype == "f32":
                singles[2 * position] = scalars[index]
            else:
                words[position] = int.from_bytes(pack_scalar(dtype, scalars[index]), "little")
        self._enqueue(self._function, self.grid, self._block, self._shared, stream, parameters, False)
        self._free.append(storage)  # the driver has copied the arguments; if the launch raised, the storage is dropped

    def _views(self, pointers: Sequence[int]) -> dict[str, Any]:
        pairs = zip(self._launch.views.items(), pointers, strict=True)
        return {name: replace(view, pointer=pointer) for (name, view), pointer in pairs}

    def _check(self, pointers: Sequence[int]) -> None:
        """Check the whole contract; passes if each tensor meets its own alignment, which the fast path does not distinguish."""
        manifest, device, launch = self.kernel.manifest, self.kernel.device, self._launch
        scalars = {spec.name: launch.scalars[spec.name] for spec in manifest.scalars}
        bools = {spec.name: bool(scalars[spec.name]) for spec in manifest.scalars if spec.dtype == "bool"}
        dims = {slot.name: launch.env[slot.name] for slot in manifest.abi if slot.kind == "dim" and slot.name not in scalars}
        arguments = self._views(pointers) | scalars | bools
        check_launch(manifest, arguments, dims=dims, device=device.ordinal, checked=self.kernel.checked)

    def _plan(self, key: tuple[Any, ...], pointers: Sequence[int], scalars: Sequence[float]) -> Plan:
        """The cached plan of a launch with tensor maps; it is immutable, so threads may share it."""
        given = self._launch.scalars | {spec.name: value for spec, value in zip(self.scalars, scalars, strict=True)}
        plan = Plan(self.kernel, replace(self._launch, views=self._views(pointers), scalars=given), (), ())
        if len(self._map_plans) >= MAX_PLANS:
            self._map_plans.clear()
        self._map_plans[key] = plan
        return plan

    def _storage(self) -> tuple[memoryview[int], memoryview[float], int, Any]:
        """Storage of one launch, eight bytes per argument followed by the array of their addresses: the arguments as 64-bit
        words and as f32, the address of the array, and the buffer that keeps both alive."""
        count = len(self.kernel.manifest.abi)
        argument_bytes = 8 * max(1, count)
        buffer = ctypes.create_string_buffer(self._image.ljust(argument_bytes, b"\0"), 2 * argument_bytes)
        base = ctypes.addressof(buffer)
        struct.pack_into(f"<{count}Q", buffer, argument_bytes, *addresses(self.kernel.manifest, base, base, base))
        arguments = memoryview(buffer).cast("B")[:argument_bytes]
        return arguments.cast("Q"), arguments.cast("f"), base + argument_bytes, buffer
