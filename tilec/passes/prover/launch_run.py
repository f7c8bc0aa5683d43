"""Runs whole launches on numbers, to find an element of a tensor that no block writes.

In: a kernel, sizes that its contract admits, and what memory holds. Out: an unwritten element, if the run knows of every write
which elements it reaches. Blocks run one after another, in row-major order of their ids: other orders are other launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Final

from tilec.ir.core import Access, Effect, Function, Parameter
from tilec.ir.ops import If, WriteOp
from tilec.passes.prover.block_run import BlockRun, Point
from tilec.passes.prover.replayed_tiles import Tile
from tilec.passes.prover.tensor_contents import Filling

ELEMENTS: Final = 4096
"""Tensors of more elements are not searched for one that is not written."""


@dataclass(slots=True)
class Launch:
    """One launch, and what its writes reach of the tensor `name`. `budget` is a limit on steps. A tensor of less
    than the `fewest` elements, or of rows of less than `fewest_in_row`, is not looked at."""

    function: Function
    sizes: Mapping[str, int]
    filling: Filling
    name: str
    budget: int
    fewest: int = 1
    fewest_in_row: int = 1
    kept: dict[tuple[str, tuple[int, ...]], int | None] = field(default_factory=dict[tuple[str, tuple[int, ...]], "int | None"])
    blurred: set[str] = field(default_factory=set[str])
    """Tensors that may have been written anywhere."""
    read: dict[str, dict[tuple[int, ...], int]] = field(default_factory=dict[str, dict[tuple[int, ...], int]])
    """The elements that were read as they were before the launch."""
    _dims: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def unwritten(self) -> tuple[int, ...] | None:
        """An element that no block writes; None if there is none, or if the run does not know."""
        try:
            self._dims = {
                p.name: tuple(dim.evaluate(self.sizes) for dim in p.value.tensor.dims)
                for p in self.function.parameters
                if p.access is not None
            }
            grid = [extent.evaluate(self.sizes) for extent in self.function.grid]
        except (KeyError, ZeroDivisionError):
            return None
        dims = self._dims[self.name]
        is_small = self.fewest <= prod(dims) <= ELEMENTS and prod(grid) <= self.budget
        if not is_small or dims[-1] < self.fewest_in_row or not self.filling.possible(self._dims):
            return None
        for block in product(*map(range, grid)):
            run = BlockRun(self.function, self.sizes, block, {}, self, self.budget)
            finished = run.complete()
            self.budget -= run.steps
            if not finished or self.name in self.blurred:
                return None
        elements = product(*map(range, self._dims[self.name]))
        return next((element for element in elements if (self.name, element) not in self.kept), None)

    def element(self, parameter: Parameter, element_index: tuple[int, ...], pad: int | None) -> int | None:
        """The element of a tensor; None if it is unknown. Outside of the tensor it is the padding."""
        name = parameter.name
        if not self._inside(name, element_index):
            return pad
        key = (name, element_index)
        if key in self.kept or name in self.blurred or parameter.access not in (Access.IN, Access.INOUT):
            return None if name in self.blurred else self.kept.get(key)
        number = self.filling.element(parameter, element_index, self._dims[name])
        if number is not None:
            self.read.setdefault(name, {})[element_index] = number
        return number

    def wrote(self, op: WriteOp, parameter: Parameter, points: Iterator[Point], tile: Tile) -> None:
        """Take note of a write of a tile."""
        name = parameter.name
        for point, number in zip(points, tile, strict=True):
            at = tuple(one for one in point if one is not None)
            if len(at) < len(point):
                self.blurred.add(name)
            elif self._inside(name, at):
                self.kept[name, at] = None if op.effect is Effect.ATOMIC else number

    def may_have_written(self, op: If) -> None:
        """Take note of a branch that is not run, because its condition is unknown."""
        inside = (one for region in op.regions for one in region.walk() if isinstance(one, WriteOp))
        self.blurred |= {self.function.parameter_of(one.target).name for one in inside}

    def _inside(self, name: str, at: tuple[int, ...]) -> bool:
        return all(0 <= one < extent for one, extent in zip(at, self._dims[name], strict=True))
