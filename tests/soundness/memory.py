"""Contents of tensors and float scalars at a launch: drawn at random from the kernel's declared ranges, by seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from tests.soundness.floats import rounded
from tilec.ir.core import Function, ValueFact
from tilec.ir.types import DType

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.0, 7.75, -2.0, 1e-3, 300.0, 3e9, -3e9, 1e30, *map(float, ("nan", "inf", "-inf")))
ANY = 0.1
"""How often an element of a wide range is any number of it."""
Element = tuple[int, ...]


class NoSuchLaunch(Exception):
    """No memory contents satisfy the kernel's declarations at these sizes."""


class Memory:
    """Contents by tensor and element, drawn on first use; `fixed` overrides single elements, `everywhere` all others of a
    tensor."""

    def __init__(
        self,
        function: Function,
        sizes: Mapping[str, int],
        seed: int,
        fixed: Mapping[tuple[str, Element], int | float] | None = None,
        everywhere: Mapping[str, int | float] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._contents: dict[tuple[str, Element], int | float] = dict(fixed or {})
        self._everywhere = dict(everywhere or {})
        self._floats: dict[str, DType] = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._distinct: dict[str, list[int]] = {}
        self._in_rows: set[str] = set()
        self._dims: dict[str, tuple[int, ...]] = {}
        for parameter in function.parameters:
            if parameter.access is None:
                continue
            dtype = parameter.value.tensor.dtype
            self._dims[parameter.name] = tuple(d.evaluate(sizes) for d in parameter.value.tensor.dims)
            if dtype.is_float:
                self._floats[parameter.name] = dtype
            else:
                self._ranges[parameter.name] = dtype.integer_range()
        for tensor in dict.fromkeys(fact.tensor for fact in function.values):
            self._declare(tensor, [fact for fact in function.values if fact.tensor == tensor], sizes)

    def _declare(self, tensor: str, facts: Sequence[ValueFact], sizes: Mapping[str, int]) -> None:
        """Contents that satisfy all declarations of a tensor."""
        low, high = self._ranges[tensor]
        for fact in facts:
            low, high = max(low, fact.low.evaluate(sizes)), min(high, fact.high.evaluate(sizes) - 1)
        count, ends = prod(self._dims[tensor]), [fact for fact in facts if fact.ends]
        distinct = any(fact.distinct for fact in facts)
        in_rows = any(fact.distinct_in_rows for fact in facts) and not distinct
        least = count if distinct else self._dims[tensor][-1] if in_rows else 0
        if high < low or high - low + 1 < least:
            raise NoSuchLaunch(tensor)
        if any((fact.low.evaluate(sizes), fact.high.evaluate(sizes) - 1) != (low, high) for fact in ends):
            raise NoSuchLaunch(tensor)
        if ends and count == 1 and high > low:
            raise NoSuchLaunch(tensor)
        self._ranges[tensor] = (low, high)
        if any(fact.sorted for fact in facts):
            self._draw_sorted(tensor, bool(ends), distinct, count)
        elif distinct:
            self._distinct[tensor] = self._drawn(low, high, count)
        elif in_rows:
            self._in_rows.add(tensor)

    def _draw_sorted(self, tensor: str, ends: bool, distinct: bool, count: int) -> None:
        """Sorted numbers for all elements, consistent with `fixed`."""
        if count > 4096:
            raise NoSuchLaunch(f"{tensor}: too many numbers to put in order")
        low, high = self._ranges[tensor]
        fixed_values = {element[0]: value for (name, element), value in self._contents.items() if name == tensor}
        for _ in range(200 if fixed_values else 1):
            numbers = self._drawn(low, high, count) if distinct else [self.pick(low, high) for _ in range(count)]
            numbers = sorted(numbers or range(low, low + count))
            if ends:
                numbers[0], numbers[-1] = low, high
            numbers = [int(fixed_values.get(position, value)) for position, value in enumerate(numbers)]
            steps = [after - before for before, after in pairwise(numbers)]
            ends_match = not ends or (numbers[0], numbers[-1]) == (low, high)
            if all(step >= distinct for step in steps) and ends_match:
                self._contents.update({(tensor, (position,)): value for position, value in enumerate(numbers)})
                return
        raise NoSuchLaunch(tensor)

    def _drawn(self, low: int, high: int, count: int) -> list[int]:
        if high - low < 4096:
            return self._random.sample(range(low, high + 1), count)
        return []

    def scalar(self, name: str, dtype: DType, sizes: Mapping[str, int]) -> int | float:
        """A scalar parameter: from the sizes if it is an integer of the contract, else drawn."""
        key = (name, ())
        if name in sizes:
            return sizes[name]
        if key not in self._contents:
            self._contents[key] = self._float(dtype) if dtype.is_float else self.pick(*dtype.integer_range())
        return self._contents[key]

    def read(self, tensor: str, element: Element) -> int | float:
        """The number at an element."""
        key = (tensor, element)
        if key not in self._contents:
            self._contents[key] = self._draw(tensor, element)
        return self._contents[key]

    def write(self, tensor: str, element: Element, value: int | float | None) -> None:
        """Stores a number; None if it is unknown, after which the element may have any value of the dtype."""
        if value is None:
            value = self._float(self._floats[tensor]) if tensor in self._floats else self.pick(*self._ranges[tensor])
        self._contents[tensor, element] = value

    def _float(self, dtype: DType) -> float:
        return rounded(self._random.choice(FLOATS), dtype)

    def _draw(self, tensor: str, element: Element) -> int | float:
        if tensor in self._everywhere:
            return self._everywhere[tensor]
        if tensor in self._floats:
            return self._float(self._floats[tensor])
        inside = all(0 <= index < extent for index, extent in zip(element, self._dims[tensor], strict=True))
        if tensor in self._distinct and inside:
            index = _row_major(element, self._dims[tensor])
            numbers = self._distinct[tensor]
            return numbers[index] if numbers else self._ranges[tensor][0] + index
        if tensor in self._in_rows and inside:
            return self._draw_in_row(tensor, element)
        return self.pick(*self._ranges[tensor])

    def _draw_in_row(self, tensor: str, element: Element) -> int:
        """A number that no element of its row has; `fixed` ones are already there."""
        low, high = self._ranges[tensor]
        taken = {v for (name, one), v in self._contents.items() if name == tensor and one[:-1] == element[:-1]}
        free = [number for number in range(low, min(high, low + len(taken) + 64) + 1) if number not in taken]
        return self._random.choice(free)

    def pick(self, low: int, high: int) -> int:
        """An integer from `low` to `high`: any of few; of many one at the ends, near zero or a power of two, at times any."""
        if high - low <= 64 or self._random.random() < ANY:
            return self._random.randint(low, high)
        power = self._random.choice((1, -1)) << self._random.randint(2, 63)
        edge_values = (low, high, -1, 0, 1, 2, 3, 5, power, power - 1)
        return self._random.choice([value for value in edge_values if low <= value <= high])


def _row_major(element: Element, dims: Sequence[int]) -> int:
    flat = 0
    for index, extent in zip(element, dims, strict=True):
        flat = flat * extent + index
    return flat
