"""What the prover records and reports: rungs, counterexamples, fixes, and what took the work when the budget ends."""

from __future__ import annotations

import islpy
import pytest

from tests.passes.builder import Access, Kernel, binary, sym
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir.expr import Expr
from tilec.ir.types import i32
from tilec.passes.prover import prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.integer_sets import case_set
from tilec.passes.prover.nonlinear import Case
from tilec.passes.prover.set_text import Names, case_text
from tilec.passes.prover.terms import Kind
from tilec.passes.prover.work import Work, out_of_work
from tilec.untrusted.limits import MAX_DEGREE


def refusal(k: Kernel) -> Diagnostic:
    with pytest.raises(CompileError) as caught:
        prove(k.function)
    (found,) = caught.value.diagnostics
    return found


# Rungs


@pytest.mark.parametrize(("moving", "rung"), [(False, "static"), (True, "interval")])
def test_only_an_index_that_is_a_number_is_proven_without_intervals(moving: bool, rung: str) -> None:
    k = Kernel(4)
    x = k.tensor("x", Access.IN, 4)
    k.load(x, k.bid() if moving else k.c(3), shape=(1,))
    assert [one.rung for one in prove(k.function).obligations if one.property == "bounds"] == [rung]


# Fixes


def looked_up(step: int) -> Kernel:
    """A load of `table` at a number that another tensor holds, or at one a `step` further."""
    k = Kernel("T")
    ids = k.tensor("ids", Access.IN, "T", dtype=i32)
    table = k.tensor("table", Access.IN, "V")
    element = k.scalar_load(ids, k.bid())
    k.load(table, k.add(element, step) if step else element, shape=(1,))
    return k


def test_the_fix_of_an_index_from_a_tensor_declares_the_contents_of_the_tensor() -> None:
    """To clip the access would hide that the number is wrong."""
    (fix,) = refusal(looked_up(0)).fixes
    assert (fix.change, fix.text, fix.certain) == ("statement", "values(ids, 0, V)", True)


def test_an_index_computed_from_a_tensor_has_no_fix_that_a_program_applies() -> None:
    k = looked_up(1)
    k.values("ids", 0, "V")
    assert refusal(k).fixes == ()


# Counterexamples


def test_an_element_that_a_permutation_omits_is_shown() -> None:
    """A permutation writes all rows, whatever order it has, so what is wrong are the columns: only half of them are written."""
    k = Kernel("T")
    order = k.tensor("order", Access.IN, "T", dtype=i32)
    out = k.tensor("out", Access.OUT, "T", 128)
    k.values("order", 0, "T", distinct=True)
    k.store(out, k.scalar_load(order, k.bid()), 0, shape=(1, 64))
    found = refusal(k)
    assert found.code == "E0403" and found.counterexample is not None
    row, column = found.counterexample.element
    assert 0 <= row < found.counterexample.dims["T"] and 64 <= column < 128


# Sets


def test_half_a_number_is_a_rational_point_but_no_integer() -> None:
    """A record says `rat:` of a set that has no rational point, which is more than that it has no integer."""
    x = terms.of(Atoms().make("x", Kind.OPAQUE, "x", (-9, 9)))
    names, half = Names(), Case(equalities=[x * 2 - 1])
    text, context = case_text(half, names), islpy.Context()
    assert case_set(context, half, names).is_empty()
    rational = case_set(context, half, names, rational=True)
    assert not rational.is_empty()
    assert rational.is_equal(islpy.Set.read_from_str(context, text.replace("{ [", "{ rat: [", 1)))


# Work


def test_the_share_of_the_most_expensive_obligation_is_of_all_steps() -> None:
    work = Work(limit=10)
    for obligation, steps in (("bounds of load", 2), ("no race of store", 9)):
        work.begin(obligation, None)
        try:
            work.charge(steps)
        except terms.OutOfWork:
            break
    work.begin("coverage of `out`", None)
    assert out_of_work(Kernel(1).function, work).notes == (
        "no race of store took 81 % of 10 steps",
        "the budget ended at coverage of `out`",
    )


def test_a_grid_that_is_too_large_to_translate_is_reported_as_such() -> None:
    """The proofs begin with what indices are computed from, before any obligation."""
    extent: Expr = sym("N")
    for _ in range(MAX_DEGREE):
        extent = binary("*", extent, sym("N"))
    found = refusal(Kernel(extent))
    assert found.code == "E0510"
    assert found.notes[0].startswith("what indices are computed from: a product of sums has more than")
