"""Quotients and remainders as unknowns with defining facts: total floor division, as in the tile IR."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.audit import smt
from tilec.audit.smt import Term

SPLIT = 16
"""Maximum number of values of a divisor that are tried individually."""
Bounds = tuple[int, int]


@dataclass(slots=True)
class Definitions:
    """Quotients and remainders by dividend and divisor, and the facts that define them. An execution whose block is unknown
    (a witness) has its own definitions, because their facts must be proven instead of assumed; terms that do not depend on it
    are defined in `outer`."""

    prefix: str
    facts: list[Term] = field(default_factory=list[Term])
    known: dict[tuple[int, int], tuple[Term, Term, Term, Term]] = field(
        default_factory=dict[tuple[int, int], "tuple[Term, Term, Term, Term]"]
    )
    splits: list[tuple[Term, int, int]] = field(default_factory=list[tuple[Term, int, int]])
    outer: Definitions | None = None

    def divided(self, left: Term, right: Term, positive: bool, bounds: Bounds | None) -> tuple[Term, Term]:
        """Quotient and remainder; `bounds` of the divisor decide whether its values are tried individually."""
        if self.outer is not None and not any(self._own(term) for term in (left, right)):
            return self.outer.divided(left, right, False, bounds)
        key = (smt.identity(left), smt.identity(right))
        if key not in self.known:
            quotient, rest, facts = divide(left, right, f"{self.prefix}{len(self.known)}", positive)
            self.facts += facts
            self.known[key] = (quotient, rest, left, right)
            if smt.constant(right) is None and bounds is not None:
                low = max(1, bounds[0]) if positive else bounds[0]
                if bounds[1] - low < SPLIT and all(not term.eq(right) for term, _, _ in self.splits):
                    self.splits.append((right, low, bounds[1]))
        return self.known[key][:2]

    def _own(self, term: Term) -> bool:
        return any(name.startswith(self.prefix.partition(".")[0] + ".") for name in smt.mentioned([term]))


def divide(left: Term, right: Term, name: str, positive: bool = False) -> tuple[Term, Term, list[Term]]:
    """Quotient, remainder and the facts that define both: total floor division (0 and 0 for a zero divisor). `positive`: the
    divisor is known to be at least 1 wherever the terms are used."""
    a, d = smt.constant(left), smt.constant(right)
    if d == 1:
        return left, smt.integer(0), []
    if d == 0:
        return smt.integer(0), smt.integer(0), []
    if a is not None and d is not None:
        return smt.integer(a // d), smt.integer(a % d), []
    quotient, rest = smt.unknown(f"{name}.q"), smt.unknown(f"{name}.r")
    splits = left == right * quotient + rest
    if d is not None:
        bounds = [rest >= 0, rest < d] if d > 0 else [rest <= 0, rest > d]
        return quotient, rest, [splits, *bounds]
    above = [splits, rest >= 0, rest < right, smt.implies(left >= 0, smt.every([quotient >= 0, quotient <= left]))]
    if positive:
        return quotient, rest, [right >= 1, *above]
    below = [splits, rest <= 0, rest > right]
    zero = [quotient == 0, rest == 0]
    cases = [(right > 0, above), (right < 0, below), (right == 0, zero)]
    return quotient, rest, [smt.implies(case, smt.every(facts)) for case, facts in cases]
