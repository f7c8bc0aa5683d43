"""Mutants of ping-pong schedules that the independent verifier accepts because they change no value: they are run, and their
results are right.

Each of two consumers processes every other tile, so it begins and ends at every other ring slot, modulo two rounds. The
arithmetic on slots therefore has parts that no tile of a consumer depends on, and others that are equal modulo two rounds.
"""

from __future__ import annotations

import pytest

from tests.campaign import chosen
from tests.clean import check_clean
from tests.passes.schedule_mutants import Mutant, mutants
from tests.tensor_products import differs, emulated, made
from tilec.codegen import to_ptx
from tilec.ir.core import VerifyError
from tilec.ir.ops import For
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.schedule.checks.verify import verify
from tilec.target.targets import SM_90A

KINDS = ("another tile", "loop begins elsewhere", "counts other stages")


def accepted(text: str, every: int) -> list[Mutant]:
    """The mutants of ring indices that the verifier accepts, about one in `every` of each kind. Mutants that change which tile
    a block processes are not among them."""
    ops = list(parse_function(text).body.walk())
    starts = [number for number, op in enumerate(ops) if isinstance(op, For)]
    found: list[Mutant] = []
    for mutant in mutants(text, every, KINDS):
        number = int(mutant.what.replace(",", "").split()[1])
        before = max((start for start in starts if start < number), default=-1)
        computes_tile = mutant.kind == "another tile" and ops[before].attributes().get("variable") == "turn"
        try:
            verify(parse_function(mutant.text), SM_90A)
        except VerifyError:
            continue
        if not computes_tile:
            found.append(mutant)
    return found


COMPLETE = ((2, 136, 1), (3, 40, 1))
"""Stages, the product's K extent (three iterations a tile, or one), and the sampling interval of mutants."""


@pytest.mark.parametrize(("stages", "depth", "every"), chosen([(3, 40, 12), *COMPLETE], lambda case: case not in COMPLETE))
def test_accepted_mutants_change_nothing(stages: int, depth: int, every: int) -> None:
    kernel = made("bf16", 64, 64, stages=stages, persistent=True, order="pingpong")
    found = accepted(print_function(kernel.prepared), every)
    if every == 1:
        assert 5 <= len(found) <= 12
        assert any(mutant.what.endswith("sub for add") for mutant in found)
        assert (stages == 2) == any(mutant.kind == "loop begins elsewhere" for mutant in found)
    assert found
    for mutant in found:
        ptx = to_ptx(lower(parse_function(mutant.text), SM_90A).mlir, SM_90A)
        report, left, right = emulated(kernel, (136, 200, depth), 0, ptx)
        check_clean(report)
        assert not differs(left, right), (mutant.kind, mutant.what)
