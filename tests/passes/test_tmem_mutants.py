"""Schedules with accumulators in tensor memory, with one change each: the independent checks refuse it, or it changes nothing
that they check, for a reason given here."""

from __future__ import annotations

import re

import pytest

from tests import campaign
from tests.passes.schedule_mutants import Mutant, mutants
from tests.tensor_products import source
from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A

SCHEDULES = {
    "one tile": ((64, 64), Overrides(copy="tma", stages=2)),
    "persistent": ((64, 64), Overrides(copy="tma", stages=2, persistent=True)),
    "stored by tma": ((128, 64), Overrides(copy="tma", stages=3, persistent=True, store="tma")),
}
SAME = {
    "proxy_fence doubled": ("", "the same twice"),
    "barrier doubled": ("", "the same twice"),
    "warp_barrier doubled": ("", "the same twice"),
    "warp_barrier moved": ("", "past arithmetic"),
    "wait_stores doubled": ("", "the same twice"),
    "shared_free doubled": ("", "bytes are free by the plan, and it stays as it was"),
    "shared_free dropped": ("", "nothing takes its bytes later"),
    "shared_free moved": ("", "bytes are free by the plan, and it stays as it was"),
    "tmem_reserve moved": ("", "still before the barrier"),
    "tmem_alloc moved": ("", "past a constant"),
    "another space": ("(128|256|512) columns", "more columns than are used"),
    "wrong place": ("", "to bytes that are free too"),
    "barrier moved": ("", "past what touches no memory"),
    "wait moved": ("", "past arithmetic"),
    "wait_stores moved": ("", "past arithmetic"),
    "acquire moved": ("", "past arithmetic"),
    "commit moved": ("", "past arithmetic"),
    "release moved": ("", "past arithmetic"),
    "commit_mma moved": ("", "past arithmetic"),
    "release_mma moved": ("", "past arithmetic"),
    "tensor_copy moved": ("", "past the other copy, of another buffer"),
    "accumulates wrongly": ("ne", "no iteration is before the first"),
    "leaves out products": ("le", "no iteration is before the first"),
    "brings rows outside": ("", "as zeros, of which nothing that is stored follows"),
    "another tile": ("", "of the first row of a group, where a launch has one group"),
}
"""Kinds of changes without effect: the end of what changed, and why."""
ONE_TILE = {"release dropped": ("", "of an accumulator that nobody computes again")}
OF_VALUES = {
    "wrong coordinate": ("", "an element of another place"),
    "copies elsewhere": ("", "an element of another place"),
    "stores elsewhere": ("", "an element of another place"),
    "products of one matrix": ("swapped", "the transposed product, if it has as many rows as columns"),
}
"""Which element is where: no check of a schedule knows; the emulator finds them (`ci/bench/judges/schedule_mutants.py`)."""
SOME = 20
"""One mutant in this many of a kind is checked in the default run."""


def accepted(name: str, every: int) -> tuple[list[Mutant], int]:
    """The mutants of a schedule that all checks accept, and the number of mutants."""
    (rows, columns), wanted = SCHEDULES[name]
    text = print_function(prepare(source("bf16", rows, columns), SM_100A, wanted))
    verify(parse_function(text), SM_100A)
    found: list[Mutant] = []
    count = 0
    for mutant in mutants(text, every):
        count += 1
        try:
            verify(parse_function(mutant.text), SM_100A)
        except VerifyError:
            continue
        found.append(mutant)
    return found, count


@pytest.mark.parametrize(
    ("name", "every"),
    campaign.chosen([(name, every) for name in SCHEDULES for every in (SOME, 1)], lambda case: case[1] == SOME),
)
def test_what_changes_the_order_of_products_in_tensor_memory_is_refused(name: str, every: int) -> None:
    found, count = accepted(name, every)
    assert count > (60 if every == SOME else 300)
    reasons = SAME | OF_VALUES | (ONE_TILE if name == "one tile" else {})
    for mutant in found:
        detail, _ = reasons.get(mutant.kind, ("^", ""))
        assert mutant.kind in reasons and re.search(f"{detail}$", mutant.what), f"accepted: {mutant.kind}, {mutant.what}"
    if every == 1:
        assert {mutant.kind for mutant in found} >= {"tmem_reserve moved", "another space", "accumulates wrongly"}
