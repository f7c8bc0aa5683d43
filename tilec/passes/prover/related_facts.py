"""Which facts can matter to a proof: those that share unknowns with it. Facts and formulas go in, some facts come out."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.passes.prover import terms
from tilec.passes.prover.terms import Atom, Formula, Kind


def related_to(facts: list[Formula], about: list[Formula]) -> list[Formula]:
    """The facts that share an unknown with the formulas, directly or through each other, and those without one."""
    if not facts:
        return []
    shared, known = _unknowns(about), {fact: _unknowns([fact]) for fact in facts}
    found: dict[Formula, None] = {}
    while True:
        more = [fact for fact in facts if fact not in found and (not known[fact] or known[fact] & shared)]
        if not more:
            return [fact for fact in facts if fact in found]
        found |= dict.fromkeys(more)
        shared = shared.union(*(known[fact] for fact in more))


def computed_in(formulas: list[Formula], facts: list[Formula]) -> list[Formula]:
    """The facts about launch values and unknowns alone, and those about quotients and choices of the formulas. Others define
    what no proof needs, often by products."""
    own = {atom for atom in terms.closure(formulas) if atom.derived}
    derived = {fact: {atom for atom in terms.closure([fact]) if atom.derived} for fact in facts}
    return [fact for fact in facts if not derived[fact] or derived[fact] & own]


def _unknowns(formulas: Iterable[Formula]) -> set[Atom]:
    """What formulas mention besides sizes, blocks and iterations, which all have in common."""
    common = (Kind.SYMBOL, Kind.BLOCK, Kind.COORDINATE, Kind.ITERATION)
    return {atom for atom in terms.closure(formulas) if atom.kind not in common}
