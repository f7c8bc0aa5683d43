"""Decides a linear formula by splitting it into cases lazily, so that its disjunctions are never multiplied out.

In: a formula over integer atoms with linear polynomials. Out: a point that satisfies it, or None, which proves that there is
none. Every step preserves all solutions:

- bounds implied by linear constraints simplify choices: an alternative that is false within the bounds is dropped, one that is
  true everywhere within them makes the choice redundant, and a choice of one alternative is that alternative;
- the constraints without the choices are weaker than the formula: if they have no solution, neither has the formula, and if the
  point found for them satisfies every choice, it satisfies the formula;
- otherwise that point violates some choice, which is split into its alternatives. After an alternative without a solution, its
  negation is added to the remaining ones.

Twenty nested `min` have a million combinations, of which only a few are ever examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tilec.passes.prover import terms
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.terms import Atom, Formula, Poly
from tilec.untrusted.limits import MAX_CASES

ROUNDS = 4  # passes over all constraints for implied bounds; any number is sound, more may find tighter ones
Point = dict[Atom, int]
Bounds = dict[Atom, tuple[int, int]]


@dataclass(slots=True)
class CaseSplit:
    """One search. `sample` gives a point of a conjunction of linear constraints, or None if it has none; it raises Undecided if
    it cannot tell."""

    sample: Callable[[list[Formula]], Point | None]
    cases: int = 0

    def point(self, formula: Formula) -> Point | None:
        """A point that satisfies `formula`, or None if there is none; Undecided after too many cases."""
        return self._search([], [formula])

    def _search(self, literals: list[Formula], pending: list[Formula]) -> Point | None:
        self.cases += 1
        if self.cases > MAX_CASES:
            raise Undecided
        known = _simplified(literals, pending)
        if known is None:
            return None
        found = self.sample(known.literals)
        if found is None:
            return None
        value = found.__getitem__
        violated = [c for c in known.choices if not all(a in found for p in c.polys() for a in p.atoms())]
        violated = violated or [choice for choice in known.choices if not terms.holds(choice, value)]
        if not violated:
            return found
        choice = min(violated, key=lambda c: len(c.parts))
        others = [other for other in known.choices if other is not choice]
        excluded: list[Formula] = []
        for part in choice.parts:
            deeper = self._search(known.literals + excluded, [part, *others])
            if deeper is not None:
                return deeper
            if part.op == "ge":
                excluded.append(terms.negate(part))
        return None


@dataclass(slots=True)
class _Known:
    """A conjunction of literals and choices, with the bounds that the literals imply for each atom."""

    literals: list[Formula] = field(default_factory=list[Formula])
    choices: list[Formula] = field(default_factory=list[Formula])
    bounds: Bounds = field(default_factory=dict[Atom, tuple[int, int]])


def _simplified(literals: list[Formula], pending: list[Formula]) -> _Known | None:
    """Literals and remaining choices of a conjunction; None if bounds alone exclude every solution."""
    known = _Known(list(literals))
    while True:
        if not _flatten(known, pending):
            return None
        if not _tighten(known):
            return None
        pending = list[Formula]()
        choices = list[Formula]()
        for choice in known.choices:
            alternatives_left = [part for part in choice.parts if possible(part, known.bounds)]
            if not alternatives_left:
                return None
            if any(certain(part, known.bounds) for part in alternatives_left):
                continue
            if len(alternatives_left) == 1:
                pending.append(alternatives_left[0])
            else:
                choices.append(
                    choice if len(alternatives_left) == len(choice.parts) else Formula("or", parts=tuple(alternatives_left))
                )
        known.choices = choices
        if not pending:
            return known


def _flatten(known: _Known, pending: Iterable[Formula]) -> bool:
    """Sort formulas into literals and choices; False if one of them is false."""
    remaining, seen = list(pending), set(known.literals)
    while remaining:
        formula = remaining.pop()
        if formula.op == "and":
            remaining.extend(formula.parts)
        elif formula.op == "or":
            if not formula.parts:
                return False
            known.choices.append(formula)
        elif formula not in seen:
            seen.add(formula)
            known.literals.append(formula)
    return True


def _tighten(known: _Known) -> bool:
    """Compute bounds that the literals imply, each from one literal and the bounds so far; False if an atom has no
    value left."""
    bounds = known.bounds
    for literal in known.literals:
        for atom in literal.poly.atoms():
            if atom not in bounds:
                bounds[atom] = (atom.low, atom.high)
    for _ in range(ROUNDS):
        changed = False
        for literal in known.literals:
            outcome = _narrow(literal.poly, bounds)
            if literal.op == "eq" and outcome is not None:
                other = _narrow(-literal.poly, bounds)
                outcome = None if other is None else outcome or other
            if outcome is None:
                return False
            changed = changed or outcome
        if not changed:
            break
    return True


def _narrow(poly: Poly, bounds: Bounds) -> bool | None:
    """Use `poly >= 0`: each term is at least minus the largest value of the sum of the others. True if a bound changed, None if
    there is no solution. Products contribute their largest value and are not narrowed."""
    max_sum = poly.offset
    terms_with_max: list[tuple[Atom, int, int]] = []
    for monomial, coefficient in poly.terms.items():
        if not monomial:
            continue
        high = _max_term(monomial, coefficient, bounds)
        max_sum += high
        if len(monomial) == 1:
            terms_with_max.append((monomial[0], coefficient, high))
    if max_sum < 0:
        return None
    narrowed = False
    for atom, coefficient, high in terms_with_max:
        min_term = high - max_sum  # coefficient * atom >= least
        low, high_bound = bounds[atom]
        if coefficient > 0:
            low = max(low, -(-min_term // coefficient))
        else:
            high_bound = min(high_bound, min_term // coefficient)
        if low > high_bound:
            return None
        if (low, high_bound) != bounds[atom]:
            bounds[atom] = (low, high_bound)
            narrowed = True
    return narrowed


def _max_term(monomial: tuple[Atom, ...], coefficient: int, bounds: Bounds) -> int:
    low = high = coefficient
    for atom in monomial:
        ends = bounds.get(atom, (atom.low, atom.high))
        products = (low * ends[0], low * ends[1], high * ends[0], high * ends[1])
        low, high = min(products), max(products)
    return high


def possible(formula: Formula, bounds: Bounds) -> bool:
    """False only if no values within the bounds satisfy the formula."""
    if formula.op in ("ge", "eq"):
        low, high = ends(formula.poly, bounds)
        return high >= 0 and (formula.op == "ge" or low <= 0)
    results = (possible(part, bounds) for part in formula.parts)
    return all(results) if formula.op == "and" else any(results)


def certain(formula: Formula, bounds: Bounds) -> bool:
    """True only if all values within the bounds satisfy the formula."""
    if formula.op in ("ge", "eq"):
        low, high = ends(formula.poly, bounds)
        return low >= 0 if formula.op == "ge" else low == high == 0
    results = (certain(part, bounds) for part in formula.parts)
    return all(results) if formula.op == "and" else any(results)


def contradictory(polys_ge: Iterable[Poly], polys_eq: Iterable[Poly]) -> bool:
    """True only if bounds alone show that no integers make the first `>= 0` and the second `== 0`."""
    return implied_bounds(polys_ge, polys_eq) is None


def implied_bounds(polys_ge: Iterable[Poly], polys_eq: Iterable[Poly]) -> Bounds | None:
    """Bounds of every atom that occurs, for integers that make the first `>= 0` and the second `== 0`; None if bounds alone
    show that there are none."""
    known = _Known([*(Formula("ge", p) for p in polys_ge), *(Formula("eq", p) for p in polys_eq)])
    return known.bounds if _tighten(known) else None


def ends(poly: Poly, bounds: Bounds) -> tuple[int, int]:
    """The smallest and largest value of a polynomial by interval arithmetic, of atoms without bounds by their intervals."""
    low = high = poly.offset
    for monomial, coefficient in poly.terms.items():
        if monomial:
            low, high = low - _max_term(monomial, -coefficient, bounds), high + _max_term(monomial, coefficient, bounds)
    return low, high


def alternatives(formula: Formula, limit: int) -> int:
    """Number of disjuncts of the formula in disjunctive normal form, counted up to `limit`."""
    if formula.op in ("ge", "eq"):
        return 1
    total = 0 if formula.op == "or" else 1
    for part in formula.parts:
        count = alternatives(part, limit)
        total = total + count if formula.op == "or" else total * count
        if total > limit:
            return limit + 1
    return total
