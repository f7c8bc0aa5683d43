"""Quotients and remainders as unknowns with defining facts: total floor division, as in the tile IR; bit operations by them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tilec.audit import smt
from tilec.audit.smt import Term

SPLIT = 16
"""Maximum number of values of a divisor that are tried individually."""
MOST_RUNS = 4
"""Maximum runs of ones in a constant operand of a bit operation that gets an exact term."""
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
    products: list[tuple[Term, Term]] = field(default_factory=list[tuple[Term, Term]])

    def product(self, left: Term, right: Term) -> Term:
        """A product of launch values. Quotients by one of its factors are related to it: z3 finds the bound of a tile's number
        from that of the block's, `b < p * d => b // d < p`, in some searches only."""
        constant = smt.constant(left) is not None or smt.constant(right) is not None
        if not constant and not any(left.eq(a) and right.eq(b) for a, b in self.products):
            self.products.append((left, right))
        return smt.mul(left, right)

    def divided(self, left: Term, right: Term, positive: bool, bounds: Bounds | None) -> tuple[Term, Term]:
        """Quotient and remainder; `bounds` of the divisor decide whether its values are tried individually."""
        if self.outer is not None and not any(self._own(term) for term in (left, right)):
            return self.outer.divided(left, right, False, bounds)
        key = (smt.identity(left), smt.identity(right))
        if key not in self.known:
            quotient, rest, facts = divide(left, right, f"{self.prefix}{len(self.known)}", positive)
            self.facts += [*facts, *self._below_products(left, right, quotient)]
            self.known[key] = (quotient, rest, left, right)
            if smt.constant(right) is None and bounds is not None:
                low = max(1, bounds[0]) if positive else bounds[0]
                if bounds[1] - low < SPLIT and all(not term.eq(right) for term, _, _ in self.splits):
                    self.splits.append((right, low, bounds[1]))
        return self.known[key][:2]

    def masked(self, kind: str, term: Term, mask: int) -> Term:
        """`and`, `or` or `xor` of a term and a constant: `term & mask` is a remainder for each run of ones; the others follow
        by `t + m = (t ^ m) + 2 * (t & m)` and `t + m = (t | m) + (t & m)`."""
        both = smt.integer(0) if mask >= 0 else term
        for low, end in runs(mask):
            shifted = self.divided(term, smt.integer(1 << low), True, None)[0]
            rest = self.divided(shifted, smt.integer(1 << (end - low)), True, None)[1]
            part = smt.mul(rest, smt.integer(1 << low))
            both = smt.add(both, part) if mask >= 0 else smt.sub(both, part)
        if kind == "and":
            return both
        others = smt.sub(smt.add(term, smt.integer(mask)), both)
        return others if kind == "or" else smt.sub(others, both)

    def _below_products(self, left: Term, right: Term, quotient: Term) -> list[Term]:
        """What a positive divisor's products say of a quotient: `left < p * right => left // right < p`."""
        others = [a if b.eq(right) else b for a, b in self.products if a.eq(right) or b.eq(right)]
        return [smt.implies(smt.every([right >= 1, left < smt.mul(one, right)]), quotient < one) for one in others]

    def defined_by(self, names: set[str]) -> set[str]:
        """`names`, and all unknowns that the quotients and remainders among them are defined by."""
        found = set(names)
        for quotient, rest, left, right in reversed(self.known.values()):  # a dividend was defined before its quotient
            if found & smt.mentioned([quotient, rest]):
                found |= smt.mentioned([left, right])
        return found

    def _own(self, term: Term) -> bool:
        return any(name.startswith(self.prefix.partition(".")[0] + ".") for name in smt.mentioned([term]))


def runs(mask: int) -> list[tuple[int, int]]:
    """First bit and end of each run of ones in a mask, or of zeros in a negative one."""
    bits = bin(mask if mask >= 0 else ~mask)[:1:-1]
    return [(run.start(), run.end()) for run in re.finditer("1+", bits)]


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
