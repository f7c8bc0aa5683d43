"""Checks the unknowns of a counterexample by executing the block's operations up to the access.

A solution of a violated system gives numbers to values that the prover does not translate, such as loop-carried ones and what
is computed from floats. In: such a solution, and the executions that it describes. Out: the actual numbers, from running the
kernel from the start; nothing where they agree. A counterexample that a run contradicts is not shown, and neither is one with a
value that no run computes.

Tensors hold what the solution says, what `chosen_contents` chooses so that unknowns have their numbers, and elsewhere one
number, so that a run is one launch: `FILLS` are tried in order. Most results of floats, tensors that only the kernel writes,
and everything after the step limit are unknown. What an atomic operation returns, other blocks decide: it stays assumed.

Positions that a sort takes elements from, and prefix sums, are unknowns of the same kind: `replayed_rows` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tilec.ir.core import Access, Effect, Op, Parameter, Value
from tilec.ir.ops import AtomicScatter, If, WriteOp
from tilec.ir.types import TileType
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance
from tilec.passes.prover.block_run import BlockRun, Point
from tilec.passes.prover.chosen_contents import Contents, Key, chosen, float_class, pair_class
from tilec.passes.prover.float_orders import Other
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.replayed_floats import NAN, constant_next_to
from tilec.passes.prover.replayed_rows import Execution, from_rows, row_of
from tilec.passes.prover.replayed_tiles import Tile
from tilec.passes.prover.tensor_contents import deciding_tensors
from tilec.passes.prover.terms import Atom, Formula, Kind

FILLS: Final = ((0, 0), (1, 1), (2, 2), (1, 0), (0, 1))
"""Contents tried for the elements that a solution does not mention, of the first tensor that is read and of the others: the
smallest declared number, the next, the largest; of floats 0, 1 and -1."""
ROUNDS: Final = 4
"""How often contents are chosen for one solution: what is known of a branch depends on those that decide whether it runs."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What one run shows about a solution: `numbers` are the unknowns whose values differ from it, and `learned` says so as
    formulas conditional on its block and iterations. At other sizes the values may differ, so the formulas guide a search and
    prove nothing. `complete`: no value remains assumed. `note`: what memory holds elsewhere, if that matters; `shown`: the
    elements whose contents were chosen."""

    numbers: Assignment
    learned: list[Formula]
    complete: bool
    note: str = ""
    shown: Assignment = field(default_factory=dict[Atom, int])


def replays(index: IndexTerms, found: Assignment, instances: Sequence[Instance]) -> Iterator[Replay]:
    """Runs of the launch that a solution describes, one for each of `FILLS` if an untranslated value, a sort or a prefix sum
    depends on memory."""
    on_memory = any(assumed_in(index, found, instance) for instance in instances)
    on_memory |= any(from_rows(_atoms(instance), found) for instance in instances)
    for fill in FILLS if on_memory else (None,):
        memory = _Memory(index, found, fill)
        replay = _replayed(index, found, instances, memory)
        for _ in range(ROUNDS):
            if not memory.choose():
                break
            replay = _replayed(index, found, instances, memory)
        yield replace(replay, note=memory.text(), shown=memory.shown())
        if not memory.used:
            return


def _replayed(index: IndexTerms, found: Assignment, instances: Sequence[Instance], memory: _Memory) -> Replay:
    value = evaluator(found)
    numbers, learned = _quotients_of_the_host(index, found, memory.sizes)
    actual = evaluator({**found, **numbers})
    extents = [terms.evaluate(poly, actual) for poly in index.grid] if numbers else []
    complete = all(  # a block that the grid does not have runs nothing
        terms.evaluate(poly, actual) < extent for one in instances for poly, extent in zip(one.blocks, extents, strict=False)
    )
    memory.used.clear()
    for instance in instances:
        unknown, rows = assumed_in(index, found, instance), from_rows(_atoms(instance), found)
        if not unknown and not rows:
            continue
        block = tuple(terms.evaluate(poly, value) for poly in instance.blocks)
        point = [*instance.blocks, *(count for _, _, count in instance.loops)]
        other_point = [terms.ne(poly, terms.evaluate(poly, value)) for poly in point]
        iterations = {loop: terms.evaluate(variable, value) for loop, variable, _ in instance.loops}
        memory.begin()
        tiles = BlockRun(index.function, memory.sizes | memory.parameters(), block, iterations, memory).tiles()
        for atom in unknown:
            number, flat = _element(index, atom, tiles, found)
            complete &= number is not None or is_old_value(index.sources[atom])
            if number != found[atom] and flat is not None:
                memory.wanted |= chosen(index, atom, found[atom], flat, tiles)
            if number is None or number == found[atom]:
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


def _quotients_of_the_host(index: IndexTerms, found: Assignment, sizes: dict[str, int]) -> tuple[Assignment, list[Formula]]:
    """The quotients of launch values that are other numbers at these sizes, and what follows for the search. A size that the
    solution leaves open is its smallest."""
    numbers, learned = dict[Atom, int](), list[Formula]()
    for atom, expr in index.divided_by_host.items():
        at = {name: sizes.get(name, index.symbols[name].low) for name in expr.symbols()}
        try:
            number = expr.evaluate(at) if atom in found else None
        except ZeroDivisionError:
            continue
        if number is not None and number != found[atom]:
            numbers[atom] = number
            other_sizes = [terms.ne(index.symbol(name), size) for name, size in at.items()]
            learned.append(terms.disjunction((*other_sizes, terms.eq(terms.of(atom), number))))
    return numbers, learned


def assumed_in(index: IndexTerms, found: Assignment, instance: Instance) -> list[Atom]:
    """Unknowns that decide what an instance accesses and whether it runs."""
    return [atom for atom in _atoms(instance) if atom.kind is Kind.OPAQUE and atom in found and atom in index.sources]


def is_old_value(value: Value) -> bool:
    """Whether a value is computed from what an atomic operation returns, and not carried by a loop."""
    pending, seen = [value], set[Value]()
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, AtomicScatter):
            return True
        if isinstance(owner, Op) and not owner.regions:
            pending += [one for one in owner.operands if one not in seen]
            seen.update(owner.operands)
    return False


class _Memory:
    """Contents of tensors in one launch: the elements of a solution, and elsewhere the number of a fill, within the declared
    range; without a fill, they are unknown. `wanted` are contents for some elements, and `contents` those of them that the
    launch may have. What a block wrote is what it reads."""

    def __init__(self, index: IndexTerms, found: Assignment, fill: tuple[int, int] | None) -> None:
        self.index, self.fill, value = index, fill, evaluator(found)
        self.used: dict[str, int] = {}
        self.deciding = deciding_tensors(index.function, index.stored)
        self.sizes = {name: found[atom] for name in index.symbols if (atom := index.symbol(name).atom) in found}
        loaded = [atom for atom in found if atom.kind is Kind.LOADED]
        self.wanted: Contents = {}
        self.contents: Contents = {}
        self.written: dict[Key, int | None] = {}
        self.blurred = set[str]()
        self.known = {(a.label, tuple(terms.evaluate(arg, value) for arg in a.args)): found[a] for a in loaded}

    def element(self, parameter: Parameter, element_index: tuple[int, ...], pad: int | None) -> int | None:
        """The element of a tensor; None if it is unknown, or outside the tensor without a padding."""
        tensor = parameter.value.tensor
        try:
            inside = all(0 <= at < dim.evaluate(self.sizes) for at, dim in zip(element_index, tensor.dims, strict=True))
        except (KeyError, ZeroDivisionError):
            return None
        key = parameter.name, element_index
        if not inside:
            return pad
        if parameter.name in self.blurred or key in self.written or parameter.access not in (Access.IN, Access.INOUT):
            return None if parameter.name in self.blurred else self.written.get(key)
        known = self.known.get(key, self.contents.get(key))
        return known if known is not None else self._filled(parameter)

    def choose(self) -> bool:
        """Let memory hold what is wanted, as far as declarations allow it; whether that is something new. What was chosen
        first stays."""
        before = len(self.contents)
        for (name, at), number in self.wanted.items():
            parameter = self.index.function.parameter(name)
            ends = self._ends(parameter)
            if ends is not None and (name, at) not in self.known:
                self.contents.setdefault((name, at), number if number == NAN else max(ends[0], min(ends[1], number)))
        self.wanted.clear()
        return len(self.contents) > before

    def parameters(self) -> dict[str, int]:
        """The parameters that are chosen like contents of memory."""
        return {name: number for (name, at), number in self.contents.items() if not at and name not in self.sizes}

    def shown(self) -> Assignment:
        """The chosen contents, as elements of an assignment."""
        atoms = self.index.atoms
        found: Assignment = {}
        for (name, at), number in self.contents.items():
            found[atoms.loaded(name, tuple(map(terms.const, at)), (-NAN, NAN))] = number
        return found

    def _ends(self, parameter: Parameter) -> tuple[int, int] | None:
        """The smallest and the largest number that an element may be chosen to be; None if that is not known."""
        dtype = parameter.value.tile.dtype if parameter.access is None else parameter.value.tensor.dtype
        low, high = (-int(dtype.largest), int(dtype.largest)) if dtype.is_float else dtype.integer_range()
        for fact in self.index.function.values:
            if fact.tensor == parameter.name:
                try:
                    low, high = max(low, fact.low.evaluate(self.sizes)), min(high, fact.high.evaluate(self.sizes) - 1)
                except (KeyError, ZeroDivisionError):
                    return None
        return (low, high) if low <= high else None

    def begin(self) -> None:
        """Forget what a block wrote: the next run is of another execution."""
        self.written.clear()
        self.blurred.clear()

    def wrote(self, op: WriteOp, parameter: Parameter, points: Iterator[Point], tile: Tile) -> None:
        """Take note of a write of a tile; after one at an unknown place, the tensor is unknown."""
        for point, number in zip(points, tile, strict=True):
            at = tuple(one for one in point if one is not None)
            if len(at) < len(point):
                self.blurred.add(parameter.name)
            else:
                self.written[parameter.name, at] = None if op.effect is Effect.ATOMIC else number

    def may_have_written(self, op: If) -> None:
        """Tensors that a branch may have written are unknown."""
        inside = (one for region in op.regions for one in region.walk() if isinstance(one, WriteOp))
        self.blurred |= {self.index.function.parameter_of(one.target).name for one in inside}

    def _filled(self, parameter: Parameter) -> int | None:
        """A number for every element that the solution does not mention; None if declarations relate the elements, and for
        tensors that decide nothing."""
        if self.fill is None or parameter.name not in self.deciding:
            return None
        if parameter.name in self.used:
            return self.used[parameter.name]
        fill = self.fill[1 if self.used else 0]
        dtype = parameter.value.tensor.dtype
        if dtype.is_float:
            self.used[parameter.name] = (0, 1, -1)[fill]
            return self.used[parameter.name]
        low, high = 0, min(fill, dtype.integer_range()[1])
        for fact in self.index.function.values:
            if fact.tensor == parameter.name:
                if fact.distinct or fact.distinct_in_rows or fact.sorted:
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


def _element(index: IndexTerms, atom: Atom, tiles: dict[Value, Tile], found: Assignment) -> tuple[int | None, int | None]:
    """The actual value of an unknown, if a run computed it, and the number of the element of its tile. Of floats it is their
    class; if a value's divisibility is known, it may be the quotient."""
    value, positions = index.sources[atom], index.positions_of.get(atom)
    shape = () if not isinstance(value.type, TileType) else value.tile.shape
    if positions is None or len(positions) != len(shape):
        return None, None
    flat = 0
    for extent, position in zip(shape, positions, strict=True):
        at = terms.evaluate(position, evaluator(found))
        if not 0 <= at < extent:
            return None, None
        flat = flat * extent + at
    pair, constants = index.pairs_of.get(atom), index.orders.constants.get(value)
    if pair is not None:
        left, right, constant = _known(tiles, pair.left, flat), _known(tiles, pair.right, flat), pair.constant
        right = right if constant is None else constant_next_to(constant, left, pair.left.tile.dtype)
        return (None if left is None or right is None else pair_class(left, right)), flat
    number = _known(tiles, value, flat)
    if number is None or constants is not None:
        return (None if number is None or constants is None else float_class(number, constants)), flat
    known = index.ranges[value]
    is_multiple = known.modulus > 1 and (atom.low, atom.high) != (known.low, known.high)
    return (number - known.rest) // known.modulus if is_multiple else number, flat


def _known(tiles: dict[Value, Tile], value: Other, flat: int) -> int | None:
    tile = tiles.get(value) if isinstance(value, Value) else None
    return None if tile is None or flat >= len(tile) else tile[flat]
