"""Deciding systems of constraints: linear ones exactly; those with products never call a satisfiable system empty."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import islpy
import pytest

from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.covering import UNKNOWNS, uncovered
from tilec.passes.prover.integer_sets import Solver, conjunction_set, evaluator, has_no_rational_point
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.set_text import Names
from tilec.passes.prover.terms import Atom, Formula, Kind, OutOfWork, Poly
from tilec.passes.prover.work import STEPS_PER_WORD, Work
from tilec.untrusted.limits import MAX_VALUE_BITS


def unknowns(atoms: Atoms, count: int, low: int = 0, high: int = 3) -> list[Atom]:
    return [atoms.make(f"x{i}", Kind.OPAQUE, f"x{i}", (low, high)) for i in range(count)]


def random_poly(r: random.Random, atoms: Atoms, xs: list[Atom], depth: int) -> Poly:
    if depth == 0:
        return terms.of(r.choice(xs)) if r.random() < 0.7 else terms.const(r.randint(-3, 3))
    left, right = (random_poly(r, atoms, xs, depth - 1) for _ in range(2))
    match r.choice(["add", "sub", "mul", "div", "mod", "min", "max"]):
        case "add":
            return left + right
        case "sub":
            return left - right
        case "mul":
            return left * right
        case "div":
            return atoms.quotient(left, terms.const(r.randint(1, 4)))
        case "mod":
            divisor = terms.const(r.randint(1, 4))
            return left - divisor * atoms.quotient(left, divisor)
        case "min":
            return atoms.minimum(left, right)
        case _:
            return atoms.maximum(left, right)


def satisfiable(formulas: list[Formula], xs: list[Atom]) -> bool:
    for values in product(*(range(x.low, x.high + 1) for x in xs)):
        value = evaluator(dict(zip(xs, values, strict=True)))
        if all(terms.holds(formula, value) for formula in formulas):
            return True
    return False


def test_what_is_empty_without_products_is_empty_with_them():
    proven = 0
    for seed in range(60):
        r = random.Random(seed)
        atoms = Atoms()
        xs = unknowns(atoms, 3)
        formulas = [terms.ge(random_poly(r, atoms, xs, 2), r.randint(0, 4)) for _ in range(4)]
        formulas.append(terms.ge(terms.of(xs[0]) * terms.of(xs[1]), 2))
        if terms.conjunction(formulas) != terms.FALSE and Solver().empty_without_products(formulas):
            proven += 1
            assert not satisfiable(formulas, xs)
    assert proven > 5


def test_products_do_not_keep_the_others_from_deciding():
    atoms = Atoms()
    x, y, _ = (terms.of(atom) for atom in unknowns(atoms, 3))
    product_ = terms.ge(x * y, 1)
    assert Solver().empty_without_products([product_, terms.lt(x, y), terms.lt(y, x)])
    assert not Solver().empty_without_products([product_, terms.eq(x)]), "only the product has no solution"
    assert not Solver().empty_without_products([terms.lt(x, y), terms.lt(y, x)]), "there is no product to leave out"


@pytest.mark.parametrize("seed", range(150))
def test_empty_agrees_with_enumeration(seed: int):
    r = random.Random(seed)
    atoms = Atoms()
    xs = unknowns(atoms, 3)
    formulas: list[Formula] = []
    for _ in range(r.randint(1, 3)):
        left, right = (random_poly(r, atoms, xs, r.randint(0, 2)) for _ in range(2))
        formulas.append(r.choice([terms.ge, terms.eq, terms.lt, terms.ne])(left, right))
    try:
        empty = Solver().empty(formulas)
    except Undecided:
        return
    possible = satisfiable(formulas, xs)
    assert not (empty and possible)
    if all(p.degree <= 1 for f in formulas for p in f.polys()) and not any(
        p.degree > 1 for a in terms.closure(formulas) for p in terms.definition(a).polys()
    ):
        assert empty != possible


def satisfiable_by_fractions(rows: list[tuple[list[Fraction], bool]]) -> bool:
    """Whether sums of coefficients times unknowns, the last one constant, can be at least 0, or (True) 0: by elimination
    (Fourier and Motzkin)."""
    bounds = [row for row, _ in rows] + [[-value for value in row] for row, is_equal in rows if is_equal]
    for column in range(len(bounds[0]) - 1):
        low = [[value / row[column] for value in row] for row in bounds if row[column] > 0]
        high = [[value / -row[column] for value in row] for row in bounds if row[column] < 0]
        bounds = [row for row in bounds if row[column] == 0]
        bounds += [[a + b for a, b in zip(one, other, strict=True)] for one in low for other in high]
    return all(row[-1] >= 0 for row in bounds)


@pytest.mark.parametrize("bound", [3, 2**70])
def test_a_rational_set_is_empty_if_elimination_says_so(bound: int) -> None:
    """Also where it has points, none of them an integer."""
    context, seen = islpy.Context(), dict[tuple[bool, bool], int]()
    for seed in range(300):
        r = random.Random(seed)
        xs = unknowns(Atoms(), 3)
        literals: list[Formula] = []
        rows: list[tuple[list[Fraction], bool]] = []
        for _ in range(r.randint(2, 6)):
            row, is_equal = [r.randint(-bound, bound) for _ in (*xs, 1)], r.random() < 0.3
            poly = sum((terms.const(c) * terms.of(x) for c, x in zip(row, xs, strict=False)), terms.const(row[-1]))
            literals.append(Formula("eq" if is_equal else "ge", poly))
            rows.append((list(map(Fraction, row)), is_equal))
        points = islpy.Set.from_basic_set(conjunction_set(context, literals, xs, rational=True))
        no_integers = conjunction_set(context, literals, xs).is_empty()
        empty = has_no_rational_point(points)
        assert empty == (not satisfiable_by_fractions(rows)), seed
        seen[empty, no_integers] = seen.get((empty, no_integers), 0) + 1
    assert (True, False) not in seen
    assert all(seen.get(kind, 0) > 5 for kind in ((True, True), (False, True), (False, False)))


def test_a_solution_is_small_and_checked():
    atoms = Atoms()
    n = atoms.make("N", Kind.SYMBOL, "N", (1, 2**31), varies=False)
    system = [terms.ge(terms.of(n) * 3, 7)]
    found = Solver().solution(system, lambda atom: atom.kind is Kind.SYMBOL)
    assert found == {n: 3}


def test_negation_is_the_complement():
    atoms = Atoms()
    xs = unknowns(atoms, 2)
    a, b = map(terms.of, xs)
    formula = terms.disjunction((terms.conjunction((terms.lt(a, b), terms.ne(a, 2))), terms.eq(b, 0)))
    for values in product(range(4), repeat=2):
        value = evaluator(dict(zip(xs, values, strict=True)))
        assert terms.holds(formula, value) != terms.holds(terms.negate(formula), value)


def test_whole_multiples_leave_a_quotient():
    atoms = Atoms()
    n = terms.of(atoms.make("N", Kind.SYMBOL, "N", (1, 100), varies=False))
    assert atoms.quotient(n * 8 + 3, terms.const(4)) == n * 2
    assert atoms.quotient(n * 8 - 1, terms.const(8)) == n - 1


def test_unknowns_with_equal_names_stay_distinct() -> None:
    """isl accepts letters, digits and `_`, so `a.b` and `a_b` get the same spelling, and so do a product and a dim named after
    it."""
    atoms = Atoms()
    first, second = (atoms.make(name, Kind.OPAQUE, name, (0, 3)) for name in ("a.b", "a_b"))
    assert not Solver().empty([terms.lt(terms.of(first), terms.of(second))])
    names = Names()
    one, other, named = (atoms.make(name, Kind.OPAQUE, name, (0, 3)) for name in ("p", "q", "p_x_q"))
    monomials = [(one, other), (named,), (first,), (second,)]
    assert len({names.of(monomial) for monomial in monomials}) == len(monomials)


def test_large_numbers_are_charged_before_they_are_used() -> None:
    x = terms.of(unknowns(Atoms(), 1)[0])
    work = Work()
    work.charge_numbers([x * (1 << 127)] * 100, 20)
    assert work.spent == 0
    work.charge_numbers([x * (1 << 128)] * 100, 20)
    assert work.spent == 100 * 20 * STEPS_PER_WORD
    with pytest.raises(Undecided):
        work.charge_numbers([x * (1 << 1000)] * 100, 20)
    assert work.spent == 100 * 20 * STEPS_PER_WORD


def test_bounds_beyond_all_values_end_the_proof() -> None:
    atoms = Atoms()
    atoms.make("x", Kind.OPAQUE, "x", (0, (1 << MAX_VALUE_BITS) - 1))
    with pytest.raises(OutOfWork):
        atoms.make("y", Kind.OPAQUE, "y", (-(1 << MAX_VALUE_BITS), 0))


@pytest.mark.parametrize("count", [UNKNOWNS, UNKNOWNS + 1])
def test_a_cover_of_many_unknowns_covers_nothing(count: int) -> None:
    atoms = Atoms()
    (point,) = unknowns(atoms, 1)
    own = [atoms.make(f"y{k}", Kind.BLOCK, f"y{k}", (0, 3), args=(terms.const(4),)) for k in range(count)]
    cover = [terms.eq(terms.of(point), terms.of(atom)) for atom in own]
    if count <= UNKNOWNS:
        assert uncovered(Solver(), [], [cover], [terms.of(point)]) is None
        return
    with pytest.raises(Undecided):
        uncovered(Solver(), [], [cover], [terms.of(point)])
    assert uncovered(Solver(), [], [cover, cover[:1]], [terms.of(point)]) is None
