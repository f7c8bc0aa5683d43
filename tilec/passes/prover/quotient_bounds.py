"""Bounds of quotients in one case of a system with products.

For integers `1 <= d <= D <= e` and `a <= A <= b`, `A // D` lies between the smallest and the largest of `a // d`, `a // e`, `b
// d` and `b // e`: it does not fall as `A` rises, and for one `A` it is monotonic in `D`, in a direction that the sign of `A`
decides. An atom has only its unconditional interval, and a divisor that `requires` or the grid makes positive may be negative
in that. Products of a quotient with other unknowns can be compared once its sign is known.

In: a case and bounds that all its solutions satisfy. Out: inequalities that all its solutions satisfy.
"""

from __future__ import annotations

from tilec.passes.prover import terms
from tilec.passes.prover.case_split import Bounds, ends
from tilec.passes.prover.nonlinear import Case, replaced
from tilec.passes.prover.terms import Kind, Poly


def quotient_bounds(case: Case, bounds: Bounds) -> list[Poly]:
    """Polynomials that are `>= 0` in every solution of the case, for quotients of which `bounds` gives tighter ones."""
    found: list[Poly] = []
    for atom, (low, high) in bounds.items():
        if atom.kind is not Kind.QUOTIENT or atom.args[1].constant is not None:
            continue
        try:
            dividend, divisor = (ends(replaced(case, poly), bounds) for poly in atom.args)
        except terms.OutOfWork:
            continue
        if divisor[0] < 1:
            continue
        corners = [value // by for value in dividend for by in divisor]
        if min(corners) > low:
            found.append(terms.of(atom) - min(corners))
        if max(corners) < high:
            found.append(terms.const(max(corners)) - terms.of(atom))
    return found
