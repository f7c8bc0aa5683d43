"""Checks the unknowns of a counterexample by executing the block's integer operations up to the access.

A solution of a violated system gives numbers to values that the prover does not translate, such as loop-carried ones. In:
such a solution, and the executions that it describes. Out: the actual numbers, from running the kernel's integers from the
start; nothing where they agree. A contradicted counterexample is not shown, and neither is one with a loop-carried value that
the run does not compute.

Tensors that are only read hold what the solution says, and elsewhere one number, so that a run is one launch: `FILLS` are
tried in order. Most floats, tensors that the kernel writes, and everything after the step limit are unknown.

Positions that a sort takes elements from, and prefix sums, are unknowns of the same kind: `replayed_rows` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilec.ir.core import Access, Block, Function, Op, Parameter, Value
from tilec.ir.ops import For, If, WriteOp
from tilec.ir.types import TileType
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance
from tilec.passes.prover.block_run import BlockRun, Point
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.replayed_rows import Execution, from_rows, row_of
from tilec.passes.prover.replayed_tiles import Tile
from tilec.passes.prover.tensor_contents import deciding_tensors
from tilec.passes.prover.terms import Atom, Formula, Kind

FILLS: Final = ((0, 0), (1, 1), (2, 2), (1, 0), (0, 1))
"""Contents tried for the elements that a solution does not mention, of the first tensor that is read and of the others: the
smallest declared number, the next, the largest."""


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
    """Runs of the launch that a solution describes, one for each of `FILLS` if a loop-carried value, a sort or a prefix sum
    depends on memory."""
    unknown = [atom for instance in instances for atom in assumed_in(index, found, instance)]
    on_memory = any(is_carried(index.function, index.sources[atom]) for atom in unknown)
    on_memory |= any(from_rows(_atoms(instance), found) for instance in instances)
    for fill in FILLS if on_memory else (None,):
        memory = _Memory(index, found, fill)
        replay = _replayed(index, found, instances, memory)
        yield replace(replay, note=memory.text())
        if not memory.used:
            return


def _replayed(index: IndexTerms, found: Assignment, instances: Sequence[Instance], memory: _Memory) -> Replay:
    value, learned, numbers, complete = evaluator(found), list[Formula](), dict[Atom, int](), True
    sizes = {name: found[atom] for name in index.symbols if (atom := index.symbol(name).atom) in found}
    for instance in instances:
        unknown, rows = assumed_in(index, found, instance), from_rows(_atoms(instance), found)
        if not unknown and not rows:
            continue
        block = tuple(terms.evaluate(poly, value) for poly in instance.blocks)
        point = [*instance.blocks, *(count for _, _, count in instance.loops)]
        other_point = [terms.ne(poly, terms.evaluate(poly, value)) for poly in point]
        iterations = {loop: terms.evaluate(variable, value) for loop, variable, _ in instance.loops}
        tiles = BlockRun(index.function, sizes, block, iterations, memory).tiles()
        for atom in unknown:
            number = _element(index, atom, tiles, found)
            complete &= number is not None or not is_carried(index.function, index.sources[atom])
            if number is None or number == found[atom] or _may_be_any(index.function, index.sources[atom]):
                continue
            numbers[atom] = number
            learned.append(terms.disjunction((*other_point, terms.eq(terms.of(atom), number))))
        counts = {loop: terms.evaluate(count, value) for loop, _, count in instance.loops}
        for atom in rows:
            row = row_of(index, atom, Execution(block, counts, tiles), value)
            number = row.number(value) if row is not None else None
            complete &= number is not None
            if row is not None and number is not None and number != found[atom]:
                numbers[atom] = number
                learned.append(row.learned(atom, value))
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


def _may_be_any(function: Function, value: Value) -> bool:
    """Whether a value is computed from floats, which other contents of memory may make what a solution says; one that a loop
    carries is what the run computes."""
    if is_carried(function, value):
        return False
    pending, seen = [value], set[Value]()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one.type, TileType) and one.type.dtype.is_float:
            return True
        pending += one.owner.operands if isinstance(one.owner, Op) else []
    return False


class _Memory:
    """Contents of the tensors that the kernel only reads, in one launch: the elements of a solution, and elsewhere the
    number of a fill, within the declared range; without a fill, they are unknown."""

    def __init__(self, index: IndexTerms, found: Assignment, fill: tuple[int, int] | None) -> None:
        self.index, self.fill, value = index, fill, evaluator(found)
        self.used: dict[str, int] = {}
        self.deciding = deciding_tensors(index.function, index.stored)
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
        if not inside or parameter.access is not Access.IN or tensor.dtype.kind == "b":
            return pad if not inside else None
        known = self.known.get((parameter.name, element_index))
        return known if known is not None else self._filled(parameter)

    def wrote(self, op: WriteOp, parameter: Parameter, points: Iterator[Point], tile: Tile) -> None:
        """Tensors that the kernel writes are unknown as they are."""

    def may_have_written(self, op: If) -> None:
        """As above."""

    def _filled(self, parameter: Parameter) -> int | None:
        """A number for every element that the solution does not mention; None if declarations relate the elements, and for
        tensors that decide nothing."""
        if self.fill is None or parameter.name not in self.deciding:
            return None
        if parameter.name in self.used:
            return self.used[parameter.name]
        fill = self.fill[1 if self.used else 0]
        low, high = 0, fill
        for fact in self.index.function.values:
            if fact.tensor == parameter.name:
                if fact.distinct or fact.sorted:
                    return None
                try:
                    low, high = fact.low.evaluate(self.sizes), fact.high.evaluate(self.sizes) - 1
                except (KeyError, ZeroDivisionError):
                    return None
        number = (low, min(low + 1, high), high)[fill]
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
