"""Systems with products of unknowns: split into cases, simplified by equalities, strengthened by products of constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import gcd

from tilec.passes.prover import terms
from tilec.passes.prover.terms import Atom, Formula, Kind, Monomial, Poly
from tilec.untrusted.limits import MAX_TERMS

CASES = 64  # limit on the cases of a system with products
PRODUCTS = 160  # limit on the products of constraints added per case


class Undecided(Exception):
    """The budget ran out, or the system has too many cases."""


@dataclass(slots=True)
class Case:
    """A conjunction: polynomials that are >= 0 and polynomials that are == 0; atoms replaced by equalities, in order."""

    inequalities: list[Poly] = field(default_factory=list[Poly])
    equalities: list[Poly] = field(default_factory=list[Poly])
    replaced: list[tuple[Atom, Poly]] = field(default_factory=list[tuple[Atom, Poly]])


def cases(whole: Formula) -> Iterator[Case]:
    """Split into conjunctions, each simplified by its equalities."""
    for count, literals in enumerate(_conjunctions(list(whole.parts) if whole.op == "and" else [whole], [])):
        if count >= CASES:
            raise Undecided
        case = Case([f.poly for f in literals if f.op == "ge"], [f.poly for f in literals if f.op == "eq"])
        substitute_equalities(case)
        yield case


def _conjunctions(pending: list[Formula], literals: list[Formula]) -> Iterator[list[Formula]]:
    literals = list(literals)
    choices: list[Formula] = []
    while pending:
        formula = pending.pop()
        if formula.op == "and":
            pending.extend(formula.parts)
        elif formula.op == "or":
            choices.append(formula)
        else:
            literals.append(formula)
    if not choices:
        yield literals
        return
    known = set(literals)
    for choice in choices:
        if any(part in known for part in choice.parts):
            yield from _conjunctions([c for c in choices if c is not choice], literals)
            return
    first, *others = sorted(choices, key=lambda c: len(c.parts))
    for part in first.parts:
        if part.op in ("ge", "eq") and terms.negate(part) in known:
            continue
        yield from _conjunctions([*others, part], literals)


def substitute_equalities(case: Case) -> None:
    """Use equalities that define one atom as a linear polynomial of others to eliminate that atom."""
    while True:
        found = next(((e, a) for e in case.equalities if (a := _solvable(e)) is not None), None)
        if found is None:
            known = len(case.equalities)
            _tighten(case)
            if len(case.equalities) == known:
                return
            continue
        equality, atom = found
        coefficient = equality.terms[(atom,)]
        replacement = (equality - terms.of(atom) * coefficient) * -coefficient
        case.replaced.append((atom, replacement))
        case.equalities = [p for e in case.equalities if e is not equality and (p := _replace(e, atom, replacement)).terms]
        case.inequalities = [_replace(p, atom, replacement) for p in case.inequalities]


def _tighten(case: Case) -> None:
    """Divide inequalities by the common divisor of their coefficients and round the constant down, which loses no integer
    solution. Of parallel inequalities keep the strongest; two opposite ones that are tight become an equality."""
    bounds: dict[Poly, int] = {}
    for poly in case.inequalities:
        common = gcd(*(c for m, c in poly.terms.items() if m))
        if not common:
            if poly.offset < 0:
                bounds[terms.ZERO] = poly.offset
            continue
        direction = Poly.of_nonzero({m: c // common for m, c in poly.terms.items() if m})
        offset = poly.offset // common
        bounds[direction] = min(bounds.get(direction, offset), offset)
    case.inequalities = []
    offsets = set(bounds.values())
    for direction, offset in bounds.items():
        if -offset in offsets and bounds.get(-direction) == -offset and direction.terms:
            if direction + offset not in case.equalities and -(direction + offset) not in case.equalities:
                case.equalities.append(direction + offset)
        else:
            case.inequalities.append(direction + offset)


def _solvable(equality: Poly) -> Atom | None:
    if equality.degree > 1:
        return None
    units = [m[0] for m, c in equality.terms.items() if m and abs(c) == 1]
    # Eliminate the atom created last, which is the most derived one; symbols only if there is no other atom.
    return max(units, key=lambda atom: (atom.kind is not Kind.SYMBOL, atom.uid), default=None)


def replaced(case: Case, poly: Poly) -> Poly:
    """A polynomial over the atoms that the equalities of a case left; OutOfWork if it becomes too large."""
    for atom, replacement in case.replaced:
        poly = _replace(poly, atom, replacement)
    return poly


def _replace(poly: Poly, atom: Atom, replacement: Poly) -> Poly:
    """The polynomial with `replacement` in place of an atom; OutOfWork if `replacement` is too large to multiply by."""
    if not any(atom in monomial for monomial in poly.terms):
        return poly
    if len(replacement.terms) > MAX_TERMS:
        raise terms.OutOfWork
    result: dict[Monomial, int] = {}
    for monomial, coefficient in poly.terms.items():
        if atom not in monomial:
            terms.add_term(result, monomial, coefficient)
            continue
        others = tuple(factor for factor in monomial if factor is not atom)
        power = replacement
        for _ in range(len(monomial) - len(others) - 1):
            power = power * replacement
        for inside, value in power.terms.items():
            terms.add_term(result, terms.product(others, inside), coefficient * value)
    return Poly.of_nonzero(result)


def add_products(case: Case) -> None:
    wanted = {m for p in (*case.inequalities, *case.equalities) for m in p.terms if len(m) > 1}
    if not wanted:
        return
    factors = sorted({atom for monomial in wanted for atom in monomial}, key=lambda atom: atom.uid)
    degree = max(map(len, wanted))
    # An equality may be multiplied by any atom.
    for equality in list(case.equalities):
        for atom in factors if equality.degree < degree else ():
            product = equality * terms.of(atom)
            if any(monomial in wanted for monomial in product.terms):
                case.equalities.append(product)
    useful = [p for p in case.inequalities if any(a in factors for a in p.atoms()) and p.degree < degree]
    useful.sort(key=lambda p: (len(p.terms), max(map(abs, p.terms.values()))))
    products: list[tuple[int, int, Poly]] = []
    for left, right in combinations_with_replacement(useful, 2):
        if left.degree + right.degree > degree:
            continue
        product = left * right
        fresh = sum(len(m) > 1 and m not in wanted for m in product.terms)
        if fresh <= 1 and any(m in wanted for m in product.terms):
            products.append((fresh, len(product.terms), product))
    products.sort(key=lambda item: item[:2])
    case.inequalities += [product for _, _, product in products[:PRODUCTS]]
