"""Rules for systems with products against enumeration: none calls a system empty that has a solution."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.case_split import implied_bounds
from tilec.passes.prover.factor_bounds import factor_bounds
from tilec.passes.prover.integer_sets import Solver, evaluator, has_products, system
from tilec.passes.prover.nonlinear import Case, Undecided, cases
from tilec.passes.prover.races import first_difference, told_apart
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly
from tilec.passes.prover.unified import unified

LOW, HIGH = -2, 3
small = st.integers(-3, 3)
choices = st.lists(st.tuples(st.integers(0, 8), small, small, small), min_size=2, max_size=5)


def made(drawn: list[tuple[int, int, int, int]]) -> tuple[Atoms, list[Atom], list[Formula]]:
    """Formulas over a block id, two iterations, a size, an element at the block id, and what is computed from these."""
    atoms = Atoms()
    kinds = (Kind.BLOCK, Kind.ITERATION, Kind.ITERATION, Kind.SYMBOL)
    base = [atoms.make(f"x{k}", kind, f"x{k}", (LOW, HIGH), args=(terms.const(HIGH + 1),)) for k, kind in enumerate(kinds)]
    b, i, j, size = map(terms.of, base)
    element = terms.of(atoms.loaded("n", (b,), (LOW, HIGH)))
    share = atoms.quotient(element, size)
    values = [b - i, i - j, b * share - j, i * share - size, atoms.minimum(i * size, j), share - i, element - j, size - 1,
              atoms.quotient(i * 2 + j, size) - b]  # fmt: skip
    formulas = [
        (terms.eq if scale == 0 else terms.ge)(values[which] * (scale or 1) + offset + values[0] * more)
        for which, scale, offset, more in drawn
    ]
    return atoms, [*base, *(atom for atom in terms.closure([terms.ge(element)]) if atom.kind is Kind.LOADED)], formulas


def solutions(base: list[Atom], formulas: list[Formula]) -> list[dict[Atom, int]]:
    found: list[dict[Atom, int]] = []
    for numbers in product(range(LOW, HIGH + 1), repeat=len(base)):
        values = dict(zip(base, numbers, strict=True))
        if all(terms.holds(formula, evaluator(values)) for formula in formulas):
            found.append(values)
    return found


def positive(formulas: list[Formula]) -> list[Formula]:
    """The formulas, with the divisors in them positive: in other launches the kernel does not divide."""
    quotients = [atom for atom in terms.closure(formulas) if atom.kind is Kind.QUOTIENT]
    return [*formulas, *(terms.ge(atom.args[1], 1) for atom in quotients)]


@given(choices)
@settings(max_examples=60, deadline=None)
def test_bounds_of_factors_hold_in_every_solution(drawn: list[tuple[int, int, int, int]]) -> None:
    _, base, formulas = made(drawn)
    formulas = positive(formulas)
    found = solutions(base, formulas)[:200]
    try:
        split: list[Case] = list(cases(system(formulas)))
    except Undecided:
        return
    for case in split:
        bounds = implied_bounds(case.inequalities, case.equalities)
        added = factor_bounds(case, bounds) if bounds is not None else []
        for values in found:
            value = evaluator(values)
            inside = all(terms.evaluate(p, value) >= 0 for p in case.inequalities)
            inside = inside and all(terms.evaluate(p, value) == 0 for p in case.equalities)
            inside = inside and all(value(atom) == terms.evaluate(poly, value) for atom, poly in case.replaced)
            assert not inside or bounds is not None
            assert not inside or all(terms.evaluate(p, value) >= 0 for p in added), (formulas, added)


@given(choices)
@settings(max_examples=60, deadline=None)
def test_no_satisfiable_system_is_empty_with_bounds_of_factors(drawn: list[tuple[int, int, int, int]]) -> None:
    _, base, formulas = made(drawn)
    formulas = positive(formulas)
    try:
        is_empty = Solver(bounds_factors=True).empty(formulas)
    except Undecided:
        return
    assert not (is_empty and solutions(base, formulas))


@given(choices)
@settings(max_examples=100, deadline=None)
def test_one_unknown_for_equal_ones_loses_no_solution(drawn: list[tuple[int, int, int, int]]) -> None:
    atoms, base, formulas = made(drawn)
    second = atoms.make("x9", Kind.BLOCK, "x9", (LOW, HIGH), args=(terms.const(HIGH + 1),))
    other = atoms.loaded("n", (terms.of(second),), (LOW, HIGH))
    size = terms.of(base[3])
    formulas += [terms.eq(terms.of(second), terms.of(base[0])), terms.ge(atoms.quotient(terms.of(other), size) * size + 3)]
    same = unified(atoms, formulas)
    if same is None:
        return
    for values in solutions(base, positive(formulas[:-2])):
        whole = {**values, second: values[base[0]], other: values[base[4]]}
        if all(terms.holds(formula, evaluator(whole)) for formula in positive(formulas)):
            assert all(terms.holds(formula, evaluator(whole)) for formula in same), (formulas, same)


def test_equal_blocks_compute_one_share() -> None:
    """`n[a] // S` and `n[b] // S` are one unknown if `a == b`, also where that follows from `-3 < 3 * a - 3 * b < 3`."""
    atoms = Atoms()
    a, b = (terms.of(atoms.make(name, Kind.BLOCK, name, (0, 9), args=(terms.const(10),))) for name in "ab")
    size = terms.of(atoms.make("S", Kind.SYMBOL, "S", (1, 9), varies=False))
    share_a, share_b = (atoms.quotient(terms.of(atoms.loaded("n", (x,), (0, 99))), size) for x in (a, b))
    differs = terms.ne(share_a * size, share_b * size)
    for equal in ([terms.eq(a, b)], [terms.ge(a * 3 + 2, b * 3), terms.ge(b * 3 + 2, a * 3)]):
        same = unified(atoms, [*equal, differs])
        assert same is not None
        assert terms.conjunction(same) == terms.FALSE
    assert unified(atoms, [terms.ge(a * 3 + 3, b * 3), terms.ge(b * 3 + 2, a * 3), differs]) is None


@given(st.lists(st.tuples(small, small), min_size=1, max_size=4))
def test_first_difference_says_that_some_pair_differs(numbers: list[tuple[int, int]]) -> None:
    atoms = Atoms()
    pairs: list[tuple[Poly, Poly]] = []
    values: dict[Atom, int] = {}
    for k, (left, right) in enumerate(numbers):
        made_pair = [atoms.make((k, side), Kind.OPAQUE, "x", (-3, 3)) for side in range(2)]
        values |= dict(zip(made_pair, (left, right), strict=True))
        pairs.append((terms.of(made_pair[0]), terms.of(made_pair[1])))
    different = any(left != right for left, right in numbers)
    assert terms.holds(first_difference(pairs), values.__getitem__) == different
    assert terms.holds(told_apart(pairs), values.__getitem__) == different


def test_products_inside_definitions_count() -> None:
    atoms = Atoms()
    x, d = (terms.of(atoms.make(name, Kind.OPAQUE, name, (1, 9))) for name in "xd")
    assert has_products([terms.ge(atoms.quotient(x, d), 2)])
    assert not has_products([terms.ge(atoms.quotient(x, terms.const(3)), 2)])
