"""What the prover must be able to prove: each fact here depends on one rule that makes it accept more, never less.

A prover that refuses everything is sound. The other tests catch a prover that accepts too much; these catch one that has lost a
rule: the rung and the facts that a proof needs, a range that is as tight as possible, a question that is not asked because it
has no answer. Kernels that need one rule are in `test_accepted_kernels.py`.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.passes.builder import Access, Kernel, binary, cdiv, const, sym
from tilec.ir import ops
from tilec.ir.core import Parameter, Value
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import Range, arithmetic, between, exactly
from tilec.ir.types import TileType, boolean, i32
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import divisors, extents, guess, integer_sets, prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.bit_terms import bit_term
from tilec.passes.prover.case_split import certain, possible
from tilec.passes.prover.discharge import Refusal
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Solver, evaluator, system
from tilec.passes.prover.ladder import Ladder
from tilec.passes.prover.nonlinear import Case
from tilec.passes.prover.terms import Formula, Kind

# Ranges

NARROW = {
    ("and", between(0, 7), Range(-100, 100)): Range(0, 7),
    ("and", Range(-100, 100), between(0, 7)): Range(0, 7),
    ("and", between(0, 9), between(0, 7)): Range(0, 7),
    ("and", exactly(0), Range(-100, 100)): exactly(0),
    ("or", between(0, 4), between(2, 3)): Range(2, 7),
    ("xor", between(0, 4), between(0, 3)): Range(0, 7),
    ("shl", between(-1, 3), between(0, 2)): Range(-4, 12),
    ("shr", between(-8, 9), between(0, 2)): Range(-8, 9),
    ("floordiv", between(0, 96, 32), exactly(8)): Range(0, 12, 4, 0),
    ("floordiv", between(-7, 9), between(1, 2)): Range(-7, 9),
    ("mod", between(0, 5), between(6, 9)): Range(0, 5),
    ("mod", between(-20, 20), exactly(8)): Range(0, 7),
    ("mod", between(4, 100, 6, 4), exactly(4)): Range(0, 3, 2, 0),
    ("mod", between(1, 97, 8, 1), exactly(8)): exactly(1),
    ("mul", between(0, 4, 2), between(3, 9, 3)): Range(0, 36, 6, 0),
    ("add", between(0, 8, 4), between(1, 9, 8, 1)): Range(1, 17, 4, 1),
    ("sub", between(0, 8, 4), between(1, 9, 8, 1)): Range(-9, 7, 4, 3),
    ("min", between(0, 8, 4), between(2, 6, 4, 2)): Range(0, 6, 2, 0),
    ("max", between(0, 8, 4), between(2, 6, 4, 2)): Range(2, 8, 2, 0),
}


@pytest.mark.parametrize("question", NARROW, ids=lambda q: f"{q[0]} {q[1].low}..{q[1].high} {q[2].low}..{q[2].high}")
def test_a_range_is_as_narrow_as_it_is(question: tuple[str, Range, Range]) -> None:
    assert arithmetic(*question, bits=64) == NARROW[question]


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "floordiv", "min", "max", "and"])
def test_the_ends_of_a_range_are_reached(kind: str) -> None:
    python = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
        "min": min, "max": max, "and": lambda a, b: a & b,
    }[kind]  # fmt: skip
    for low, high, other in ((-3, 5, 4), (0, 7, 3), (0, 0, 7), (-6, -2, 3), (2, 9, 1)):
        found = arithmetic(kind, between(low, high), exactly(other))
        values = {python(a, other) for a in range(low, high + 1)}
        assert found is not None and found.low == min(values)
        assert found.high == max(values) if kind != "and" else found.high >= max(values)


def scalar(k: Kernel, name: str) -> Value:
    value = k.body.add_argument(TileType(i32), name)
    k.function.parameters.append(Parameter(name, value, None))
    return value


def unary(k: Kernel, kind: str, value: Value) -> Value:
    return k.emit(ops.Unary(kind=kind, operands=[value]), value.tile).result


def clamped(k: Kernel, value: Value, low: int, high: int) -> Value:
    return k.op("min", k.op("max", value, low), high)


def test_a_range_that_reaches_an_end_of_its_type_keeps_the_other_end() -> None:
    k = Kernel(1)
    n = scalar(k, "n")
    above, below = k.op("max", n, 5), k.op("min", n, 5)
    facts = value_ranges(k.function)
    assert (facts[above].low, facts[above].high) == (5, 2**31 - 1)
    assert (facts[below].low, facts[below].high) == (-(2**31), 5)


def test_an_absolute_value_and_a_negation_are_bounded() -> None:
    k = Kernel(1)
    n = scalar(k, "n")
    around, above, below = clamped(k, n, -3, 5), clamped(k, n, 2, 5), clamped(k, n, -5, -2)
    found = [unary(k, "abs", value) for value in (around, above, below)] + [unary(k, "neg", around), unary(k, "not", around)]
    facts = value_ranges(k.function)
    assert [(facts[v].low, facts[v].high) for v in found] == [(0, 5), (2, 5), (2, 5), (-5, 3), (-6, 2)]


@pytest.mark.parametrize(("inverted", "high"), [(False, 7), (True, 12)])
def test_a_selection_knows_its_condition(inverted: bool, high: int) -> None:
    """`where(n < 8, n, 0)` is below 8; `where(not n < 8, n, 0)` is in the rest of 0 to 12."""
    k = Kernel(1)
    n = clamped(k, scalar(k, "n"), 0, 12)
    condition = k.op("lt", n, 8)
    if inverted:
        condition = k.emit(ops.Unary(kind="not", operands=[condition]), TileType(boolean)).result
    chosen = k.emit(ops.Select(operands=[condition, n, k.c(9 if inverted else 0)]), TileType(i32)).result
    fact = value_ranges(k.function)[chosen]
    assert (fact.low, fact.high) == (8 if inverted else 0, high)


def test_a_proven_shift_by_a_constant_keeps_its_sign() -> None:
    """`(bid << 3)` feeds an index, so it is proven not to wrap; ranges may rely on that."""
    k = Kernel("N")
    out = k.tensor("out", Access.INOUT, "N", 8)
    start = k.op("shl", k.bid(), 3)
    k.store(out, k.op("shr", start, 3), 0, shape=(1, 8))
    fact = aligned_ranges(note_proofs(k.function))[start]
    assert fact.low == 0


# Bounds of formulas


@pytest.mark.parametrize("seed", range(60))
def test_bounds_are_as_narrow_as_one_constraint_implies(seed: int) -> None:
    """If every unknown occurs once, a linear form reaches both ends of its bounds: a value that bounds call possible is
    reached, and a constraint that they do not call certain has a counterexample."""
    r, atoms = random.Random(seed), Atoms()
    xs = [atoms.make(f"x{k}", Kind.OPAQUE, f"x{k}", (-9, 9)) for k in range(3)]
    bounds = {x: (low := r.randint(-4, 4), low + r.randint(0, 3)) for x in xs}
    poly = terms.const(r.randint(-12, 12))
    for x in xs:
        poly = poly + terms.of(x) * r.randint(-3, 3)
    values = [
        terms.evaluate(poly, dict(zip(xs, at, strict=True)).__getitem__)
        for at in product(*(range(low, high + 1) for low, high in bounds.values()))
    ]
    assert possible(Formula("ge", poly), bounds) == any(value >= 0 for value in values)
    assert certain(Formula("ge", poly), bounds) == all(value >= 0 for value in values)
    assert certain(Formula("eq", poly), bounds) == (set(values) == {0})
    assert possible(Formula("eq", poly), bounds) == (min(values) <= 0 <= max(values))


def test_bounds_decide_systems_of_one_unknown() -> None:
    x = Atoms().make("x", Kind.OPAQUE, "x", (-9, 9))
    three, upward = {x: (3, 3)}, {x: (3, 5)}
    assert certain(Formula("eq", terms.of(x) - 3), three) and not certain(Formula("eq", terms.of(x) - 3), upward)
    assert not possible(Formula("ge", terms.of(x) - 6), upward) and possible(Formula("ge", terms.of(x) - 5), upward)
    assert not possible(Formula("eq", terms.of(x) - 6), upward) and not possible(Formula("eq", terms.of(x) - 2), upward)


# Terms


@pytest.mark.parametrize("by", [0, 1, 31, 32, 33, 40, 62, 70])
def test_a_shift_by_a_constant_is_exact_past_the_width_too(by: int) -> None:
    k = Kernel(1)
    index = IndexTerms(k.function)
    x = index.atoms.make("x", Kind.OPAQUE, "x", (-(2**31), 2**31 - 1))
    ranges = [Range(-(2**31), 2**31 - 1), exactly(by)]
    left, right = (bit_term(index.atoms, kind, 32, [terms.of(x), terms.const(by)], ranges) for kind in ("shl", "shr"))
    assert left is not None and right is not None
    for value in (-(2**31), -5, -1, 0, 1, 7, 2**31 - 1):
        at = evaluator({x: value})
        assert terms.evaluate(right, at) == value >> min(by, 32)
        assert terms.evaluate(left, at) == (value << by if by < 32 else 0)


def test_operations_after_a_division_know_that_its_divisor_is_positive() -> None:
    k = Kernel(1)
    out = k.tensor("out", Access.INOUT, 64)
    n = scalar(k, "n")
    known, unknown = k.div(n, 8), k.div(8, n)
    store = k.store(out, k.add(known, unknown), shape=(1,))
    index = IndexTerms(k.function)
    assert index.divided(store) == [terms.ge(index.scalar(n), 1)]  # nothing to say of the division by 8
    assert known.owner is not None and index.divided(known.owner) == []


def test_common_factors_of_a_division_cancel() -> None:
    """`(4 * x + 2)

    6` becomes `(2 * x + 1)

    3`, the same unknown.
    """
    atoms = Atoms()
    x = terms.of(atoms.make("x", Kind.OPAQUE, "x", (0, 99)))
    assert atoms.quotient(x * 4 + 2, terms.const(6)) == atoms.quotient(x * 2 + 1, terms.const(3))
    assert atoms.quotient(x * 4 + 3, terms.const(6)) == atoms.quotient(x * 2 + 1, terms.const(3))


@pytest.mark.parametrize("op", ["<", "<=", "==", "!=", ">=", ">", "and", "or"])
def test_a_predicate_is_a_number_if_one_is_required(op: str) -> None:
    index = IndexTerms(Kernel("N").function)
    found = index.expression(binary("+", binary(op, sym("N"), const(3)), sym("N")))
    for n in (1, 2, 3, 4):
        holds = {"<": n < 3, "<=": n <= 3, "==": n == 3, "!=": n != 3, ">=": n >= 3, ">": n > 3}.get(op, True)
        assert terms.evaluate(found, evaluator({index.symbol("N").atom: n})) == holds + n  # type: ignore[dict-item]


def test_a_quotient_of_polynomials_is_found_if_it_is_a_polynomial() -> None:
    atoms = Atoms()
    x, y = (terms.of(atoms.make(name, Kind.OPAQUE, name, (0, 9))) for name in "xy")
    quotients = {
        (x * y * 6, x * 2): y * 3,
        (x * x + x, x): x + 1,
        (x * 3 + y * 3, x + y): terms.const(3),
        (x * 3 + y, x + y): None,
        (x + 1, x): None,
        (x * 3, x * 2): None,
    }
    for (whole, part), found in quotients.items():
        assert terms.exact_quotient(whole, part) == found


def test_a_loop_is_named_as_its_author_named_it() -> None:
    k = Kernel(1)
    with k.loop(0, 8, name="turn"):
        k.add(1, 2)
    loop = next(op for op in k.body.ops if isinstance(op, ops.For))
    atom = IndexTerms(k.function).iteration(loop).atom
    assert atom is not None and (atom.name, atom.label) == ("turn", "turn")


def test_only_divisions_of_integer_scalars_are_queried() -> None:
    k = Kernel("N")
    n = k.dim("N")
    single = k.div(n, 8)
    tile = k.op("floordiv", k.iota(8), k.spread(k.c(3), (8,)))
    product_ = k.mul(n, 8)
    assert [divisors._is_scalar_division(value.owner) for value in (single, tile, product_)] == [True, False, False]  # type: ignore[arg-type]


def test_a_launch_checks_only_what_may_fail() -> None:
    """Values that reach the ends of 64 bits but do not exceed them, and divisors from 1 on, need no launch check."""
    least, largest = -(2**63), 2**63 - 1
    symbols = {"a": Range(least + 1, 0), "b": Range(0, largest - 1), "d": Range(1, 9), "z": Range(0, 9)}

    def checks(expr: Expr) -> int:
        return len(list(extents._checks(expr, symbols, "x")))  # pyright: ignore[reportPrivateUsage]

    assert [checks(binary("-", sym("a"), const(k))) for k in (1, 2)] == [0, 1]
    assert [checks(binary("+", sym("b"), const(k))) for k in (1, 2)] == [0, 1]
    assert [checks(binary(op, const(8), sym(s))) for op in ("//", "%") for s in "dz"] == [0, 1, 0, 1]


# Questions that are not asked


def relevant_preconditions(k: Kernel, symbol: str) -> int:
    """The number of isl queries before `symbol < 9` is refused."""
    ladder = Ladder(IndexTerms(k.function))
    found = ladder.discharge([terms.lt(ladder.index.symbol(symbol), 9)])
    assert isinstance(found, Refusal)
    return ladder.solver.queries


def test_a_rung_without_facts_is_not_climbed() -> None:
    k = Kernel("N", "M")
    assert relevant_preconditions(k, "N") == 1
    k.requires(binary(">=", sym("N"), const(4)))
    assert relevant_preconditions(k, "N") == 2
    assert relevant_preconditions(k, "M") == 1  # the precondition does not mention it


def test_a_system_that_folds_to_false_causes_no_query() -> None:
    k = Kernel("N")
    ladder = Ladder(IndexTerms(k.function))
    found = ladder.discharge([terms.FALSE])
    assert found.rung == "interval" and not ladder.solver.queries  # type: ignore[union-attr]


def test_an_equality_is_learned_once() -> None:
    """Neither side can replace the other, so the equality stays; with the opposite sign it is the same equality."""
    atoms = Atoms()
    x, y = (terms.of(atoms.make(name, Kind.OPAQUE, name, (-9, 9))) for name in "xy")
    for known in (x * 2 - y * 3, y * 3 - x * 2):
        case = Case([], [known])
        assert not Solver()._learn_equalities(case)  # pyright: ignore[reportPrivateUsage]
        assert case.equalities == [known]


def test_a_system_with_many_derived_unknowns_is_split_and_not_multiplied_out() -> None:
    atoms = Atoms()
    x = terms.of(atoms.make("x", Kind.OPAQUE, "x", (0, 1 << 20)))
    small = system([terms.ge(atoms.quotient(x, terms.const(3)), 1)])
    many = system([terms.ge(sum((atoms.quotient(x + k, terms.const(k + 3)) for k in range(12)), terms.ZERO), 1)])
    assert integer_sets._small(small)  # pyright: ignore[reportPrivateUsage]
    assert len(terms.closure([many])) <= integer_sets.SMALL
    assert not integer_sets._small(many)  # pyright: ignore[reportPrivateUsage]


def test_tries_are_the_same_in_every_version() -> None:
    """The point they find is printed as the counterexample of a refused kernel."""
    x = Atoms().make("x", Kind.OPAQUE, "x", (-(2**31), 2**31 - 1))
    found = [values[x] for values in guess._tries([x])]
    assert all(-limit <= value <= 0 for limit, value in zip((2, 4, 16, 64, 1024, 1 << 31), found, strict=False))
    assert found[:8] == [0, -4, -16, -32, -944, -1742840289, -1, -1]


def test_each_obligation_is_named_before_it_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is attributed to the obligation that it serves, and observers are notified."""
    messages: list[str] = []
    monkeypatch.setattr("tilec.passes.prover.work.note", messages.append)
    k = Kernel("N")
    out = k.tensor("out", Access.OUT, "N", 64)
    k.store(out, k.bid(), 0, shape=(1, 64))
    prove(k.function)
    assert any(text.startswith("proving bounds of store to `out` at k.py") for text in messages)
    assert any(text.startswith("proving no race of store to `out` with store to `out`") for text in messages)
    assert any(text.startswith("proving") and "coverage of `out`" in text for text in messages)


def test_each_proof_is_recorded() -> None:
    """An obligation that is missing from the manifest cannot be checked again."""
    k = Kernel("N")
    x, out = k.tensor("x", Access.IN, "N"), k.tensor("out", Access.OUT, "N")
    start = k.mul(k.bid(), 64)
    k.load(x, start, shape=(64,), pad=0.0)
    k.store(out, start, shape=(64,), mask=True)
    k.function.grid = (cdiv(sym("N"), const(64)),)
    assert sorted((o.property, o.subject) for o in prove(k.function).obligations) == [
        ("bounds", "load from `x`"),
        ("bounds", "store to `out`"),
        ("coverage", "`out`"),
        ("race", "`out`"),
        ("race", "`out` written once"),
        ("wrap", "`*`"),
        ("wrap", "end of load from `x`"),
        ("wrap", "end of store to `out`"),
    ]
