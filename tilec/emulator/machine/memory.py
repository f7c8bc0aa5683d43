"""Memory of a launch: one flat byte array for every state space, with an allocation map and a byte of poison flags per byte.

An address is GLOBAL_BASE plus an index into the array for global and const space. Shared, local and parameter addresses are
offsets in a window, one per block, thread or launch; generic addresses map the windows at SHARED_BASE, LOCAL_BASE and
PARAM_BASE, and cvta converts between the two (PTX ISA, section 5.1 State Spaces, and "Generic addressing"). Gaps separate
allocations, so an access past the end of one does not reach the next. Invariant: all bytes of an access at an index that
`locate` returned lie in one allocation, are aligned, and may be accessed that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UNINITIALISED

GLOBAL_BASE: Final = 0x7100_0000_0000
SHARED_BASE: Final = 0x7000_0000_0000
LOCAL_BASE: Final = 0x6000_0000_0000
PARAM_BASE: Final = 0x5000_0000_0000
SHARED_START: Final = 1024
"""First offset of a block's shared variables; chips reserve the bytes below for the system."""
PARAM_START: Final = 4096
"""First offset of the parameters."""
PAGE: Final = 256
Index = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class Allocation:
    """Bytes `start` to `end` of the array. `tracked`: races are checked; `poisonous`: some byte may be poison; `item`: bytes
    per element. `checked`: a byte that is unwritten at the end is a fault; if `required` marks the bytes of elements (a
    strided tensor), only those must be written, and a written byte between them is a fault. `resident`: the preceding launch
    does not write it. `device`: the device whose launches before this one wrote it, None if any device may read it."""

    name: str
    space: str
    start: int
    end: int
    writable: bool
    tracked: bool
    poisonous: bool
    item: int = 1
    is_tensor: bool = False
    checked: bool = False
    resident: bool = False
    required: NDArray[np.bool_] | None = None
    array: NDArray[Any] | None = None
    noncoherent: NDArray[np.bool_] | None = None
    device: int | None = None

    @property
    def address(self) -> int:
        """The pointer that a kernel receives."""
        return GLOBAL_BASE + self.start


class Memory:
    """The array, its poison and its allocations. `data` and `poison` are reallocated when they grow: do not keep
    references."""

    def __init__(self, limit: int = 1 << 31) -> None:
        self.limit = limit
        self.used = PAGE
        self.allocations: list[Allocation] = []
        self.on_growth: list[Callable[[int], None]] = []
        self.data: Bytes = np.zeros(1 << 16, np.uint8)
        self.poison: Bytes = np.zeros(1 << 16, np.uint8)
        self.owner: NDArray[np.int32] = np.full((1 << 16) // PAGE, -1, np.int32)
        self.views: dict[int, NDArray[Any]] = {}
        self.poison_views: dict[int, NDArray[Any]] = {}
        self._make_views()

    def _make_views(self) -> None:
        for width, kind in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "u8")):
            self.views[width] = self.data.view(kind)
            self.poison_views[width] = self.poison.view(kind)
        self.views[16], self.poison_views[16] = self.data.view("V16"), self.poison.view("V16")

    def _grow(self, size: int) -> None:
        if size > self.limit:
            raise MemoryError(f"the launch needs {size} bytes, more than the limit of {self.limit}")
        capacity = max(size, 2 * len(self.data))
        capacity += -capacity % 4096
        added = capacity - len(self.data)
        self.data = np.concatenate([self.data, np.zeros(added, np.uint8)])
        self.poison = np.concatenate([self.poison, np.zeros(added, np.uint8)])
        self.owner = np.concatenate([self.owner, np.full(added // PAGE, -1, np.int32)])
        self._make_views()
        for callback in self.on_growth:
            callback(capacity)

    def reserve(
        self, name: str, space: str, size: int, *, align: int = PAGE, writable: bool = True, tracked: bool = True
    ) -> Allocation:
        """Allocates uninitialised bytes, aligned to `align`; if that is below PAGE, to no larger power of two."""
        step = max(align, PAGE)
        start = -(-(self.used + PAGE) // step) * step + (align if align < PAGE else 0)
        end = start + size
        pages = -(-end // PAGE)
        if (pages + 2) * PAGE > len(self.data):
            self._grow((pages + 2) * PAGE)
        allocation = Allocation(name, space, start, end, writable, tracked, True)
        self.owner[start // PAGE : max(pages, start // PAGE + 1)] = len(self.allocations)
        self.allocations.append(allocation)
        self.poison[start:end] = UNINITIALISED
        self.used = (pages + 1) * PAGE
        return allocation

    def allocate(
        self,
        name: str,
        array: NDArray[Any],
        *,
        writable: bool = True,
        initialised: bool = True,
        align: int = 16,
        checked: bool = False,
        required: NDArray[np.bool_] | None = None,
        resident: bool = False,
    ) -> Allocation:
        """Allocates a tensor in global memory with the contents of `array` (any dtype; read back with `contents`). Without
        `initialised` the contents are poison. `checked`: every byte must be written by the end of the launch (with
        `required`, only those that it marks)."""
        flat = np.ascontiguousarray(array).reshape(-1)
        allocation = self.reserve(name, "global", flat.nbytes, align=align, writable=writable, tracked=writable)
        allocation.item, allocation.array, allocation.is_tensor, allocation.checked = array.dtype.itemsize, array, True, checked
        allocation.required, allocation.resident = required, resident
        self.data[allocation.start : allocation.end] = flat.view(np.uint8)
        if initialised:
            self.poison[allocation.start : allocation.end] = 0
            allocation.poisonous = writable
        return allocation

    def contents(self, allocation: Allocation) -> NDArray[Any]:
        """The bytes of a tensor as an array of its dtype and shape."""
        array = allocation.array
        if array is None:
            return self.data[allocation.start : allocation.end].copy()
        return self.data[allocation.start : allocation.end].copy().view(array.dtype).reshape(array.shape)

    def release_after(self, mark: tuple[int, int]) -> None:
        """Frees the allocations made since `mark()`."""
        used, count = mark
        self.owner[used // PAGE :] = -1
        self.used = used
        del self.allocations[count:]

    def mark(self) -> tuple[int, int]:
        """A state for `release_after`."""
        return self.used, len(self.allocations)

    # --- raw access by index; callers pass indices from `locate` or known to lie inside an allocation
    def read_rows(self, index: Index, width: int) -> tuple[Bytes, Bytes | None]:
        """`width` bytes from each index as [m, width], and each row's poison [m] or None."""
        indices = index[:, None] + np.arange(width)
        poison = np.bitwise_or.reduce(self.poison[indices], axis=1) if width else np.zeros(len(index), np.uint8)
        return self.data[indices], poison if poison.any() else None

    def write_rows(self, index: Index, rows: Bytes, poison: Bytes | None) -> None:
        """Stores rows [m, width] and their poison, [m] or [m, width] or None."""
        indices: Index = index[:, None] + np.arange(int(rows.shape[1]))
        self.data[indices] = rows
        if poison is not None and poison.ndim == 1:
            poison = poison[:, None]
        self.poison[indices] = 0 if poison is None else poison

    def read(self, index: Index, width: int) -> NDArray[Any]:
        """Aligned values of 1, 2, 4, 8 (unsigned) or 16 bytes (V16) at each index."""
        return self.views[width].take(index >> _SHIFT[width])

    def read_poison(self, index: Index, width: int) -> Bytes | None:
        """The union of the poison of each aligned value, or None."""
        flags = self.poison_views[width].take(index >> _SHIFT[width])
        rows = flags.view(np.uint8).reshape(len(index), width)
        if not rows.any():
            return None
        return np.bitwise_or.reduce(rows, axis=1)

    def allocation_at(self, index: int) -> Allocation | None:
        """The allocation that contains a byte, or the nearest one before it if the byte lies in the gap after that."""
        page = index // PAGE
        if not 0 <= page < len(self.owner) or self.owner[page] < 0:
            return None
        return self.allocations[int(self.owner[page])]


_SHIFT: Final = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}
