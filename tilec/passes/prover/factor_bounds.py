"""Bounds of the factors of products, in one case of a system.

An atom has only its unconditional interval, in which a divisor that `requires` or the grid makes positive may be negative, and
a length that `values` bounds too. The constraints of a case imply more, and products of two constraints are only formed of
those that are written down: `b * q <= (S - 1) * q` follows from `b <= S - 1` and `q >= 0`.

A bound of a quotient follows from those of its operands. For integers `1 <= d <= D <= e` and `a <= A <= b`, `A // D` lies
between the smallest and the largest of `a // d`, `a // e`, `b // d` and `b // e`: it does not fall as `A` rises, and for one
`A` it is monotonic in `D`, in a direction that the sign of `A` decides.

In: a case and bounds that all its solutions satisfy. Out: inequalities that all its solutions satisfy.
"""

from __future__ import annotations

from tilec.passes.prover import terms
from tilec.passes.prover.case_split import Bounds, ends
from tilec.passes.prover.nonlinear import Case, replaced
from tilec.passes.prover.terms import Atom, Kind, Poly


def factor_bounds(case: Case, bounds: Bounds) -> list[Poly]:
    """Polynomials that are `>= 0` in every solution of the case, for factors of products with tighter bounds than intervals."""
    products = (m for poly in (*case.inequalities, *case.equalities) for m in poly.terms if len(m) > 1)
    found: list[Poly] = []
    for atom in dict.fromkeys(factor for monomial in products for factor in monomial):
        low, high = _bounds(case, bounds, atom)
        if low > atom.low:
            found.append(terms.of(atom) - low)
        if high < atom.high:
            found.append(terms.const(high) - terms.of(atom))
    return found


def _bounds(case: Case, bounds: Bounds, atom: Atom) -> tuple[int, int]:
    low, high = bounds.get(atom, (atom.low, atom.high))
    if atom.kind is not Kind.QUOTIENT:
        return low, high
    try:
        dividend, divisor = (ends(replaced(case, poly), bounds) for poly in atom.args)
    except terms.OutOfWork:
        return low, high
    if divisor[0] < 1:
        return low, high
    corners = [value // by for value in dividend for by in divisor]
    return max(low, min(corners)), min(high, max(corners))
