"""Executes the operations of one block of a launch on numbers, up to a point of it or to its end.

In: sizes, a block id, the iterations of some loops, and the contents of tensors. Out: the elements of every value that was
reached. An element is an integer, or None where it is not known: floats that are no small integers, what is read from memory
that nothing describes, and all that is computed from these. Arithmetic is `tilec.ir.facts.meaning`, that of the table of
operations, and `replayed_floats` for floats; a tile is the list of its elements in row-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Protocol

from tilec.ir.core import Block, Function, Op, Parameter, Value
from tilec.ir.expr import Expr
from tilec.ir.facts.meaning import INTEGER_KINDS, integer_cast, integer_unary
from tilec.ir.ops import (
    Binary,
    Bitcast,
    BlockId,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Constant,
    DimValue,
    For,
    Gather,
    If,
    Iota,
    Load,
    MemoryOp,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
    WriteOp,
)
from tilec.ir.types import TileType
from tilec.passes.prover.replayed_floats import (
    as_number,
    compared,
    constant_next_to,
    constant_of,
    float_best,
    float_binary,
    float_cast,
    float_sum,
    float_unary,
)
from tilec.passes.prover.replayed_tiles import Tile, combined, moved, reduced, sorted_tiles, taken

STEPS: Final = 200_000
"""Limit on elements computed for one execution of a counterexample, about a tenth of a second."""
SKIPPED: Final = 16
"""What a branch counts for that is not run because its condition is unknown: as many elements take as long."""
ITERATION: Final = 4
"""The same of an iteration of a loop, in addition to what it computes: after a `break` that is nothing."""
Point = tuple[int | None, ...]
"""An index of an element, of which some coordinates may be unknown."""


class Contents(Protocol):
    """What memory holds while a block runs."""

    def element(self, parameter: Parameter, element_index: tuple[int, ...], pad: int | None) -> int | None:
        """The element of a tensor; None if it is unknown. Outside of the tensor it is the padding."""
        ...

    def wrote(self, op: WriteOp, parameter: Parameter, points: Iterator[Point], tile: Tile) -> None:
        """Take note of a write of a tile."""
        ...

    def may_have_written(self, op: If) -> None:
        """Take note of a branch that is not run, because its condition is unknown."""
        ...


@dataclass(eq=False, slots=True)
class BlockRun:
    """Execution of one block up to the iterations `iterations` of some loops, or else to its end; `values` are the SSA values
    at that point. `limit` is that on steps."""

    function: Function
    sizes: Mapping[str, int]
    block: tuple[int, ...]
    iterations: Mapping[For, int]
    memory: Contents
    limit: int = STEPS
    values: dict[Value, Tile] = field(default_factory=dict[Value, Tile])
    steps: int = 0
    on_path: bool = True  # all enclosing loops are in the requested iteration
    surrounding: dict[If, bool] = field(default_factory=dict[If, bool])
    before: dict[Value, Tile] | None = None
    """What was computed before a loop that never reaches the requested iteration."""

    def tiles(self) -> dict[Value, Tile]:
        """Elements by SSA value, for the values that were reached. If a loop does not reach the requested iteration, those
        from before the loop, which are what they are at the point."""
        reached = self.complete()
        return self.values if reached else self.before or {}

    def complete(self) -> bool:
        """Run the block; whether it reached the point."""
        for parameter in self.function.parameters:
            if parameter.access is None and parameter.name in self.sizes:
                self.values[parameter.value] = [self.sizes[parameter.name]]
        return self.inside(self.function.body)

    def inside(self, block: Block) -> bool:
        """Run a block; False if the requested point is not reached within the budget."""
        for op in block.ops:
            if isinstance(op, For):
                if not self.loop(op):
                    return False
            elif isinstance(op, If):
                if not self.branch(op):
                    return False
            elif isinstance(op, Sort):
                self.values.update(zip(op.results, sorted_tiles(op, [self.of(value) for value in op.operands]), strict=True))
                self.steps += sum(value.tile.size for value in op.results)
            else:
                self.step(op)
            if self.steps > self.limit:
                return False
        return True

    def step(self, op: Op) -> None:
        """Run an operation without regions."""
        if isinstance(op, WriteOp):
            self.memory.wrote(op, self.function.parameter_of(op.target), self.points(op), self.of(op.tile))
            self.steps += max(1, op.tile.tile.size)
        if len(op.results) == 1 and isinstance(op.result.type, TileType):
            self.values[op.result] = self.result(op)
            self.steps += max(1, op.result.tile.size)

    def loop(self, op: For) -> bool:
        lower, upper, step = (self.scalar(value) for value in op.operands[:3])
        if lower is None or upper is None or step is None or step < 1:
            return False
        carried = [self.of(value) for value in op.initial]
        before = dict(self.values) if self.on_path and op in self.iterations else None
        body, outer_on_path = op.regions[0], self.on_path
        for iteration in range(lower, upper, step):
            self.on_path = outer_on_path and self.iterations.get(op) in (None, iteration)
            self.values.update(zip(body.arguments, [[iteration], *carried], strict=True))
            self.steps += ITERATION
            if self.steps > self.limit or not self.inside(body):
                return False
            if self.on_path and op in self.iterations:
                return True  # the requested point is inside the loop
            carried = [self.of(value) for value in body.ops[-1].operands]
        self.on_path = outer_on_path
        self.values.update(zip(op.results, carried, strict=True))
        if before is not None:
            self.before = before
        return before is None

    def branch(self, op: If) -> bool:
        condition = self.scalar(op.operands[0])
        if condition is None:
            self.values.update((value, _unknown(value)) for value in op.results)
            self.steps += SKIPPED
            self.memory.may_have_written(op)
            return not self.surrounds(op)
        region = op.regions[0 if condition else 1]
        if not self.inside(region):
            return False
        self.values.update(
            (value, self.of(yielded)) for value, yielded in zip(op.results, region.ops[-1].operands, strict=True)
        )
        return True

    def surrounds(self, op: If) -> bool:
        """Whether a loop of the requested point is in a branch."""
        if op not in self.surrounding:
            loops = (loop for region in op.regions for loop in region.walk() if isinstance(loop, For))
            self.surrounding[op] = any(loop in self.iterations for loop in loops)
        return self.surrounding[op]

    def of(self, value: Value) -> Tile:
        return self.values.get(value) or _unknown(value)

    def scalar(self, value: Value) -> int | None:
        return self.of(value)[0]

    def result(self, op: Op) -> Tile:
        """The elements of a result; None for those that depend on unknown values."""
        tile, count = op.result.tile, max(1, op.result.tile.size)
        operands = [self.of(value) if isinstance(value.type, TileType) else [] for value in op.operands]
        match op:
            case Constant():
                return [as_number(op.value) if tile.dtype.is_float else int(op.value)] * count
            case Iota():
                return [*range(count)]
            case BlockId():
                return [self.block[op.axis]]
            case NumBlocks():
                return [self.host(self.function.grid[op.axis])]
            case DimValue():
                return [self.sizes.get(op.symbol)]
            case Compare():
                return self.comparison(op, operands)
            case Select():
                return [None if c is None else a if c else b for c, a, b in zip(*operands, strict=True)]
            case Broadcast() | Butterfly() | Permute() | Reshape():
                return moved(op, operands[0])
            case Take():
                return taken(op, *operands)
            case Load() | Gather() if op.unsafe is None:
                return self.read(op)
            case Reduce() if not _is_float(op.operands[0]):
                return reduced(op, operands[0])
            case _:
                return self.arithmetic(op, operands) or [None] * count

    def comparison(self, op: Compare, operands: list[Tile]) -> Tile:
        """The elements of a comparison, also with a constant that is no known number."""
        left, right = operands
        dtype, constants = (
            op.operands[0].tile.dtype,
            [constant_of(value) if _is_float(value) else None for value in op.operands],
        )
        if constants[1] is not None:
            constant = constants[1]
            return [compared(op.kind, a, constant_next_to(constant, a, dtype)) for a in left]
        if constants[0] is not None:
            constant = constants[0]
            return [compared(op.kind, constant_next_to(constant, b, dtype), b) for b in right]
        return [compared(op.kind, a, b) for a, b in zip(left, right, strict=True)]

    def arithmetic(self, op: Op, operands: list[Tile]) -> Tile | None:
        """The elements of a result of arithmetic; None for other operations, and if nothing is known of them."""
        dtype, of_floats = op.result.tile.dtype, op.operands and _is_float(op.operands[0])
        match op:
            case Binary() if of_floats:
                return [float_binary(op.kind, a, b) for a, b in zip(*operands, strict=True)]
            case Binary() if op.kind in INTEGER_KINDS:
                return [combined(op.kind, a, b, dtype) for a, b in zip(*operands, strict=True)]
            case Unary():
                known = operands[0]
                if of_floats:
                    return [float_unary(op.kind, a) for a in known]
                return [None if a is None else integer_unary(op.kind, a, dtype) for a in known]
            case Cast() if of_floats or dtype.is_float:
                return [float_cast(a, op.operands[0].tile.dtype, dtype) for a in operands[0]]
            case Cast() | Bitcast() if not of_floats and not dtype.is_float:
                return [None if a is None else integer_cast(a, dtype) for a in operands[0]]
            case Reduce():
                return float_sum(op, operands[0]) if op.kind == "sum" else float_best(op, operands[0])
            case _:
                return None

    def points(self, op: MemoryOp) -> Iterator[Point]:
        """The indices of the elements of an access, in row-major order of its tile."""
        indices = [self.of(value) for value in op.indices]
        if op.indexed:
            return zip(*indices, strict=True) if indices else iter([()])
        return product(*(
            [None] * extent if tile[0] is None else range(tile[0], tile[0] + extent)
            for tile, extent in zip(indices, op.tile.tile.shape, strict=True)
        ))  # fmt: skip

    def read(self, op: Load | Gather) -> Tile:
        parameter = self.function.parameter_of(op.source)
        pad = None if op.pad is None else as_number(op.pad) if op.result.tile.dtype.is_float else int(op.pad)
        found: Tile = []
        for point in self.points(op):
            element_index = tuple(at for at in point if at is not None)
            found.append(self.memory.element(parameter, element_index, pad) if len(element_index) == len(point) else None)
        return found

    def host(self, expr: Expr) -> int | None:
        try:
            return expr.evaluate(self.sizes)
        except (KeyError, ZeroDivisionError):
            return None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TileType) and value.type.dtype.is_float


def _unknown(value: Value) -> Tile:
    return [None] * (max(1, value.tile.size) if isinstance(value.type, TileType) else 1)
