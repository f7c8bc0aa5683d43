"""Prepares covers that isl cannot subtract as they stand: those that depend on memory contents or other untranslated values,
and those with products of their own unknowns."""

from __future__ import annotations

from typing import Final

from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance
from tilec.passes.prover.covering import Cover, Uncertain, loaded_or_opaque, usable
from tilec.passes.prover.few_values import each_case, each_value, small_factor
from tilec.passes.prover.findings import Findings
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

PARTS: Final = 64  # limit on the covers of one tensor of which some are parts of a write


def parts_of(findings: Findings, cover: Cover, limit: int) -> list[Cover]:
    """At most so many covers of which a point is in one if it is in this one: one for each value of unknowns of few values.
    Empty if that does not help."""
    pending, found = [cover], list[Cover]()
    while pending and len(pending) + len(found) <= limit:
        one = pending.pop()
        atom = small_factor(one) if not usable(one, set()) else None
        if atom is not None:
            pending += each_value(findings.index.atoms, atom, one)
        elif not usable(one, set()) or loaded_or_opaque(one, set()):
            return []
        else:
            found += each_case(findings.index.atoms, one) or [one]
    return [] if pending or len(found) > limit else found


def in_common_lanes(findings: Findings, instance: Instance, cover: Cover) -> Cover:
    """The cover with positions in its tile that those of other tiles of the same extent share: what one lane leaves out under a
    condition, the same lane of another write may reach."""
    atoms = findings.index.atoms
    mapping: dict[Atom, Poly] = {}
    for axis, position in enumerate(instance.positions):
        atom = position.atom
        if atom is not None and atom.kind is Kind.POSITION:
            key = ("lane", axis, atom.high)
            mapping[atom] = terms.of(atoms.make(key, Kind.POSITION, f"p{axis}", (0, atom.high)))
    mapping |= _of_positions(findings, cover, mapping) if mapping else {}
    return [atoms.substitute_in(formula, mapping) for formula in cover]


def _of_positions(findings: Findings, cover: Cover, mapping: dict[Atom, Poly]) -> dict[Atom, Poly]:
    """Untranslated values of a cover at other positions."""
    index, found = findings.index, dict[Atom, Poly]()
    for atom in terms.closure(cover):
        value, positions = index.sources.get(atom), index.positions_of.get(atom, ())
        if value is not None and positions and index.untranslated(atom, positions) == terms.of(atom):
            found[atom] = index.untranslated(atom, tuple(index.atoms.substitute(poly, mapping) for poly in positions))
    return found


def together(findings: Findings, covers: list[Cover], sites: list[AccessSite]) -> Uncertain | None:
    """The covers that depend on memory, if the contents they depend on are a function of block ids, loop variables and
    positions in tiles. Untranslated values are one for all covers, so that these must name blocks and iterations alike."""
    atoms = dict.fromkeys(atom for cover in covers for atom in terms.closure(cover) if atom.varies)
    contents = [atom for atom in atoms if atom.kind in (Kind.LOADED, Kind.OPAQUE)]
    points = {atom: _point(findings, atom) for atom in contents}
    if not contents or any(point is None for point in points.values()):
        return None
    if any(atom.kind is Kind.OPAQUE for atom in contents) and any(
        site.coordinates.mapping != sites[0].coordinates.mapping for site in sites
    ):
        return None
    indexed = set(terms.closure(Formula("eq", poly) for point in points.values() for poly in point or ()))
    coordinates = [
        atom
        for atom in atoms
        if atom.kind in (Kind.BLOCK, Kind.COORDINATE) or (atom.kind in (Kind.ITERATION, Kind.POSITION) and atom in indexed)
    ]
    return Uncertain(covers, coordinates, contents, [])


def _point(findings: Findings, atom: Atom) -> tuple[Poly, ...] | None:
    """What an unknown is a function of, besides the block: the index of an element; for an untranslated value, the iterations
    of the loops around its definition and its positions. None if that is not known."""
    if atom.kind is Kind.LOADED:
        return atom.args
    index, value = findings.index, findings.index.sources.get(atom)
    around = index.structure.around(value) if value is not None else None
    if around is None or atom not in index.positions_of:
        return None
    return (*map(index.iteration, around), *index.positions_of[atom])
