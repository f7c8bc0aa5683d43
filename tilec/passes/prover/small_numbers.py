"""Numbers to try for unknowns that are multiplied, in the search for a counterexample: a product with a number is linear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.passes.prover import terms
from tilec.passes.prover.terms import Atom, Formula, Kind

ELEMENTS = (2, 3)
"""Values of loaded elements."""
SMALL = (1, 2, 3, 4)
"""Sizes of a short launch, for symbols that a violation leaves open."""


def small_values(count: int) -> Iterator[tuple[int, ...]]:
    """Values of as many sizes: all equal, then different ones."""
    for value in (1, 2, 3, 4, 5, 7, 8, 16):
        yield (value,) * count
    for shift in range(1, 5):
        for first in (2, 3, 5):
            rising = tuple(first + (index * shift) % 5 for index in range(count))
            yield rising
            yield rising[::-1]


def loaded_factors(system: Sequence[Formula]) -> list[Atom]:
    """The loaded elements of a system, if one of them, or what is computed from it, is multiplied by an unknown that varies."""
    atoms = terms.closure(system)
    polys = [poly for formula in (*system, *map(terms.definition, atoms)) for poly in formula.polys()]
    products = {m for poly in polys for m in poly.terms if sum(factor.varies for factor in m) > 1}
    factors = terms.closure(Formula("eq", terms.of(atom)) for monomial in products for atom in monomial)
    loaded = [atom for atom in atoms if atom.kind is Kind.LOADED]
    return loaded if any(atom in factors for atom in loaded) else []
