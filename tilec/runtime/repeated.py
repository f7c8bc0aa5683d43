"""Launches of tensors that stay where they are, but for one whose address each launch gives: the gradient of a parameter, whose
optimizer writes the same memory at every step.

The argument block is that of a checked plan. A launch checks the address that it gets: its alignment, that it is memory, its
overlaps with the other tensors. Nothing else of the contract depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilec.runtime.contract import ADDRESSES
from tilec.runtime.kernel import Plan
from tilec.runtime.prepared import Prepared


class Repeated:
    """Launches of a plan's kernel with its tensors, of which `given` is at another address each time; its scalars, all f32, are
    those of each launch. ValueError for a kernel with other scalars or with tensor maps. It keeps the memory of no tensor
    alive. Not thread-safe; it may be captured in a CUDA graph."""

    def __init__(self, plan: Plan, given: str) -> None:
        kernel, launch = plan.kernel, plan.checked
        manifest = kernel.manifest
        if manifest.tensor_maps or any(spec.dtype != "f32" for spec in manifest.scalars):
            raise ValueError(f"`{manifest.kernel}` has tensor maps, or scalars that are not f32")
        self._plan, self._given = plan, given
        self._align = next(spec.align for spec in manifest.tensors if spec.name == given)
        self._low, self._end = launch.views[given].span()
        pairs = [{left, right} for left, right in manifest.no_alias if given in (left, right)]
        self._others = [launch.views[name].byte_range() for pair in pairs for name in pair - {given}]
        self._words = memoryview(plan.storage_bytes).cast("B").cast("Q")
        self._singles = memoryview(plan.storage_bytes).cast("B").cast("f")
        slots = list(enumerate(manifest.abi))
        self._positions = [position for position, slot in slots if (slot.kind, slot.name) == ("pointer", given)]
        order = {spec.name: index for index, spec in enumerate(manifest.scalars)}
        self._scalars = [(2 * position, order[slot.name]) for position, slot in slots if slot.kind == "scalar"]
        self._enqueue: Any = kernel.device.driver.launch
        self._fixed = kernel.function, plan.grid, kernel.block, kernel.shared

    def launch(self, stream: int, pointer: int, scalars: Sequence[float]) -> None:
        """Enqueue on a stream handle. `scalars` in the order of the manifest, within f32. LaunchError E0908, E0909 or E0914 if
        the address violates the contract."""
        low, end = pointer + self._low, pointer + self._end
        if pointer % self._align or not pointer or low < 0 or end > ADDRESSES:
            self._check(pointer)
        for first, last in self._others:
            if low < last and first < end:
                self._check(pointer)
        for position in self._positions:
            self._words[position] = pointer
        for position, index in self._scalars:
            self._singles[position] = scalars[index]
        self._enqueue(*self._fixed, stream, self._plan.parameters, False)

    def _check(self, pointer: int) -> None:
        """Raises what is wrong with an address."""
        views = self._plan.checked.views
        Prepared(self._plan.kernel, self._plan.checked).check(
            [pointer if name == self._given else view.pointer for name, view in views.items()]
        )
