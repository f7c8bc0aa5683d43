"""Decides with isl whether a conjunction of formulas has an integer solution.

Linear systems are split into cases lazily (`case_split`), whose conjunctions go to isl; the result is exact. isl cannot
express a product of two unknowns (`row * H` with a symbolic `H`). A system with products is split into cases and simplified
by its equalities, and every product becomes an unknown of its own. Products of pairs of constraints, which are implied by
the constraints, are added to reduce the loss (Sherali and Adams' reformulation-linearization). This only enlarges the set:
"empty" is always a proof, but a solution may be spurious and is checked by evaluation before it is shown.

Every query has a budget of isl operations, and so has the kernel (`work`); a query that exceeds it is undecided, never a
proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import islpy

from tilec.passes.prover import terms
from tilec.passes.prover.case_split import CaseSplit, alternatives, implied_bounds
from tilec.passes.prover.cuts import cuts
from tilec.passes.prover.factor_bounds import factor_bounds
from tilec.passes.prover.guess import DERIVED, guessed
from tilec.passes.prover.nonlinear import Case, Undecided, add_products, cases, substitute_equalities
from tilec.passes.prover.set_text import Names, case_text, set_text
from tilec.passes.prover.terms import Atom, Formula, Kind, Monomial, Poly
from tilec.passes.prover.work import STAGES, Work
from tilec.untrusted.limits import MAX_SYSTEM

SMALL = 32  # limit on disjuncts and on atoms of a system in which isl alone searches for a point
LARGE = 20  # above this number of unknowns, a rational check precedes the long search for integer solutions
HUGE = 40  # above this number of unknowns, there is no long integer search: thousands of isl operations take seconds
RATIONAL = 36  # above this number of unknowns, products included, isl is not used: one of its operations may take minutes
HULL = 24  # above this number of unknowns, equalities are not learned, for the same reason
ROUNDS = 3  # rounds of learning equalities from a case
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 4096, 1 << 16, None)  # tried in turn for readable numbers

Assignment = dict[Atom, int]


def system(
    formulas: Iterable[Formula],
    atoms: Callable[[list[Formula]], list[Atom]] = terms.closure,
    defined: Callable[[Atom], bool] = lambda _: True,
) -> Formula:
    """The formulas together with intervals and definitions of their atoms: of all, or of those that `atoms` gives. Of those
    that are not `defined` only the intervals."""
    given = list(formulas)
    parts = list(given)
    for atom in atoms(given):
        if defined(atom):
            parts.append(terms.definition(atom))
        parts.append(Formula("ge", terms.of(atom) - atom.low))
        parts.append(Formula("ge", terms.const(atom.high) - terms.of(atom)))
    return terms.conjunction(parts)


@dataclass(slots=True)
class Solver:
    """One isl context with its budget. `texts` are the sets found empty since the list was last cleared. After `search_end`
    steps of work, solutions of systems with products are not searched for any more. `bounds_factors`: use what constraints
    imply of the factors of products, which proves more and takes longer. `leaves_choices`: of choices between cases only the
    intervals are used, which has fewer cases and more solutions."""

    context: islpy.Context = field(default_factory=islpy.Context)
    work: Work = field(default_factory=Work)
    texts: list[str] = field(default_factory=list[str])
    queries: int = 0
    search_end: int | None = None
    bounds_factors: bool = False
    leaves_choices: bool = False

    @property
    def searched_enough(self) -> bool:
        """Whether the budget of the search for counterexamples is spent."""
        return self.search_end is not None and self.work.spent > self.search_end

    def empty(self, formulas: Iterable[Formula], atoms: Callable[[list[Formula]], list[Atom]] = terms.closure) -> bool:
        """True only if no integers satisfy all formulas; Undecided when the budget is spent. `atoms` gives those whose
        definitions are used."""
        full = system(formulas, atoms, lambda atom: not self.leaves_choices or atom.kind is not Kind.CHOICE)
        if full == terms.FALSE:
            return True
        self.check_size(full)
        if _linear(full):
            self.queries += 1
            if guessed(full) is not None or CaseSplit(self._point).point(full) is not None:
                return False
            self.texts.append(set_text(full))
            return True
        return all(self._case_is_empty(case) for case in cases(full))

    def empty_without_products(self, formulas: Iterable[Formula]) -> bool:
        """True only if no integers satisfy those constraints that are linear: fewer constraints have more solutions, so that
        none of fewer is a proof for all. False if there is no product; Undecided when the budget is spent."""
        full = system(formulas)
        linear = [part for part in full.parts if _linear(part)] if full.op == "and" else []
        if len(linear) == len(full.parts):
            return False
        whole = terms.conjunction(linear)
        self.check_size(whole)
        self.queries += 1
        if guessed(whole) is not None or CaseSplit(self._point).point(whole) is not None:
            return False
        self.texts.append(set_text(whole))
        return True

    def solution(
        self, formulas: Iterable[Formula], small: Callable[[Atom], bool], limits: Iterable[int | None] = LIMITS
    ) -> Assignment | None:
        """Values that satisfy all formulas (checked by evaluation), or None if none was found. Values of the atoms selected by
        `small` are as close to zero as is cheap to find."""
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
        try:
            self.check_size(whole)
            if _linear(whole) and not _small(whole):
                return guessed(whole) or CaseSplit(self._point).point(whole)
        except Undecided:
            return None
        for case in (None,) if _linear(whole) else self._some_cases(whole):
            names = Names()
            try:
                text = set_text(whole, names) if case is None else case_text(case, names)
                points = self._read(text)
                point = self.work.limited(self.context, lambda s=points: None if s.is_empty() else s.sample_point())
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
                if count == 16 or self.searched_enough:
                    return
                yield case
        except Undecided:
            return

    def _case_is_empty(self, case: Case) -> bool:
        bounds = implied_bounds(case.inequalities, case.equalities)
        if bounds is None:
            return True
        if self.bounds_factors:
            case.inequalities += [*factor_bounds(case, bounds), *cuts(case, bounds)]
            substitute_equalities(case)
        for _ in range(ROUNDS):
            if not self._learn_equalities(case):
                break
        # An integer search may not end with the many unknowns that products add. Linear programming decides whether there is a
        # rational solution, and a system without one has no integer solution.
        add_products(case)
        names = Names()
        text = case_text(case, names).replace("{ [", "{ rat: [", 1)
        if len(names.order) > RATIONAL:
            raise Undecided
        self.work.charge_numbers((*case.inequalities, *case.equalities), len(names.order))
        return self._rational_set_is_empty(case_set(self.context, case, names, rational=True), text)

    def _learn_equalities(self, case: Case) -> bool:
        """Add equalities that all integer solutions of a case satisfy; they make different products equal."""
        names = Names()
        text = case_text(case, names)
        if len(names.order) > HULL:
            return False
        self.work.charge_numbers((*case.inequalities, *case.equalities), len(names.order))
        self.queries += 1
        points = case_set(self.context, case, names)
        try:
            hull = self.work.limited(self.context, points.affine_hull)
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

    def _rational_set_is_empty(self, points: islpy.Set, text: str) -> bool:
        self.queries += 1
        try:
            empty = self.work.limited(self.context, lambda: has_no_rational_point(points))
        except islpy.Error as error:
            raise Undecided from error
        if empty:
            self.texts.append(text)
        return empty

    def _point(self, literals: list[Formula]) -> Assignment | None:
        """A point of a conjunction of linear constraints, None if it is empty."""
        order = list(dict.fromkeys(atom for literal in literals for atom in literal.poly.atoms()))
        self._charge_size([literal.poly for literal in literals], len(order))
        points = conjunction_set(self.context, literals, order)
        try:
            found = self.work.limited(self.context, points.sample_point, STAGES[:1])
        except islpy.Error:
            if len(order) > LARGE and self._rationally_empty(literals, order):
                return None
            if len(order) > HUGE:
                raise Undecided from None
            try:
                found = self.work.limited(self.context, points.sample_point, STAGES[1:])
            except islpy.Error as error:
                raise Undecided from error
        if found.is_void():
            return None
        return {atom: found.get_coordinate_val(islpy.dim_type.set, i).to_python() for i, atom in enumerate(order)}

    def _rationally_empty(self, literals: list[Formula], order: list[Atom]) -> bool:
        """True if linear programming finds no rational solution, so there is no integer one. It is far cheaper than the search
        for integer solutions, which is exponential in the number of unknowns."""
        points = islpy.Set.from_basic_set(conjunction_set(self.context, literals, order, rational=True))
        try:
            return self.work.limited(self.context, lambda: has_no_rational_point(points))
        except islpy.Error:
            return False

    def check_size(self, whole: Formula) -> None:
        """Undecided for a system that is too large to try; charges the work of constructing it."""
        self._charge_size(list(whole.polys()), len(terms.closure([whole])))

    def _charge_size(self, polys: Sequence[Poly], atoms: int) -> None:
        self.work.charge(1 + len(polys) * atoms // 8)
        if len(polys) * atoms > MAX_SYSTEM:
            raise Undecided
        self.work.charge_numbers(polys, atoms)

    def _read(self, text: str) -> islpy.Set:
        return islpy.Set.read_from_str(self.context, text)


def has_no_rational_point(points: islpy.Set) -> bool:
    """Whether a rational set is empty, by linear programs that look for a point and for equalities. `Set.is_empty` first asks
    of each constraint whether the others imply it, which takes 2 to 22 times as long (measured on refused kernels)."""
    return points.detect_equalities().plain_is_empty()


def _small(whole: Formula) -> bool:
    atoms = terms.closure([whole])
    few_atoms = len(atoms) <= SMALL and sum(atom.derived for atom in atoms) < DERIVED
    return few_atoms and alternatives(whole, SMALL) <= SMALL


def conjunction_set(
    context: islpy.Context, literals: list[Formula], order: list[Atom], *, rational: bool = False
) -> islpy.BasicSet:  # fmt: skip
    """The integer or rational points of linear constraints over `order`."""
    column: dict[Monomial, int] = {(atom,): index for index, atom in enumerate(order)}
    points = _universe(context, [f"x{index}" for index in range(len(order))], rational=rational)
    return _constrained(context, points, column, [(literal.op, literal.poly) for literal in literals])


def case_set(context: islpy.Context, case: Case, names: Names, *, rational: bool = False) -> islpy.Set:
    """The integer or rational points of a case over the monomials of `names`: the set that `case_text` prints."""
    points = _universe(context, list(map(names.of, names.order)), rational=rational)
    column = {monomial: index for index, monomial in enumerate(names.order)}
    constraints = [("ge", poly) for poly in case.inequalities] + [("eq", poly) for poly in case.equalities]
    return islpy.Set.from_basic_set(_constrained(context, points, column, constraints))


def _universe(context: islpy.Context, variables: Sequence[str], *, rational: bool) -> islpy.BasicSet:
    """All integer or rational points. Only isl's text parser can make a set rational."""
    return islpy.BasicSet.read_from_str(context, f"{{ {'rat: ' if rational else ''}[{', '.join(variables)}] }}")


def _constrained(
    context: islpy.Context, points: islpy.BasicSet, column: Mapping[Monomial, int], constraints: Iterable[tuple[str, Poly]]
) -> islpy.BasicSet:
    """`points` with the constraints added through isl's API: its text parser simplifies after each constraint, which was most
    of the time of a query."""
    local = islpy.LocalSpace.from_space(points.get_space())
    for op, poly in constraints:
        make = islpy.Constraint.equality_alloc if op == "eq" else islpy.Constraint.inequality_alloc
        constraint = make(local)
        for monomial, coefficient in poly.terms.items():
            value = _isl_value(context, coefficient)
            if monomial:
                constraint = constraint.set_coefficient_val(islpy.dim_type.set, column[monomial], value)
            else:
                constraint = constraint.set_constant_val(value)
        points = points.add_constraint(constraint)
    return points


def _isl_value(context: islpy.Context, value: int) -> islpy.Val:
    if abs(value) < 1 << 62:
        return islpy.Val.int_from_si(context, value)
    return islpy.Val.read_from_str(context, str(value))


def _constraint_poly(constraint: islpy.Constraint, names: Names) -> Poly:
    found: dict[Monomial, int] = {(): constraint.get_constant_val().to_python()}
    for index, monomial in enumerate(names.order):
        found[monomial] = constraint.get_coefficient_val(islpy.dim_type.set, index).to_python()
    return Poly(found)


def near_zero(atom: Atom, limit: int) -> Formula:
    """The atom is within `limit` of zero, or as close as its interval allows."""
    value = terms.of(atom)
    return terms.conjunction((terms.ge(value, min(-limit, atom.high)), terms.ge(terms.const(max(limit, atom.low)), value)))


def has_products(formulas: Iterable[Formula]) -> bool:
    """Whether formulas or the definitions of their atoms contain a product of unknowns."""
    given = list(formulas)
    return not all(map(_linear, (*given, *map(terms.definition, terms.closure(given)))))


def _linear(formula: Formula) -> bool:
    return all(poly.degree <= 1 for poly in formula.polys())


# Evaluation


def evaluator(values: Mapping[Atom, int]) -> Callable[[Atom], int]:
    """Values of all atoms: derived ones computed from their definitions, atoms without a value the one in their interval
    nearest to zero."""
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
