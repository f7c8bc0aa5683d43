"""Describes every access of a kernel as statement instances: which block runs it, in which iteration, on which elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from tilec.diagnostics.diagnostic import Span
from tilec.ir.core import Effect, Op, Parameter, Value
from tilec.ir.ops import For, MemoryOp
from tilec.passes.prover import terms
from tilec.passes.prover.coordinates import Coordinates, persistent, split_digits
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_UNKNOWN_PAIRS: Final = 28  # limit on the pairs of untranslated values that are compared


@dataclass(frozen=True, slots=True)
class Axis:
    """Elements `start <= e < start + extent` of one axis of extent `dim`."""

    start: Poly
    extent: int
    dim: Poly


@dataclass(frozen=True, slots=True)
class Unknown:
    """An untranslated value of one execution: `point` are the block ids, the iterations of the loops around its definition, and
    the positions of the element. There it is computed at most once, so that it is a function of its point."""

    value: Value
    atom: Atom
    point: tuple[Poly, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One execution of an access in symbolic coordinates.

    `runs`: conditions under which it is executed. `given`: facts that are then true. `blocks`: the block id per grid axis;
    `digits`: the coordinates that replace it, if any. `loops`: the enclosing loops with variable and iteration number,
    outermost first.
    """

    axes: tuple[Axis, ...]
    runs: tuple[Formula, ...]
    given: tuple[Formula, ...]
    blocks: tuple[Poly, ...]
    digits: Mapping[int, tuple[Poly, ...]]
    loops: tuple[tuple[For, Poly, Poly], ...]
    positions: tuple[Poly, ...]
    unknowns: tuple[Unknown, ...] = ()
    """Of a renamed instance: its untranslated values, with the execution and the element that each is of."""

    @property
    def holds(self) -> tuple[Formula, ...]:
        """Everything that is true when it is executed."""
        return (*self.runs, *self.given)

    def renamed(self, index: IndexTerms, copy: int, like: int = 0, loops: tuple[For, ...] = ()) -> Instance:
        """The same execution with fresh unknowns, for reasoning about two executions at a time. With `like`, it is one by the
        same block as the copy of that number, in the same iteration of `loops`: both share the values computed outside of other
        loops."""
        mapping = _copies(index, self, copy)
        if like:
            known = _copies(index, self, like)
            mapping = {atom: known[atom] if _fixed(index, atom, loops) else twin for atom, twin in mapping.items()}
        return replace(_substituted(index, self, mapping), unknowns=tuple(_unknowns(index, self, mapping)))


@dataclass(frozen=True, slots=True, eq=False)
class AccessSite:
    """A load, store, gather, scatter or atomic of the kernel text. `clipped`: elements outside the tensor are skipped (`pad=`
    or `mask=True`). `unsafe`: inside a `with unsafe` block."""

    op: MemoryOp
    parameter: Parameter
    instance: Instance
    clipped: bool
    position: int
    coordinates: Coordinates = field(default_factory=Coordinates)

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def unsafe(self) -> bool:
        return self.op.unsafe is not None

    @property
    def writes(self) -> bool:
        return self.op.effect in (Effect.WRITE, Effect.ATOMIC)

    @property
    def verb(self) -> str:
        """The function that the kernel author called."""
        return self.op.verb

    @property
    def subject(self) -> str:
        """Short text, such as "store to `out`"."""
        return f"{self.verb} {'to' if self.writes else 'from'} `{self.name}`"

    @property
    def location(self) -> Span | None:
        return self.op.loc


def between_neighbours(tensor: str, instances: Iterable[Instance]) -> bool:
    """Whether neighbouring elements of a tensor, such as `cu[b]` and `cu[b + 1]`, bound what the instances access."""
    formulas = [formula for one in instances for formula in (*one.holds, *(Formula("eq", axis.start) for axis in one.axes))]
    indices = {atom.args[0] for atom in terms.closure(formulas) if atom.kind is Kind.LOADED and atom.label == tensor}
    return any(slot + 1 in indices for slot in indices)


def access_sites(index: IndexTerms) -> list[AccessSite]:
    """All accesses in program order."""
    found: list[AccessSite] = []
    for op in index.function.body.walk():
        if isinstance(op, MemoryOp):
            found.append(_site(index, op))
    return found


def _site(index: IndexTerms, op: MemoryOp) -> AccessSite:
    parameter = index.function.parameter_of(op.tensor)
    instance, coordinates = rebased(index, op, _instance(index, op))
    return AccessSite(op, parameter, instance, op.clipped, index.structure.position[op], coordinates)


def rebased(index: IndexTerms, op: Op, instance: Instance) -> tuple[Instance, Coordinates]:
    """The instance in coordinates that make it linear if possible: those of persistent loops and of decomposed block ids."""
    coordinates = persistent(index, index.structure.frames[op])
    result = _rebase(index, instance, coordinates)
    for _ in range(4):
        if not split_digits(index, coordinates, _formulas(result)):
            break
        result = _rebase(index, instance, coordinates)
    return result, coordinates


def _formulas(instance: Instance) -> list[Formula]:
    return [*instance.holds, *(Formula("eq", axis.start) for axis in instance.axes)]


def _instance(index: IndexTerms, op: MemoryOp) -> Instance:
    dims = [index.expression(dim) for dim in op.tensor.tensor.dims]
    positions: tuple[Poly, ...] = ()
    if op.indexed:
        shape = op.indices[0].tile.shape if op.indices else ()
        positions = tuple(tile_position(index, op, axis, extent) for axis, extent in enumerate(shape))
        axes = [Axis(index.element(i, positions), 1, dim) for i, dim in zip(op.indices, dims, strict=True)]
    else:
        axes = [Axis(index.scalar(o), e, dim) for o, e, dim in zip(op.indices, op.tile.tile.shape, dims, strict=True)]
    frames = index.structure.frames[op]
    loops = [frame.op for frame in frames if isinstance(frame.op, For)]
    return Instance(
        tuple(axes),
        tuple(index.runs(frames)),
        tuple(index.given(op, [Formula("eq", axis.start) for axis in axes])),
        tuple(index.block(axis) for axis in range(len(index.grid))),
        {},
        tuple((loop, index.variable(loop), index.iteration(loop)) for loop in loops),
        positions,
    )


def tile_position(index: IndexTerms, op: Op, axis: int, extent: int) -> Poly:
    """An arbitrary position along one axis of a tile."""
    if extent == 1:
        return terms.ZERO
    return terms.of(index.atoms.make((op, axis), Kind.POSITION, f"p{axis}", (0, extent - 1)))


def _rebase(index: IndexTerms, instance: Instance, coordinates: Coordinates) -> Instance:
    if not coordinates.mapping:
        return instance
    moved = _substituted(index, instance, coordinates.mapping)
    runs = tuple(map(coordinates.runs, moved.runs))
    digits = {axis: tuple(map(terms.of, atoms)) for axis, atoms in coordinates.digits.items()}
    return Instance(moved.axes, runs, moved.given, moved.blocks, digits, moved.loops, moved.positions)


def _substituted(index: IndexTerms, instance: Instance, mapping: Mapping[Atom, Poly]) -> Instance:
    memo: dict[Atom, Poly] = {}

    def move(poly: Poly) -> Poly:
        return index.atoms.substitute(poly, mapping, memo)

    return Instance(
        tuple(Axis(move(axis.start), axis.extent, axis.dim) for axis in instance.axes),
        tuple(index.atoms.substitute_in(formula, mapping, memo) for formula in instance.runs),
        tuple(index.atoms.substitute_in(formula, mapping, memo) for formula in instance.given),
        tuple(map(move, instance.blocks)),
        {axis: tuple(map(move, digits)) for axis, digits in instance.digits.items()},
        tuple((loop, move(variable), move(count)) for loop, variable, count in instance.loops),
        tuple(map(move, instance.positions)),
    )


def _fixed(index: IndexTerms, atom: Atom, loops: tuple[For, ...]) -> bool:
    """Whether an unknown has one value per block and iteration of each of `loops`."""
    if atom.kind is Kind.BLOCK:
        return True
    if atom.kind is Kind.ITERATION:
        return any(index.iteration(loop).atom is atom for loop in loops)
    value = index.sources.get(atom)
    if atom.kind is not Kind.OPAQUE or value is None or any(p.constant is None for p in index.positions_of.get(atom, ())):
        return False
    around = index.structure.around(value)
    return around is not None and all(loop in loops for loop in around)


_BASE = (Kind.BLOCK, Kind.ITERATION, Kind.POSITION, Kind.COORDINATE, Kind.OPAQUE)


def _unknowns(index: IndexTerms, instance: Instance, mapping: Mapping[Atom, Poly]) -> Iterator[Unknown]:
    """The untranslated values of an instance under a renaming that reaches all that their points depend on."""
    counts = {loop: count for loop, _, count in instance.loops}
    for atom, twin in mapping.items():
        value = index.sources.get(atom) if atom.kind is Kind.OPAQUE else None
        around = index.structure.around(value) if value is not None else None
        if value is None or around is None or twin.atom is None or any(loop not in counts for loop in around):
            continue
        point = (*instance.blocks, *(counts[loop] for loop in around), *index.positions_of.get(atom, ()))
        inside = terms.closure(Formula("eq", poly) for poly in point)
        if all(one in mapping for one in inside if one.varies and one.kind in _BASE):
            yield Unknown(value, twin.atom, tuple(index.atoms.substitute(poly, mapping) for poly in point))


def same_unknowns(first: Instance, second: Instance) -> list[Formula]:
    """Untranslated values of one operation at equal points are equal, for two renamed instances."""
    found: list[Formula] = []
    for a, b in combinations(dict.fromkeys((*first.unknowns, *second.unknowns)), 2):
        alike = (a.value, a.atom.low, a.atom.high, a.atom.label) == (b.value, b.atom.low, b.atom.high, b.atom.label)
        if alike and a.atom is not b.atom:
            apart = [terms.ne(x, y) for x, y in zip(a.point, b.point, strict=True)]
            found.append(terms.disjunction((*apart, terms.eq(terms.of(a.atom), terms.of(b.atom)))))
    return found[:MAX_UNKNOWN_PAIRS]


def _copies(index: IndexTerms, instance: Instance, copy: int) -> dict[Atom, Poly]:
    polys = [*instance.blocks, *instance.positions, *(p for digits in instance.digits.values() for p in digits)]
    polys += [p for _, variable, count in instance.loops for p in (variable, count)]
    given = [*_formulas(instance), *(Formula("eq", poly) for poly in polys)]
    mapping: dict[Atom, Poly] = {}
    for atom in terms.closure(given):
        if atom.varies and atom.kind in _BASE:
            bounds = (atom.low, atom.high)
            name = f"{atom.name}_{copy}"
            twin = index.atoms.make((atom, copy), atom.kind, name, bounds, args=atom.args, label=atom.label, level=atom.level)
            mapping[atom] = terms.of(twin)
            if atom in index.sources:
                index.sources[twin] = index.sources[atom]
            if atom in index.pairs_of:
                index.pairs_of[twin] = index.pairs_of[atom]
    for atom, twin in mapping.items():
        if atom in index.positions_of and twin.atom is not None:
            index.positions_of[twin.atom] = tuple(
                index.atoms.substitute(position, mapping) for position in index.positions_of[atom]
            )
    return mapping
