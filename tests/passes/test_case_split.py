"""The lazy case split against enumeration: it finds a point if and only if one exists, and every point it finds is a
solution."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.fuzz.slow_kernels import stored_divisions
from tilec.diagnostics.diagnostic import CompileError
from tilec.diagnostics.internal_errors import reported_as_diagnostics
from tilec.frontend import load_kernel
from tilec.passes.prover import prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.case_split import CaseSplit, alternatives, contradictory
from tilec.passes.prover.guess import guessed
from tilec.passes.prover.integer_sets import Solver, evaluator, system
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly
from tilec.passes.prover.work import Work

MODULE = sys.modules["tilec.passes.prover.prove"]
"""The package exports a function of the same name as this module."""


def literal(r: random.Random, xs: list[Atom]) -> Formula:
    poly = terms.const(r.randint(-6, 6))
    for x in r.sample(xs, r.randint(1, len(xs))):
        poly = poly + terms.of(x) * r.randint(-3, 3)
    return r.choice([terms.ge, terms.eq, terms.ne, terms.lt])(poly, 0)


def nested(r: random.Random, xs: list[Atom], depth: int) -> Formula:
    if not depth:
        return literal(r, xs)
    parts = [nested(r, xs, depth - 1) for _ in range(r.randint(1, 4))]
    return terms.conjunction(parts) if r.random() < 0.5 else terms.disjunction(parts)


@pytest.mark.parametrize("seed", range(200))
def test_it_agrees_with_enumeration(seed: int) -> None:
    r, atoms = random.Random(seed), Atoms()
    xs = [atoms.make(f"x{k}", Kind.OPAQUE, f"x{k}", (-2, 3)) for k in range(3)]
    whole = system([nested(r, xs, 3), nested(r, xs, 2)])
    found = CaseSplit(Solver()._point).point(whole)  # pyright: ignore[reportPrivateUsage]
    points = [dict(zip(xs, values, strict=True)) for values in product(range(-2, 4), repeat=3)]
    known = terms.closure([whole])
    possible = any(terms.holds(whole, point.__getitem__) for point in points)
    assert (found is not None) == possible
    if found is not None:
        complete = {x: found.get(x, 0) for x in xs}
        assert terms.holds(whole, {**complete, **{a: found[a] for a in known if a in found}}.__getitem__)


def test_a_choice_of_which_no_case_can_be_true_is_unknown() -> None:
    atoms = Atoms()
    x = atoms.make("x", Kind.OPAQUE, "x", (0, 7))
    of_bit = atoms.choice([(terms.eq(terms.of(x), bit), terms.const(1 << bit)) for bit in range(8)])
    outside = atoms.substitute(of_bit, {x: terms.const(40)})
    for value in range(1, 129):
        assert CaseSplit(Solver()._point).point(system([terms.eq(outside, value)])) is not None  # pyright: ignore[reportPrivateUsage]
    assert atoms.choice([]) == terms.ZERO


@pytest.mark.parametrize("seed", range(100))
def test_bounds_refute_nothing_that_has_a_solution(seed: int) -> None:
    r, atoms = random.Random(seed), Atoms()
    x, y, z = (atoms.make(f"x{k}", Kind.OPAQUE, f"x{k}", (-2, 3)) for k in range(3))

    def poly() -> Poly:
        product_of_two = terms.of(r.choice([x, y])) * terms.of(r.choice([y, z]))
        return product_of_two * r.randint(-2, 2) + terms.of(x) * r.randint(-3, 3) + terms.of(z) * 2 + r.randint(-9, 9)

    inequalities, equalities = [poly() for _ in range(3)], [poly() for _ in range(r.randint(0, 1))]
    if contradictory(inequalities, equalities):
        for values in product(range(-2, 4), repeat=3):
            at = dict(zip((x, y, z), values, strict=True)).__getitem__
            assert any(terms.evaluate(p, at) < 0 for p in inequalities) or any(terms.evaluate(p, at) for p in equalities)


def test_nested_choices_are_not_multiplied_out() -> None:
    atoms = Atoms()
    x = atoms.make("x", Kind.OPAQUE, "x", (0, 1000))
    value = terms.of(x)
    for k in range(24):
        value = atoms.minimum(value + k % 3, atoms.maximum(terms.const(200 + k) - value, terms.of(x) - k))
    most = max(terms.evaluate(value, evaluator({x: at})) for at in range(1001))
    assert alternatives(system([terms.ge(value, most)]), 1 << 20) > 1 << 20
    assert not Solver().empty([terms.ge(value, most)])
    assert Solver().empty([terms.ge(value, most + 1)])


def test_a_guess_is_a_solution() -> None:
    atoms = Atoms()
    x = atoms.make("x", Kind.BLOCK, "x", (0, 1 << 20), args=(terms.const(1 << 20),))
    value = terms.of(x)
    for k in range(12):
        value = atoms.quotient(value, terms.const(k + 2)) + value
    whole = system([terms.ge(value, 100)])
    found = guessed(whole)
    assert found is not None and terms.holds(whole, found.__getitem__)


def test_the_budget_ends_in_one_error_that_names_what_cost_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.py"
    path.write_text(stored_divisions(6), encoding="utf-8")
    messages: list[str] = []
    monkeypatch.setattr("tilec.passes.prover.work.note", messages.append)
    monkeypatch.setattr(MODULE, "Work", lambda: Work(limit=20_000))
    with pytest.raises(CompileError) as caught:
        prove(load_kernel(path, {}))
    (found,) = caught.value.diagnostics
    assert found.code == "E0510" and found.hint and "no race of store to `out`" in found.notes[0]
    assert found.primary is not None and found.primary.span.line == len(path.read_text(encoding="utf-8").splitlines())
    assert any("no race of store to `out` with store to `out` at" in text for text in messages)


def test_work_is_the_same_on_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.py"
    path.write_text(stored_divisions(3), encoding="utf-8")
    spent: list[int] = []
    for _ in range(2):
        work = Work()
        monkeypatch.setattr(MODULE, "Work", lambda work=work: work)
        with pytest.raises(CompileError):
            prove(load_kernel(path, {}))
        spent.append(work.spent)
    assert spent[0] == spent[1] > 0


@pytest.mark.parametrize(("error", "code"), [(RecursionError(), "E0512"), (MemoryError(), "E0812")])
def test_a_stage_without_stack_or_memory_is_no_internal_error(error: Exception, code: str) -> None:
    with pytest.raises(CompileError) as caught, reported_as_diagnostics("stage `mlir`", lambda: None):
        raise error
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == [code]
