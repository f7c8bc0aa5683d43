"""What sorts and prefix sums of a replayed block give: the numbers of unknowns that stand for one of them.

In: such an unknown of a solution, and the tiles that the block computed. Out: the position from which the sort takes an
element, or the sum of the elements before one, and what it has at the other positions of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tilec.ir.core import Op, Value
from tilec.ir.ops import For, Sort
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment
from tilec.passes.prover.replayed_tiles import Tile
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly


@dataclass(frozen=True, slots=True)
class Execution:
    """A point of a launch: the block, the numbers of the iterations of loops, and what was computed there."""

    block: tuple[int, ...]
    counts: Mapping[For, int]
    tiles: Mapping[Value, Tile]


def from_rows(atoms: Iterable[Atom], found: Assignment) -> list[Atom]:
    """The unknowns among some atoms that stand for positions of a sort or for prefix sums."""
    return [atom for atom in atoms if atom.kind is Kind.LOADED and (atom.is_order or atom.is_sum) and atom in found]


@dataclass(frozen=True, slots=True)
class Row:
    """What a sort or a scan gives along an axis: a number for each position `at`, of which the unknown has one. `point` says
    which row it is."""

    numbers: list[int]
    at: Poly
    point: tuple[Poly, ...]

    def number(self, value: Callable[[Atom], int]) -> int | None:
        """The number of the unknown."""
        at = terms.evaluate(self.at, value)
        return self.numbers[at] if 0 <= at < len(self.numbers) else None

    def learned(self, atom: Atom, value: Callable[[Atom], int]) -> Formula:
        """What the unknown is in this row: at every position if the numbers rise evenly, as those of equal elements do."""
        steps = {after - before for before, after in pairwise(self.numbers)} or {0}
        elsewhere = [terms.ne(poly, terms.evaluate(poly, value)) for poly in self.point]
        if len(steps) == 1:
            return terms.disjunction((*elsewhere, terms.eq(terms.of(atom), self.at * steps.pop() + self.numbers[0])))
        at = terms.evaluate(self.at, value)
        return terms.disjunction((*elsewhere, terms.ne(self.at, at), terms.eq(terms.of(atom), self.numbers[at])))


def row_of(index: IndexTerms, atom: Atom, execution: Execution, value: Callable[[Atom], int]) -> Row | None:
    """The row of an unknown of `from_rows`; None if the run does not know its elements."""
    *point, at = atom.args[:-3] if atom.is_sum else atom.args
    arguments = [terms.evaluate(poly, value) for poly in point]
    if atom.is_order:
        op = next(op for op, position in index.structure.position.items() if atom.label == f"{terms.ORDER}{position}")
        assert isinstance(op, Sort)
        row = _row(index, op, op.operands[0], op.axis, arguments, execution)
        if row is None:
            return None
        order = sorted(range(len(row)), key=lambda one: -row[one] if op.descending else row[one])
        return Row(order, at, tuple(point))
    found = next(one for one in index.prefix_sums.sums.values() if atom.label == f"{terms.SUMS}{one.number}")
    assert isinstance(found.tile.owner, Op)
    row = _row(index, found.tile.owner, found.tile, found.axis, arguments, execution)
    if row is None:
        return None
    return Row([0, *accumulate(reversed(row) if found.reverse else row)][:-1], at, tuple(point))


def _row(index: IndexTerms, op: Op, tile: Value, axis: int, arguments: Sequence[int], execution: Execution) -> list[int] | None:
    """The elements along an axis, if the arguments name this execution and all elements are known. The arguments are the block,
    iterations of the loops around the operation, and positions along the other axes."""
    loops = [frame.op for frame in index.structure.frames[op] if isinstance(frame.op, For)]
    here = [*execution.block, *(execution.counts.get(loop) for loop in loops)]
    elements, shape = execution.tiles.get(tile), tile.tile.shape
    others = arguments[len(here) :]
    if elements is None or here != list(arguments[: len(here)]) or len(others) != len(shape) - 1:
        return None
    row: list[int] = []
    for at in range(shape[axis]):
        flat = 0
        for extent, position in zip(shape, (*others[:axis], at, *others[axis:]), strict=True):
            if not 0 <= position < extent:
                return None
            flat = flat * extent + position
        element = elements[flat]
        if element is None:
            return None
        row.append(element)
    return row
