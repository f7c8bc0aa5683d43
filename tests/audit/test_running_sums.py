"""The audit knows the running sums of a tile by rules of its own: it confirms compactions and no wrong one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests import campaign
from tests.audit.test_proofs import audited
from tests.passes.test_prefix_sums import ACCEPTED, COMPACT, REFUSED, TEXTS, all_scans, by_definition, evaluated, function_of
from tilec.audit import smt
from tilec.audit.contract import contract_of_function
from tilec.audit.findings import CONFIRMED, UNKNOWN, Finding
from tilec.audit.program import Program
from tilec.audit.running_sums import running_sum
from tilec.audit.scene import Loaded, Query
from tilec.ir import ops
from tilec.ir.core import Function
from tilec.ir.text.printer import print_function

OPEN = ("wide places",)  # an addition of two masks is no element that is summed
FIRST = ("exclusive", "counts", "rows", "from the end")


def findings_of(folder: Path, name: str, old: str, new: str) -> list[Finding]:
    return audited(print_function(function_of(folder, TEXTS[name].replace(old, new))))


@pytest.mark.parametrize("name", campaign.chosen(ACCEPTED, lambda name: name in FIRST))
def test_a_compaction_is_confirmed(tmp_path: Path, name: str) -> None:
    found = findings_of(tmp_path, *ACCEPTED[name])
    assert {one.verdict for one in found} == ({CONFIRMED, UNKNOWN} if name in OPEN else {CONFIRMED})
    assert any("written once" in one.subject for one in found)


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_not_confirmed(tmp_path: Path, name: str) -> None:
    *edit, _ = REFUSED[name]
    races = [one.verdict for one in findings_of(tmp_path, *edit) if one.property == "race"]
    assert set(races) - {CONFIRMED}


def test_a_sum_refutes_nothing(tmp_path: Path) -> None:
    """All elements are 1, so each sum is its position, and twice the sum less the position is one-to-one; the rules only say
    that the elements are 0 or 1 and that the sums rise."""
    index = "begin + cumsum(where(v > 0, 1, where(v <= 0, 1, 0)), 0, exclusive=True) * 2 - arange(16)"
    text = COMPACT.replace("begin + cumsum(where(kept, 1, 0), 0, exclusive=True)", index).replace("& kept", "& (v == v)")
    assert index in text
    found = audited(print_function(function_of(tmp_path, text)))
    assert [one.verdict for one in found if "written once" in one.subject] == [UNKNOWN]


@pytest.mark.parametrize("extent", [2, 8, 16, 64])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_are_found_and_are_what_they_are_called(tmp_path: Path, extent: int, axis: int) -> None:
    shape = (4, extent) if axis else (extent, 4)
    function = function_of(tmp_path, all_scans(shape, axis))
    values, kinds = evaluated(function, random.Random(extent)), set[tuple[bool, bool]]()
    order = {op: number for number, op in enumerate(function.body.walk())}
    for value in values:
        one = running_sum(value, order)
        if one is not None:
            assert values[value] == by_definition(values[one.tile], one.tile.tile.shape, one.axis, one.backward, one.inclusive)
            if one.tile.tile.shape == shape and one.axis == axis:
                kinds.add((one.backward, one.inclusive))
    assert len(kinds) == 4


@pytest.mark.parametrize("wrong", ["another maximum", "another partner", "another position"])
def test_a_tree_with_a_mistake_is_no_sum(tmp_path: Path, wrong: str) -> None:
    function = function_of(tmp_path, COMPACT)
    order = {op: number for number, op in enumerate(function.body.walk())}
    (whole,) = (op.result for op in order if isinstance(op, ops.Reshape) and running_sum(op.result, order) is not None)
    assert whole.tile.shape == (16,)
    spoil(function, wrong)
    assert running_sum(whole, order) is None


def spoil(function: Function, wrong: str) -> None:
    for op in function.body.walk():
        if wrong == "another maximum" and isinstance(op, ops.Reduce):
            op.kind = "sum"
        if wrong == "another partner" and isinstance(op, ops.Butterfly) and op.mask == 1:
            op.mask = 0
        if wrong == "another position" and isinstance(op, ops.Compare) and isinstance(op.operands[0].owner, ops.Binary):
            op.kind = "eq"
            return


@pytest.mark.parametrize(("least", "largest"), [(0, 1), (-1, 1)])
def test_facts_about_sums_are_true_of_every_row(tmp_path: Path, least: int, largest: int) -> None:
    """All rows of three elements: the facts are true of their sums, and of no other numbers."""
    function = function_of(tmp_path, COMPACT)
    for row in itertools.product(range(least, largest + 1), repeat=3):
        smt.fresh()
        query = Query(Program(function, contract_of_function(function)))
        sums = [query.fresh(f"s{which}") for which in range(3)]
        facts = [
            fact
            for which in range(3)
            for fact in query.record_sum(
                Loaded(sums[which], "sums", (smt.integer(0), smt.integer(which), smt.integer(row[which]))), (least, largest)
            )
        ]
        for numbers in itertools.product(range(2 * least, 2 * largest + 1), repeat=3):
            chosen = [(term, smt.integer(number)) for term, number in zip(sums, numbers, strict=True)]
            holds = smt.z3.simplify(smt.z3.substitute(smt.z3.And(*facts), *chosen))
            assert smt.z3.is_true(holds) == (list(numbers) == [sum(row[:which]) for which in range(3)])
