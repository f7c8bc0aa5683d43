"""What an inequality says of the terms that have a common divisor, in one case of a system.

`g * P + R >= 0` with `R <= h` gives `g * P >= -h`. `P` is an integer, so that `P >= -(h // g)`, which is a Chvatal-Gomory cut.
Rationally it says more than the inequality does: two blocks that write 8 of 11 elements from `11 * row + k` on, for `k` in
`0..4`, touch only if `-10 <= 11 * (row1 - row2) <= 10`, and so only if `row1 == row2`. Linear programming, by which systems
with products are decided, finds fractions between.

In: a case and bounds that all its solutions satisfy. Out: inequalities that all its solutions satisfy.
"""

from __future__ import annotations

from typing import Final

from tilec.passes.prover.case_split import Bounds, ends
from tilec.passes.prover.nonlinear import Case
from tilec.passes.prover.terms import Poly

CUTS: Final = 24  # limit on the cuts of one case


def cuts(case: Case, bounds: Bounds) -> list[Poly]:
    """Polynomials that are `>= 0` in every solution of the case, for inequalities of which some terms have a common divisor."""
    found: dict[Poly, None] = {}
    for poly in case.inequalities:
        for divisor in sorted({abs(count) for monomial, count in poly.terms.items() if monomial and abs(count) > 1}):
            shared = {m: count // divisor for m, count in poly.terms.items() if m and count % divisor == 0}
            rest = Poly({m: count for m, count in poly.terms.items() if m not in shared})
            if rest.terms.keys() <= {()} or len(shared) < 2:
                continue  # of one divisor, which `nonlinear` divides by; or a bound of one unknown
            found[Poly(shared) + ends(rest, bounds)[1] // divisor] = None
    return list(found)[:CUTS]
