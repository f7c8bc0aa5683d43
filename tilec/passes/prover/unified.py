"""Puts equal unknowns of a system into one, also where other unknowns are computed from them.

Two blocks that touch the same row have `b_1 == b_2`, so what they load at it is one number, and so is what they compute from
that: `n[b_1]` and `n[b_2]`, `cdiv(n[b_1], S)` and `cdiv(n[b_2], S)`. As separate unknowns, the quotients are only known to be
equal by their products with `S`.

In: formulas that hold together. Out: formulas with a solution if those have one. If they say `x == y` for an unknown `x` that
`y` is not computed from, every solution has the same values with `y` for `x` everywhere. Derived atoms and loaded elements are
functions of what they are computed from, so they are rebuilt over `y`. Interval and definition of `x` are kept, of `y`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

EQUALITIES = 8  # limit on the unknowns that are replaced
_REPLACED = (Kind.BLOCK, Kind.COORDINATE, Kind.ITERATION, Kind.POSITION)


def unified(atoms: Atoms, formulas: Iterable[Formula]) -> list[Formula] | None:
    """The formulas with one unknown for equal ones; None if that changes nothing that is computed from them."""
    whole = terms.conjunction(formulas)
    before = len(terms.closure([whole]))
    replaced = 0
    for _ in range(EQUALITIES):
        found = _equal(whole)
        if found is None:
            break
        atom, other = found
        mapping = {atom: other}
        limits = (terms.definition(atom), terms.ge(other, atom.low), terms.ge(terms.const(atom.high), other))
        whole = terms.conjunction(atoms.substitute_in(formula, mapping) for formula in (whole, *limits))
        replaced += 1
    if len(terms.closure([whole])) >= before - replaced:
        return None
    return list(whole.parts) if whole.op == "and" else [whole]


def _equal(whole: Formula) -> tuple[Atom, Poly] | None:
    """An unknown and the unknown, with a number added, that it is equal to."""
    parts = whole.parts if whole.op == "and" else (whole,)
    known = {_reduced(part.poly) for part in parts if part.op == "ge"}
    for part in parts:
        poly = _reduced(part.poly) if part.op == "ge" else part.poly
        if part.op == "eq" or (part.op == "ge" and -poly in known):
            for atom in sorted(poly.atoms(), key=lambda atom: atom.uid, reverse=True):
                other = _other(poly, atom)
                if other is not None:
                    return atom, other
    return None


def _reduced(poly: Poly) -> Poly:
    """`poly >= 0` divided by the common divisor of its coefficients; the constant rounds down, which loses no integer."""
    common = gcd(*(count for monomial, count in poly.terms.items() if monomial)) or 1
    return Poly({monomial: count // common for monomial, count in poly.terms.items()})


def _other(equality: Poly, atom: Atom) -> Poly | None:
    scale = equality.terms.get((atom,), 0)
    if atom.kind not in _REPLACED or abs(scale) != 1:
        return None
    other = (terms.of(atom) * scale - equality) * scale
    rest = other - other.offset
    if rest.terms and (rest.atom is None or rest.atom.derived or rest.atom.kind is Kind.LOADED):
        return None
    return other
