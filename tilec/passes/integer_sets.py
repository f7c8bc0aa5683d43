"""Decide whether a conjunction of formulas has an integer solution, with isl.

Linear systems go to isl as they are, and the answer is exact. A product of two unknowns (`row * H` with a symbolic `H`) lies
outside what isl can express; the system is then split into cases, simplified by its equalities, and every product becomes
an unknown of its own. Products of pairs of constraints, which hold whenever the constraints do, are added, so that what is
lost is small (Sherali and Adams' reformulation-linearization). That makes the set larger, never smaller: "empty" is always
a proof, a solution may be spurious and is checked by evaluation before anyone sees it.

Every query has a budget of isl operations; a query that exceeds it is undecided, never a proof.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import gcd

import islpy

from tilec.passes import terms
from tilec.passes.terms import Atom, Formula, Kind, Monomial, Poly

OPERATIONS = 200_000  # isl operations per query, about a second
ROUNDS = 3  # times that equalities are learned from a case
CASES = 64  # cases a system with products is split into, at most
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 4096, 1 << 16, None)  # tried in turn for readable numbers
PRODUCTS = 160  # products of constraints added per case, at most

Assignment = dict[Atom, int]


class Undecided(Exception):
    """The budget ran out, or the system has too many cases."""


@dataclass(slots=True)
class Case:
    """A conjunction: polynomials that are >= 0 and polynomials that are == 0; atoms replaced by equalities, in order."""

    inequalities: list[Poly] = field(default_factory=list[Poly])
    equalities: list[Poly] = field(default_factory=list[Poly])
    replaced: list[tuple[Atom, Poly]] = field(default_factory=list[tuple[Atom, Poly]])


def system(formulas: Iterable[Formula]) -> Formula:
    """The formulas together with intervals and definitions of all atoms they mention."""
    given = list(formulas)
    parts = list(given)
    for atom in terms.closure(given):
        parts.append(terms.definition(atom))
        parts.append(Formula("ge", terms.of(atom) - atom.low))
        parts.append(Formula("ge", terms.const(atom.high) - terms.of(atom)))
    return terms.conjunction(parts)


@dataclass(slots=True)
class Solver:
    """One isl context with its budget; `texts` are the sets found empty since the list was last cleared."""

    context: islpy.Context = field(default_factory=islpy.Context)
    texts: list[str] = field(default_factory=list[str])
    queries: int = 0

    def empty(self, formulas: Iterable[Formula]) -> bool:
        """True only if no integers satisfy all formulas; Undecided when the budget is spent."""
        whole = system(formulas)
        if whole == terms.FALSE:
            return True
        if _linear(whole):
            return self._set_is_empty(set_text(whole))
        return all(self._case_is_empty(case) for case in cases(whole))

    def solution(
        self, formulas: Iterable[Formula], small: Callable[[Atom], bool], limits: Iterable[int | None] = LIMITS
    ) -> Assignment | None:
        """Values that satisfy all formulas (checked by evaluation), the atoms chosen by `small` as near zero as is cheap to
        find; None if there are none or none was found."""
        given = list(formulas)
        whole = system(given)
        if whole == terms.FALSE:
            return None
        chosen = [atom for atom in terms.closure(given) if small(atom) and not atom.derived]
        for limit in limits:
            bounds = [] if limit is None else [near_zero(atom, limit) for atom in chosen]
            found = self._sample(terms.conjunction((whole, *bounds)))
            if found is not None:
                value = evaluator(found)
                if all(terms.holds(formula, value) for formula in given) and not _out_of_interval(found, value):
                    return {atom: value(atom) for atom in terms.closure(given)}
        return None

    def _sample(self, whole: Formula) -> Assignment | None:
        for case in (None,) if _linear(whole) else self._some_cases(whole):
            names = Names()
            try:
                text = set_text(whole, names) if case is None else case_text(case, names)
                points = self._read(text)
                with limited(self.context):
                    point = None if points.is_empty() else points.sample_point()
            except (Undecided, islpy.Error):
                continue
            if point is None:
                continue
            values = [point.get_coordinate_val(islpy.dim_type.set, i).to_python() for i in range(len(names.order))]
            found: Assignment = defaultdict(int)
            found.update({m[0]: v for m, v in zip(names.order, values, strict=True) if len(m) == 1})
            for atom, poly in reversed(case.replaced if case else []):
                found[atom] = terms.evaluate(poly, found.__getitem__)
            return found
        return None

    def _some_cases(self, whole: Formula) -> Iterator[Case]:
        try:
            for count, case in enumerate(cases(whole)):
                if count == 16:
                    return
                yield case
        except Undecided:
            return

    def _case_is_empty(self, case: Case) -> bool:
        if any(_impossible(p, equal=False) for p in case.inequalities) or any(_impossible(p) for p in case.equalities):
            return True
        for _ in range(ROUNDS):
            if not self._learn_equalities(case):
                break
        if self._set_is_empty(case_text(case, Names())):
            return True
        # With many unknowns a search for integers may not end; rational solutions are decided by linear programming, and what
        # has no rational solution has no integer one.
        _add_products(case)
        return self._set_is_empty(case_text(case, Names()).replace("{ [", "{ rat: [", 1))

    def _learn_equalities(self, case: Case) -> bool:
        """Add the equalities that all integer solutions of a case satisfy; they turn products into equal products."""
        names = Names()
        points = self._read(case_text(case, names))
        try:
            with limited(self.context):
                hull = points.affine_hull()
        except islpy.Error:
            return False
        if hull.is_empty():
            case.equalities.append(terms.ONE)
            return False
        learned = [_constraint_poly(c, names) for c in hull.get_constraints() if c.is_equality()]
        fresh = [poly for poly in learned if poly not in case.equalities and -poly not in case.equalities]
        case.equalities += fresh
        _substitute_equalities(case)
        return bool(fresh)

    def _set_is_empty(self, text: str) -> bool:
        self.queries += 1
        points = self._read(text)
        try:
            with limited(self.context):
                empty = points.is_empty()
        except islpy.Error as error:
            raise Undecided from error
        if empty:
            self.texts.append(text)
        return empty

    def _read(self, text: str) -> islpy.Set:
        return islpy.Set.read_from_str(self.context, text)


class limited:
    """Limit isl to `OPERATIONS` within the block; parsing stays unlimited, as isl reports a limit there as bad syntax."""

    def __init__(self, context: islpy.Context) -> None:
        self.context = context

    def __enter__(self) -> None:
        self.context.reset_operations()
        self.context.set_max_operations(OPERATIONS)

    def __exit__(self, *_: object) -> None:
        self.context.set_max_operations(0)
        self.context.reset_operations()


def _constraint_poly(constraint: islpy.Constraint, names: Names) -> Poly:
    found: dict[Monomial, int] = {(): constraint.get_constant_val().to_python()}
    for place, monomial in enumerate(names.order):
        found[monomial] = constraint.get_coefficient_val(islpy.dim_type.set, place).to_python()
    return Poly(found)


def near_zero(atom: Atom, limit: int) -> Formula:
    """The atom is within `limit` of zero, or as near as its interval allows."""
    value = terms.of(atom)
    return terms.conjunction((terms.ge(value, min(-limit, atom.high)), terms.ge(terms.const(max(limit, atom.low)), value)))


def _linear(formula: Formula) -> bool:
    return all(poly.degree <= 1 for poly in formula.polys())


def _impossible(poly: Poly, equal: bool = True) -> bool:
    low, high = terms.interval(poly)
    return high < 0 or (equal and low > 0)


# Evaluation


def evaluator(values: Mapping[Atom, int]) -> Callable[[Atom], int]:
    """Values of all atoms, derived ones computed from their definition; atoms without a value get their smallest."""
    known: dict[Atom, int] = {}

    def value(atom: Atom) -> int:
        if atom not in known:
            known[atom] = _value(atom, values, value)
        return known[atom]

    return value


def _value(atom: Atom, values: Mapping[Atom, int], value: Callable[[Atom], int]) -> int:
    if atom.kind is Kind.QUOTIENT:
        dividend, divisor = (terms.evaluate(arg, value) for arg in atom.args)
        return dividend // divisor if divisor > 0 else 0
    if atom.kind is Kind.CHOICE:
        return next((terms.evaluate(p, value) for c, p in atom.cases if terms.holds(c, value)), 0)
    return values.get(atom, max(atom.low, min(atom.high, 0)))


def _out_of_interval(found: Assignment, value: Callable[[Atom], int]) -> bool:
    for atom in found:
        if not atom.derived and not atom.low <= value(atom) <= atom.high:
            return True
        if atom.kind in (Kind.BLOCK, Kind.COORDINATE) and not terms.holds(terms.definition(atom), value):
            return True
    loaded: dict[tuple[str, tuple[int, ...]], int] = {}
    for atom in found:
        if atom.kind is Kind.LOADED:
            key = (atom.label, tuple(terms.evaluate(arg, value) for arg in atom.args))
            if loaded.setdefault(key, value(atom)) != value(atom):
                return True
    return False


# Systems with products


def cases(whole: Formula) -> Iterator[Case]:
    """Split into conjunctions, each simplified by its equalities and strengthened by products of its constraints."""
    for count, literals in enumerate(_conjunctions(list(whole.parts) if whole.op == "and" else [whole], [])):
        if count >= CASES:
            raise Undecided
        case = Case([f.poly for f in literals if f.op == "ge"], [f.poly for f in literals if f.op == "eq"])
        _substitute_equalities(case)
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


def _substitute_equalities(case: Case) -> None:
    """Use equalities that give one atom as a linear polynomial of others to remove that atom everywhere."""
    while True:
        _tighten(case)
        found = next(((e, a) for e in case.equalities if (a := _solvable(e)) is not None), None)
        if found is None:
            return
        equality, atom = found
        coefficient = equality.terms[(atom,)]
        replacement = (equality - terms.of(atom) * coefficient) * -coefficient
        case.replaced.append((atom, replacement))
        case.equalities = [p for e in case.equalities if e is not equality and (p := _replace(e, atom, replacement)).terms]
        case.inequalities = [_replace(p, atom, replacement) for p in case.inequalities]


def _tighten(case: Case) -> None:
    """Divide by common divisors, rounding the constant down, which loses no integer; of parallel inequalities keep the
    strongest; two that are opposite and tight are an equality."""
    bounds: dict[Poly, int] = {}
    for poly in case.inequalities:
        common = gcd(*(c for m, c in poly.terms.items() if m))
        if not common:
            if poly.offset < 0:
                bounds[terms.ZERO] = poly.offset
            continue
        direction = Poly({m: c // common for m, c in poly.terms.items() if m})
        offset = poly.offset // common
        bounds[direction] = min(bounds.get(direction, offset), offset)
    case.inequalities = []
    for direction, offset in bounds.items():
        if bounds.get(-direction) == -offset and direction.terms:
            if direction + offset not in case.equalities and -(direction + offset) not in case.equalities:
                case.equalities.append(direction + offset)
        else:
            case.inequalities.append(direction + offset)


def _solvable(equality: Poly) -> Atom | None:
    if equality.degree > 1:
        return None
    units = [m[0] for m, c in equality.terms.items() if m and abs(c) == 1]
    # The youngest atom is the most derived one; symbols stay.
    return max(units, key=lambda atom: (atom.kind is not Kind.SYMBOL, atom.uid), default=None)


def _replace(poly: Poly, atom: Atom, replacement: Poly) -> Poly:
    if not any(atom in monomial for monomial in poly.terms):
        return poly
    result = terms.ZERO
    for monomial, coefficient in poly.terms.items():
        product = terms.const(coefficient)
        for factor in monomial:
            product = product * (replacement if factor is atom else terms.of(factor))
        result = result + product
    return result


def _add_products(case: Case) -> None:
    wanted = {m for p in (*case.inequalities, *case.equalities) for m in p.terms if len(m) > 1}
    if not wanted:
        return
    factors = {atom for monomial in wanted for atom in monomial}
    degree = max(map(len, wanted))
    # An equality may be multiplied by anything.
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


# Text


_RESERVED = frozenset("and or not exists min max floor ceil mod div true false implies infty NaN rat floord ceild".split())  # noqa: SIM905


@dataclass(slots=True)
class Names:
    """isl identifiers of monomials, in order of first use."""

    order: list[Monomial] = field(default_factory=list[Monomial])
    _text: dict[Monomial, str] = field(default_factory=dict[Monomial, str])
    _used: set[str] = field(default_factory=set[str])

    def copy(self) -> Names:
        """The same names so far; additions stay apart."""
        return Names(list(self.order), dict(self._text), set(self._used))

    def of(self, monomial: Monomial) -> str:
        """The identifier of a monomial."""
        text = self._text.get(monomial)
        if text is None:
            self.order.append(monomial)
            joined = "_x_".join(atom.name for atom in monomial)
            text = re.sub(r"\W", "_", joined)
            while text in _RESERVED or text in self._used:
                text += "_"
            self._used.add(text)
            self._text[monomial] = text
        return text


def poly_text(poly: Poly, names: Names) -> str:
    """isl text of a polynomial."""
    parts: list[str] = []
    for monomial, coefficient in poly.terms.items():
        if not monomial:
            parts.append(str(coefficient))
        else:
            parts.append(names.of(monomial) if coefficient == 1 else f"{coefficient}*{names.of(monomial)}")
    return " + ".join(parts) or "0"


def formula_text(formula: Formula, names: Names) -> str:
    """isl text of a formula."""
    if formula.op == "ge":
        return f"{poly_text(formula.poly, names)} >= 0"
    if formula.op == "eq":
        return f"{poly_text(formula.poly, names)} = 0"
    if not formula.parts:
        return "true" if formula.op == "and" else "false"
    return f" {formula.op} ".join(
        f"({formula_text(part, names)})" if part.parts else formula_text(part, names) for part in formula.parts
    )


def set_text(formula: Formula, names: Names | None = None) -> str:
    """isl text of the set of all atom values that satisfy a formula."""
    names = names or Names()
    body = formula_text(formula, names)
    return f"{{ [{', '.join(map(names.of, names.order))}] : {body} }}"


def case_text(case: Case, names: Names) -> str:
    """isl text of one case."""
    parts = [f"{poly_text(p, names)} >= 0" for p in case.inequalities]
    parts += [f"{poly_text(p, names)} = 0" for p in case.equalities]
    body = " and ".join(parts) or "true"
    return f"{{ [{', '.join(map(names.of, names.order))}] : {body} }}"
