"""Launches of one kernel that differ only in their tensors' addresses: the same operation in every layer of a model.

Each launch is checked fully once, at the largest extents. `at` checks other extents and scalars once for all launches: clauses
that do not depend on addresses are checked as for any launch. No tensor may extend beyond the bytes checked before, so
alignment and overlap need no new check. `use` then stores the parameters that all launches of the series share; the tensor
maps of each are copied when it is launched.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tilec.runtime.contract import Launch, check_launch
from tilec.runtime.errors import LaunchError
from tilec.runtime.kernel import Kernel, Plan, addresses, packed_arguments
from tilec.runtime.tensors import TensorView, contiguous_strides
from tilec.runtime.values import Evidence, check_evidence

_NO_TENSOR: Final = TensorView(0, "u8", (), ())
"""Stands in for all tensors if only numbers are packed."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The shared parameters of a series: its arguments without pointers, eight bytes each, its grid, and the tensor maps of
    every launch, if it has any."""

    packed: bytes
    grid: tuple[int, int, int]
    maps: tuple[bytes, ...] = ()


class Series:
    """Launches by index. `arguments` has those of each launch, with equal shapes and scalars; `values` as in `Kernel.plan`."""

    def __init__(
        self, kernel: Kernel, arguments: Sequence[Mapping[str, Any]], values: Mapping[str, Evidence] | None = None
    ) -> None:
        self._complete(kernel, arguments, [kernel.plan(entry, values=values) for entry in arguments])

    @classmethod
    def in_parts(
        cls, kernel: Kernel, arguments: Sequence[Mapping[str, Any]], values: Mapping[str, Evidence] | None = None
    ) -> Generator[None, None, Series]:
        """The same, with a pause after the check of each launch, for a caller that has little time at once."""
        plans = list[Plan]()
        for entry in arguments:
            plans.append(kernel.plan(entry, values=values))
            yield
        found = cls.__new__(cls)
        found._complete(kernel, arguments, plans)
        return found

    def _complete(self, kernel: Kernel, arguments: Sequence[Mapping[str, Any]], plans: Sequence[Plan]) -> None:
        """Launches whose plans are checked."""
        self.kernel, self._first = kernel, dict(arguments[0])
        shapes = [_shapes(entry) for entry in arguments]
        if any(entry != shapes[0] for entry in shapes):
            raise LaunchError("E0903", "launches of a series differ in shapes or scalars", kernel=kernel.manifest.kernel)
        slots = kernel.manifest.abi
        argument_bytes = 8 * max(1, len(slots))
        self._numbers = ctypes.create_string_buffer(argument_bytes)
        shared = ctypes.addressof(self._numbers)
        self._keep = plans
        self._addresses = (ctypes.c_uint64 * (len(slots) * len(plans)))()
        self.parameters = tuple(ctypes.addressof(self._addresses) + 8 * len(slots) * i for i in range(len(plans)))
        for i, plan in enumerate(plans):
            for j, address in enumerate(addresses(kernel.manifest, plan.storage, shared, plan.maps)):
                self._addresses[i * len(slots) + j] = address
        views = [plan.checked.views for plan in plans]
        self._pointers = {name: tuple(entry[name].pointer for entry in views) for name in views[0]}
        self._elements = {name: prod(view.shape) for name, view in plans[0].checked.views.items()}
        self.grid = plans[0].grid
        self._mapped: list[Numbers | None] = [None] * len(plans)
        self._used: Numbers | None = None
        self.use(self._packed(plans[0].checked))

    def at(
        self, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int | float], values: Mapping[str, Evidence]
    ) -> Numbers:
        """The parameters for contiguous tensors of these shapes at the series' addresses. LaunchError if the contract is
        violated, or a tensor extends beyond what the series was checked with."""
        manifest, device = self.kernel.manifest, self.kernel.device
        arguments: dict[str, Any] = dict(scalars)
        for name, shape in shapes.items():
            checked_view: TensorView = self._first[name]
            arguments[name] = TensorView(checked_view.pointer, checked_view.dtype, shape, contiguous_strides(shape))
        launch = check_launch(manifest, arguments, device=device.ordinal, checked=self.kernel.checked)
        for check in manifest.value_checks:
            check_evidence(
                check, launch.env, launch.views[check.tensor], values.get(check.tensor), kernel=manifest.kernel, read_back=None
            )
        for name, shape in shapes.items():  # tensors are contiguous, so elements determine bytes
            if prod(shape) > self._elements[name]:
                raise LaunchError(
                    "E0914", "the tensor reaches beyond what was checked", kernel=manifest.kernel, argument=name,
                    given=f"{prod(shape)} elements", required=f"at most {self._elements[name]}",
                )  # fmt: skip
        return self._packed(launch)

    def use(self, numbers: Numbers) -> None:
        """Set the parameters of all launches from now on."""
        if numbers is self._used:
            return
        ctypes.memmove(self._numbers, numbers.packed, len(numbers.packed))
        self.grid, self._used = numbers.grid, numbers

    def launch(self, index: int, stream: int, *, overlap: bool = False) -> None:
        """Enqueue one launch; see `Plan.launch`."""
        kernel, used = self.kernel, self._used
        if used is not None and used.maps and self._mapped[index] is not used:
            ctypes.memmove(self._keep[index].maps, used.maps[index], len(used.maps[index]))
            self._mapped[index] = used
        overlaps = overlap and kernel.may_overlap()
        kernel.device.driver.launch(
            kernel.function, self.grid, kernel.block, kernel.shared, stream, self.parameters[index], overlaps
        )

    def _packed(self, launch: Launch) -> Numbers:
        without_tensors = Launch(dict.fromkeys(launch.views, _NO_TENSOR), launch.scalars, launch.env, launch.grid)
        values = packed_arguments(self.kernel.manifest, without_tensors)
        grid = self.kernel.launched(launch.grid)
        return Numbers(
            struct.pack(self.kernel.argument_format, *values), grid, self.kernel.maps.of_launches(launch.views, self._pointers)
        )


def _shapes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (value.dtype, value.shape) if isinstance(value, TensorView) else value for name, value in arguments.items()}
