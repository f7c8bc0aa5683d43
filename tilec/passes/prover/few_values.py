"""Unknowns of few values that decide factors of products: with a number for such an unknown, products are linear.

`(1 << p) // S` for a position `p` of 16 is a quotient by a launch value of 16 numbers, one for each position; as a function of
an unknown position it has the product of its value and `S`. In: formulas. Out: the formulas for each value of one such unknown.
Its interval is unconditional, so that these are all cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.terms import Atom, Formula, Kind

VALUES: Final = 16  # limit on the values of an unknown that are distinguished


def small_factor(formulas: Iterable[Formula]) -> Atom | None:
    """A position or an iteration of few values that a factor of a product is computed from; None if there is none."""
    given = list(formulas)
    atoms = terms.closure(given)
    polys = [poly for formula in (*given, *map(terms.definition, atoms)) for poly in formula.polys()]
    factors = dict.fromkeys(atom for poly in polys for monomial in poly.terms if len(monomial) > 1 for atom in monomial)
    inside = terms.closure(Formula("eq", terms.of(atom)) for atom in factors)
    small = (atom for atom in inside if atom.kind in (Kind.POSITION, Kind.ITERATION) and atom.varies)
    return next((atom for atom in small if atom.high - atom.low < VALUES), None)


def each_value(atoms: Atoms, atom: Atom, formulas: Iterable[Formula]) -> Iterator[list[Formula]]:
    """The formulas with each value of an unknown, except where one of them is false."""
    given = list(formulas)
    for number in range(atom.low, atom.high + 1):
        mapping = {atom: terms.const(number)}
        fixed = [atoms.substitute_in(formula, mapping) for formula in given]
        if terms.FALSE not in fixed:
            yield fixed


def each_case(atoms: Atoms, formulas: Iterable[Formula]) -> list[list[Formula]]:
    """The formulas for each case of a choice of launch values that they mention, which is its value there; empty if there is no
    such choice."""
    given = list(formulas)
    mentioned = (atom for formula in given for poly in formula.polys() for atom in poly.atoms())
    choice = next((atom for atom in mentioned if atom.kind is Kind.CHOICE and not atom.varies), None)
    if choice is None:
        return []
    cases = [(case, {choice: value}) for case, value in choice.cases]
    found = [[case, *(atoms.substitute_in(one, mapping) for one in given)] for case, mapping in cases]
    return [case for case in found if terms.FALSE not in case]
