"""Decide whether a conjunction of formulas has an integer solution, with isl.

Linear systems go to isl as they are, and the answer is exact. A product of two unknowns (`row * H` with a symbolic `H`) lies
outside what isl can express; the system is then split into cases, simplified by its equalities, and every product becomes
an unknown of its own. Products of pairs of constraints, which hold whenever the constraints do, are added, so that what is
lost is small (Sherali and Adams' reformulation-linearization). That makes the set larger, never smaller: "empty" is always
a proof, a solution may be spurious and is checked by evaluation before anyone sees it.

Every query has a budget of isl operations; a query that exceeds it is undecided, never a proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

import islpy

from tilec.passes import terms
from tilec.passes.products import Case, Undecided, add_products, cases, substitute_equalities
from tilec.passes.set_text import Names, case_text, set_text
from tilec.passes.terms import Atom, Formula, Kind, Monomial, Poly

OPERATIONS = 200_000  # isl operations per query, about a second
ROUNDS = 3  # times that equalities are learned from a case
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 4096, 1 << 16, None)  # tried in turn for readable numbers

Assignment = dict[Atom, int]


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
    """One isl context with its budget; `texts` are the sets found empty since the list was last cleared. After `deadline` (on
    the monotonic clock) no more solutions are searched for in systems with products; proofs have no clock."""

    context: islpy.Context = field(default_factory=islpy.Context)
    texts: list[str] = field(default_factory=list[str])
    queries: int = 0
    deadline: float = 0.0

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
        for limit in limits if _linear(whole) else (3, 64, 1 << 17, None):
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
                if count == 16 or (self.deadline and monotonic() > self.deadline):
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
        # Integer solutions were looked for above; with the many unknowns of products that search may not end. Rational ones
        # are decided by linear programming, and what has no rational solution has no integer one.
        add_products(case)
        return self._set_is_empty(case_text(case, Names()).replace("{ [", "{ rat: [", 1))

    def _learn_equalities(self, case: Case) -> bool:
        """Add the equalities that all integer solutions of a case satisfy; they turn products into equal products."""
        names = Names()
        text = case_text(case, names)
        self.queries += 1
        points = self._read(text)
        try:
            with limited(self.context):
                hull = points.affine_hull()
        except islpy.Error:
            return False
        if hull.is_empty():
            self.texts.append(text)
            case.equalities.append(terms.ONE)
            return False
        learned = [_constraint_poly(c, names) for c in hull.get_constraints() if c.is_equality()]
        fresh = [poly for poly in learned if poly not in case.equalities and -poly not in case.equalities]
        case.equalities += fresh
        substitute_equalities(case)
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
