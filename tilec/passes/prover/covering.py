"""Decides whether the union of some sets covers every point of another. Exact, with isl; for coverage and reads after writes.

Formulas over universal atoms describe the universe. A cover contains a point if *some* values of its other atoms satisfy it.
Replacing products of unknowns is sound on one side only: in the universe a product may become an unknown of its own, which
adds points to cover; in a cover it must not, so a cover with products of its own atoms is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import islpy

from tilec.passes.prover import terms
from tilec.passes.prover.case_split import alternatives
from tilec.passes.prover.integer_sets import LIMITS, Assignment, Solver, evaluator, near_zero
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.set_text import Names, formula_text
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

Cover = list[Formula]
ALTERNATIVES = 64  # limit on the disjuncts of a universe or cover in disjunctive normal form, which isl computes
UNKNOWNS = 12  # limit on a cover's own unknowns, each a division for isl; one more makes its operations 1.5 times as long


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Covers that depend on memory contents. Together they cover a point if for some values of `coordinates` (block ids, loop
    variables) one of them is satisfied *whatever* `contents` are, given `facts`; contents are a function of `coordinates`."""

    covers: list[Cover]
    coordinates: list[Atom]
    contents: list[Atom]
    facts: list[Formula]


def usable(cover: Cover, universal: set[Atom]) -> bool:
    """True if no product in the cover or its definitions involves one of its own atoms."""
    whole = [*cover, *(terms.definition(atom) for atom in terms.closure(cover))]
    products = [m for f in whole for p in f.polys() for m in p.terms if len(m) > 1]
    return not any(atom.varies and atom not in universal for m in products for atom in m)


def uncovered(
    solver: Solver,
    universe: Iterable[Formula],
    covers: list[Cover],
    points_of: Iterable[Poly] = (),
    small: Callable[[Atom], bool] | None = None,
    uncertain: Uncertain | None = None,
) -> Assignment | None:
    """A point of the universe in no cover, or None if there is none. Numbers selected by `small` are kept small. The atoms of
    `points_of` belong to a point even if the universe does not restrict them. Undecided if the budget is spent, or if the point
    found is spurious because its products have wrong values."""
    universe = list(universe)
    universal = set(terms.closure([*universe, *(Formula("eq", poly) for poly in points_of)]))
    uncertain_covers = uncertain.covers if uncertain is not None else []
    shared = [a for cover in (*covers, *uncertain_covers) for a in terms.closure(cover) if not a.varies]
    universal |= set(shared)
    names = Names()
    ordered = sorted(universal, key=lambda atom: atom.uid)
    kept, omitted = _few_alternatives([*universe, *described(ordered)])
    formula_text(terms.conjunction(kept), names)
    # A product of universal atoms is universal too, wherever it occurs.
    for cover in (*covers, *uncertain_covers):
        for formula in (*cover, *map(terms.definition, terms.closure(cover))):
            for monomial in (m for poly in formula.polys() for m in poly.terms if len(m) > 1):
                names.of(monomial)
    for atom in ordered:
        names.of((atom,))
    products = [_above_corner(monomial) for monomial in names.order if len(monomial) == 2]
    body = formula_text(terms.conjunction((*kept, *products)), names)
    dims = list(names.order)
    simple = [cover for cover in covers if _is_simple(cover, universal)]
    for cover in (kept, *simple):
        solver.check_size(terms.conjunction(cover))
    pieces = [_cover_text(cover, universal, names.copy()) for cover in simple]
    space = ", ".join(names.of(m) for m in dims)
    try:
        points = islpy.Set.read_from_str(solver.context, f"{{ [{space}] : {body} }}")
        written = [islpy.Set.read_from_str(solver.context, f"{{ [{space}] : {piece} }}") for piece in pieces]
        points = solver.work.limited(solver.context, lambda: _without(points, written))
        empty = solver.work.limited(solver.context, points.is_empty)
        if uncertain is not None and not empty:
            rest, uncertain_contents = points, uncertain
            points = solver.work.limited(
                solver.context, lambda: rest.subtract(_covered_for_all_contents(solver, uncertain_contents, universal, names))
            )
            empty = solver.work.limited(solver.context, points.is_empty)
            pieces.append("what is written whatever memory holds")
        solver.queries += 1
        if empty:
            solver.texts.append(f"{{ [{space}] : {body} }} - {{ [{space}] : {' or '.join(pieces) or 'false'} }}")
            return None
        point = solver.work.limited(solver.context, lambda: _smallest(points, ordered, dims, small))
    except islpy.Error as error:
        raise Undecided from error
    values = [point.get_coordinate_val(islpy.dim_type.set, i).to_python() for i in range(len(dims))]
    found = {m[0]: v for m, v in zip(dims, values, strict=True) if len(m) == 1}
    if any(prod(found[atom] for atom in m) != v for m, v in zip(dims, values, strict=True)):
        raise Undecided  # a spurious point, whose products have wrong values; there may be others
    if len(simple) < len(covers) or not all(terms.holds(formula, evaluator(found)) for formula in omitted):
        raise Undecided  # the covers or formulas left out may cover or exclude this point
    return found


def _few_alternatives(formulas: list[Formula]) -> tuple[list[Formula], list[Formula]]:
    """The formulas whose disjunctive normal form is small enough for isl, and those left out. Leaving some out only adds
    points, so covers that contain all of them also contain the original ones."""
    kept, omitted = list(formulas), list[Formula]()
    while alternatives(terms.conjunction(kept), ALTERNATIVES) > ALTERNATIVES:
        widest = max(kept, key=lambda formula: alternatives(formula, ALTERNATIVES))
        kept.remove(widest)
        omitted.append(widest)
    return kept, omitted


def _is_simple(cover: Cover, universal: set[Atom]) -> bool:
    """Whether isl can subtract the cover. Leaving a cover out only reduces the points covered."""
    own = sum(atom not in universal for atom in terms.closure(cover))
    return own <= UNKNOWNS and alternatives(_in_full(cover, universal), ALTERNATIVES) <= ALTERNATIVES


def _in_full(cover: Cover, universal: set[Atom]) -> Formula:
    return terms.conjunction((*cover, *described(atom for atom in terms.closure(cover) if atom not in universal)))


def _without(points: islpy.Set, covered: Iterable[islpy.Set]) -> islpy.Set:
    for piece in covered:
        points = points.subtract(piece)
    return points


def _covered_for_all_contents(solver: Solver, uncertain: Uncertain, universal: set[Atom], names: Names) -> islpy.Set:
    """Points covered whatever the contents, for some `coordinates`: those for which no contents leave the point uncovered."""
    known = len(names.order)
    names = names.copy()
    own = [*uncertain.coordinates, *uncertain.contents]
    space = ", ".join([*(names.of(m) for m in names.order), *(names.of((atom,)) for atom in own)])
    body = formula_text(terms.conjunction((*described(own), *uncertain.facts)), names)
    assert len(names.order) == known + len(own), "a fact about contents mentions something else"
    everything = islpy.Set.read_from_str(solver.context, f"{{ [{space}] : {body} }}")
    missed = everything
    for cover in uncertain.covers:
        text = _cover_text(cover, universal | set(own), names.copy())
        missed = missed.subtract(islpy.Set.read_from_str(solver.context, f"{{ [{space}] : {text} }}"))
    first = known + len(uncertain.coordinates)
    count = len(uncertain.contents)
    uncovered_for_some = missed.project_out(islpy.dim_type.set, first, count)
    covered = everything.project_out(islpy.dim_type.set, first, count).subtract(uncovered_for_some)
    return covered.project_out(islpy.dim_type.set, known, len(uncertain.coordinates))


def _above_corner(monomial: terms.Monomial) -> Formula:
    """`(x - low) * (y - low) >= 0`: a bound on the product from the smallest values of its factors."""
    left, right = (terms.of(atom) - atom.low for atom in monomial)
    return Formula("ge", left * right)


def _smallest(
    points: islpy.Set, ordered: list[Atom], dims: list[terms.Monomial], small: Callable[[Atom], bool] | None
) -> islpy.Point:
    if small is None:
        return points.sample_point()
    for limit in LIMITS:
        if limit is None:
            break
        names = Names()
        space = ", ".join(names.of(m) for m in dims)
        text = formula_text(terms.conjunction(near_zero(atom, limit) for atom in ordered if small(atom)), names)
        near = points.intersect(islpy.Set.read_from_str(points.get_ctx(), f"{{ [{space}] : {text} }}"))
        if not near.is_empty():
            return near.sample_point()
    return points.sample_point()


def described(atoms: Iterable[Atom]) -> list[Formula]:
    """Definitions and intervals of atoms."""
    found: list[Formula] = []
    for atom in atoms:
        found.append(terms.definition(atom))
        found.append(Formula("ge", terms.of(atom) - atom.low))
        found.append(Formula("ge", terms.const(atom.high) - terms.of(atom)))
    return found


def _cover_text(cover: Cover, universal: set[Atom], names: Names) -> str:
    known = len(names.order)
    own = [atom for atom in terms.closure(cover) if atom not in universal]
    body = formula_text(terms.conjunction((*cover, *described(own))), names)
    fresh = names.order[known:]
    assert all(len(monomial) == 1 and monomial[0] not in universal for monomial in fresh), "product in a cover"
    if not fresh:
        return f"({body})"
    return f"(exists ({', '.join(map(names.of, fresh))} : {body}))"


def loaded_or_opaque(cover: Cover, universal: set[Atom]) -> bool:
    """True if the elements that a cover writes depend on memory contents that differ from block to block."""
    unknown = (Kind.LOADED, Kind.OPAQUE)
    return any(atom.varies and atom.kind in unknown and atom not in universal for atom in terms.closure(cover))
