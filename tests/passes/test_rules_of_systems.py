"""Systems of constraints as isl reads them: names, opposite inequalities, covers with many cases."""

from __future__ import annotations

import pytest

from tests.passes.builder import Access, Kernel, binary, sym
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.prover import prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.covering import ALTERNATIVES, Cover, uncovered
from tilec.passes.prover.integer_sets import Solver
from tilec.passes.prover.nonlinear import Case, Undecided, substitute_equalities
from tilec.passes.prover.terms import Atom, Kind


def rows(variable: str, past: bool) -> Kernel:
    """One block that writes the first element of every row of length `N`, or with `past` that of the row after it."""
    k = Kernel(1)
    k.tensor("shape", Access.IN, "M", "N")
    out = k.tensor("out", Access.INOUT, binary("*", sym("M"), sym("N")))
    with k.loop(0, "M", name=variable) as row:
        start = k.mul(row, "N")
        k.store(out, k.add(start, "N") if past else start, shape=(1,))
    return k


@pytest.mark.parametrize(
    "word",
    ["row", "exists", "floor", "max", "mod", "NaN", "rat", "true", "nan", "NAN", "Max", "INFTY", "infinity", "Or", "é", "_7"],
)
def test_the_name_of_a_variable_changes_no_verdict(word: str) -> None:
    """Most of these names are words of isl's language, which knows them in any case; NaN there leaves a set without a point."""
    assert prove(rows(word, False).function).obligations
    with pytest.raises(CompileError) as caught:
        prove(rows(word, True).function)
    assert {one.code for one in caught.value.diagnostics} == {"E0302"}


def unknowns(count: int) -> list[Atom]:
    atoms = Atoms()
    return [atoms.make(f"x{i}", Kind.OPAQUE, f"x{i}", (0, 3)) for i in range(count)]


def test_two_tight_opposite_inequalities_become_one_equality() -> None:
    """No unknown of `2x + 3y == 5` has a coefficient of 1, so the equality stays, and it is stated once."""
    x, y = (terms.of(atom) for atom in unknowns(2))
    line = x * 2 + y * 3 - 5
    case = Case([line, -line])
    substitute_equalities(case)
    assert not case.inequalities
    assert case.equalities in ([line], [-line])


def halves(count: int) -> tuple[list[Atom], Cover]:
    """Unknowns, and a cover that holds everywhere but is written as a case distinction for each of them."""
    xs = unknowns(count)
    return xs, [terms.disjunction((terms.eq(terms.of(x)), terms.ge(terms.of(x), 1))) for x in xs]


def test_a_cover_with_too_many_cases_is_omitted() -> None:
    """The time that isl takes to subtract a cover grows with its cases. Without a cover the answer can only be undecided."""
    most = ALTERNATIVES.bit_length() - 1
    xs, cover = halves(most)
    assert uncovered(Solver(), [], [cover], [terms.of(x) for x in xs]) is None
    xs, cover = halves(most + 1)
    with pytest.raises(Undecided):
        uncovered(Solver(), [], [cover], [terms.of(x) for x in xs])
