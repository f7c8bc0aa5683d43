"""Checks the unknowns of a counterexample by executing the block's integer operations up to the access.

A solution of a violated system gives numbers to values that the prover does not translate, such as loop-carried ones. In:
such a solution, and the executions that it describes. Out: the actual numbers, from running the kernel's integers from the
start; nothing where they agree. A contradicted counterexample is not shown, and neither is one with a loop-carried value that
the run does not compute.

Tensors that are only read hold what the solution says, and elsewhere one number, so that a run is one launch: `FILLS` are
tried in order. Floats, tensors that the kernel writes, and everything after the step limit are unknown.

Arithmetic is `tilec.ir.facts.meaning`, that of the table of operations; a tile is the list of its elements in row-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from tilec.ir.core import Access, Block, Function, Op, Parameter, Value
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
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
)
from tilec.ir.types import TileType
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.replayed_tiles import Tile, combined, moved, reduced, sorted_tiles, taken
from tilec.passes.prover.terms import Atom, Formula, Kind

FILLS: Final = 3
"""Contents tried for the elements that a solution does not mention: the smallest declared number, the next, the largest."""
STEPS: Final = 200_000
"""Limit on elements computed for one execution of a counterexample, about a tenth of a second."""
SKIPPED: Final = 16
"""What a branch counts for that is not run because its condition is unknown: as many elements take as long."""
ITERATION: Final = 4
"""The same of an iteration of a loop, in addition to what it computes: after a `break` that is nothing."""
_COMPARE = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}


@dataclass(frozen=True, slots=True)
class Replay:
    """What one run shows about a solution: `numbers` are the unknowns whose values differ from it, and `learned` says so as
    formulas conditional on its block and iterations. At other sizes the values may differ, so the formulas guide a search and
    prove nothing. `complete`: no loop-carried value remains assumed. `note`: what memory holds elsewhere, if that matters."""

    numbers: Assignment
    learned: list[Formula]
    complete: bool
    note: str = ""


def replays(index: IndexTerms, found: Assignment, instances: Sequence[Instance]) -> Iterator[Replay]:
    """Runs of the launch that a solution describes, one for each of `FILLS` if a loop-carried value depends on memory."""
    unknown = [atom for instance in instances for atom in assumed_in(index, found, instance)]
    carried = any(is_carried(index.function, index.sources[atom]) for atom in unknown)
    for fill in range(FILLS) if carried else (None,):
        memory = _Memory(index, found, fill)
        replay = _replayed(index, found, instances, memory)
        yield replace(replay, note=memory.text())
        if not memory.used:
            return


def _replayed(index: IndexTerms, found: Assignment, instances: Sequence[Instance], memory: _Memory) -> Replay:
    value, learned, numbers, complete = evaluator(found), list[Formula](), dict[Atom, int](), True
    sizes = {name: found[atom] for name in index.symbols if (atom := index.symbol(name).atom) in found}
    for instance in instances:
        unknown = assumed_in(index, found, instance)
        if not unknown:
            continue
        block = tuple(terms.evaluate(poly, value) for poly in instance.blocks)
        point = [*instance.blocks, *(count for _, _, count in instance.loops)]
        other_point = [terms.ne(poly, terms.evaluate(poly, value)) for poly in point]
        iterations = {loop: terms.evaluate(variable, value) for loop, variable, _ in instance.loops}
        tiles = _Run(index.function, sizes, block, iterations, memory).tiles()
        for atom in unknown:
            number = _element(index, atom, tiles, found)
            complete &= number is not None or not is_carried(index.function, index.sources[atom])
            if number is not None and number != found[atom]:
                numbers[atom] = number
                learned.append(terms.disjunction((*other_point, terms.eq(terms.of(atom), number))))
    return Replay(numbers, learned, complete)


def assumed_in(index: IndexTerms, found: Assignment, instance: Instance) -> list[Atom]:
    """Unknowns that decide what an instance accesses and whether it runs."""
    return [atom for atom in _atoms(instance) if atom.kind is Kind.OPAQUE and atom in found and atom in index.sources]


def is_carried(function: Function, value: Value) -> bool:
    """Whether a value is one that a loop carries, or is computed from such values."""
    pending, seen = [value], set[Value]()
    while pending:
        one = pending.pop()
        owner = one.owner
        if one in seen or owner is None:
            continue
        seen.add(one)
        if isinstance(owner, For):
            return True
        if isinstance(owner, Block) and owner is not function.body and one is not owner.arguments[0]:
            return True
        if isinstance(owner, Op):
            pending += owner.operands
            pending += [operand for region in owner.regions for operand in region.ops[-1].operands]
    return False


class _Memory:
    """Contents of the integer tensors that the kernel only reads, in one launch: the elements of a solution, and elsewhere the
    number of a fill, within the declared range; without a fill, they are unknown."""

    def __init__(self, index: IndexTerms, found: Assignment, fill: int | None) -> None:
        self.index, self.fill, value = index, fill, evaluator(found)
        self.used: dict[str, int] = {}
        self.sizes = {name: found[atom] for name in index.symbols if (atom := index.symbol(name).atom) in found}
        loaded = [atom for atom in found if atom.kind is Kind.LOADED]
        self.known = {(a.label, tuple(terms.evaluate(arg, value) for arg in a.args)): found[a] for a in loaded}

    def element(self, parameter: Parameter, element_index: tuple[int, ...], pad: int | None) -> int | None:
        """The element of a tensor; None if it is unknown, or outside the tensor without a padding."""
        tensor = parameter.value.tensor
        try:
            inside = all(0 <= at < dim.evaluate(self.sizes) for at, dim in zip(element_index, tensor.dims, strict=True))
        except (KeyError, ZeroDivisionError):
            return None
        if not inside or parameter.access is not Access.IN or not tensor.dtype.is_integer:
            return pad if not inside else None
        known = self.known.get((parameter.name, element_index))
        return known if known is not None else self._filled(parameter)

    def _filled(self, parameter: Parameter) -> int | None:
        """A number for every element that the solution does not mention; None if declarations relate the elements."""
        if self.fill is None:
            return None
        low, high = 0, self.fill
        for fact in self.index.function.values:
            if fact.tensor == parameter.name:
                if fact.distinct or fact.sorted:
                    return None
                try:
                    low, high = fact.low.evaluate(self.sizes), fact.high.evaluate(self.sizes) - 1
                except (KeyError, ZeroDivisionError):
                    return None
        number = (low, min(low + 1, high), high)[self.fill]
        self.used[parameter.name] = number
        return number

    def text(self) -> str:
        """What memory holds where the solution says nothing."""
        return " and ".join(f"every other element of `{name}` is {number}" for name, number in self.used.items())


def _atoms(instance: Instance) -> list[Atom]:
    formulas = [*instance.runs, *(Formula("eq", axis.start) for axis in instance.axes)]
    return [*terms.closure(formulas)]


def _element(index: IndexTerms, atom: Atom, tiles: dict[Value, Tile], found: Assignment) -> int | None:
    """The actual value of an unknown; if the value's divisibility is known, the unknown may be the quotient."""
    value, positions = index.sources[atom], index.positions_of.get(atom)
    tile = tiles.get(value)
    if tile is None or positions is None or len(positions) != value.tile.rank or value.tile.dtype.is_float:
        return None
    flat_index = 0
    for extent, position in zip(value.tile.shape, positions, strict=True):
        flat_index = flat_index * extent + terms.evaluate(position, evaluator(found))
    number = tile[flat_index] if 0 <= flat_index < len(tile) else None
    known = index.ranges[value]
    is_multiple = known.modulus > 1 and (atom.low, atom.high) != (known.low, known.high)
    return number if number is None or not is_multiple else (number - known.rest) // known.modulus


@dataclass(eq=False, slots=True)
class _Run:
    """Execution of one block up to the iterations `iterations` of some loops; `values` are the SSA values at that point."""

    function: Function
    sizes: dict[str, int]
    block: tuple[int, ...]
    iterations: dict[For, int]
    memory: _Memory
    values: dict[Value, Tile] = field(default_factory=dict[Value, Tile])
    steps: int = 0
    on_path: bool = True  # all enclosing loops are in the requested iteration
    surrounding: dict[If, bool] = field(default_factory=dict[If, bool])

    def tiles(self) -> dict[Value, Tile]:
        """Elements by SSA value, for the values that were reached."""
        for parameter in self.function.parameters:
            if parameter.access is None and parameter.name in self.sizes:
                self.values[parameter.value] = [self.sizes[parameter.name]]
        return self.values if self.inside(self.function.body) else {}

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
            elif len(op.results) == 1 and isinstance(op.result.type, TileType):
                self.values[op.result] = self.result(op)
                self.steps += max(1, op.result.tile.size)
            if self.steps > STEPS:
                return False
        return True

    def loop(self, op: For) -> bool:
        lower, upper, step = (self.scalar(value) for value in op.operands[:3])
        if lower is None or upper is None or step is None or step < 1:
            return False
        carried = [self.of(value) for value in op.initial]
        body, outer_on_path = op.regions[0], self.on_path
        for iteration in range(lower, upper, step):
            self.on_path = outer_on_path and self.iterations.get(op) in (None, iteration)
            self.values.update(zip(body.arguments, [[iteration], *carried], strict=True))
            self.steps += ITERATION
            if self.steps > STEPS or not self.inside(body):
                return False
            if self.on_path and op in self.iterations:
                return True  # the requested point is inside the loop
            carried = [self.of(value) for value in body.ops[-1].operands]
        self.on_path = outer_on_path
        self.values.update(zip(op.results, carried, strict=True))
        return not (outer_on_path and op in self.iterations)

    def branch(self, op: If) -> bool:
        condition = self.scalar(op.operands[0])
        if condition is None:
            self.values.update((value, _unknown(value)) for value in op.results)
            self.steps += SKIPPED
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
        if tile.dtype.is_float or any(isinstance(v.type, TileType) and v.tile.dtype.is_float for v in op.operands):
            return [None] * count
        match op:
            case Constant():
                return [int(op.value)] * count
            case Iota():
                return [*range(count)]
            case BlockId():
                return [self.block[op.axis]]
            case NumBlocks():
                return [self.host(self.function.grid[op.axis])]
            case DimValue():
                return [self.sizes.get(op.symbol)]
            case Binary() if op.kind in INTEGER_KINDS:
                pairs = zip(*operands, strict=True)
                return [combined(op.kind, a, b, tile.dtype) for a, b in pairs]
            case Unary():
                return [None if a is None else integer_unary(op.kind, a, tile.dtype) for a in operands[0]]
            case Cast() | Bitcast():
                return [None if a is None else integer_cast(a, tile.dtype) for a in operands[0]]
            case Compare():
                pairs = zip(*operands, strict=True)
                return [None if a is None or b is None else int(_COMPARE[op.kind](a, b)) for a, b in pairs]
            case Select():
                return [None if c is None else a if c else b for c, a, b in zip(*operands, strict=True)]
            case Broadcast() | Butterfly() | Permute() | Reshape():
                return moved(op, operands[0])
            case Take():
                return taken(op, *operands)
            case Load() | Gather() if op.unsafe is None:
                return self.read(op, operands[1:])
            case Reduce():
                return reduced(op, operands[0])
            case _:
                return [None] * count

    def read(self, op: Load | Gather, indices: list[Tile]) -> Tile:
        parameter, pad = self.function.parameter_of(op.source), None if op.pad is None else int(op.pad)
        if isinstance(op, Load):
            starts = [tile[0] for tile in indices]
            points = product(*(
                [None] * extent if start is None else range(start, start + extent)
                for start, extent in zip(starts, op.result.tile.shape, strict=True)
            ))  # fmt: skip
        else:
            points = zip(*indices, strict=True)
        found: Tile = []
        for point in points:
            element_index = tuple(at for at in point if at is not None)
            found.append(self.memory.element(parameter, element_index, pad) if len(element_index) == len(point) else None)
        return found

    def host(self, expr: Expr) -> int | None:
        try:
            return expr.evaluate(self.sizes)
        except (KeyError, ZeroDivisionError):
            return None


def _unknown(value: Value) -> Tile:
    return [None] * (max(1, value.tile.size) if isinstance(value.type, TileType) else 1)
