"""Schedules of pairs of blocks, with one change each: the independent checks refuse every one."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.passes import pair_mutants, schedule_mutants
from tests.passes.test_tmem_mutants import OF_VALUES, ONE_TILE, SAME, SOME
from tests.tensor_products import source
from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A

SCHEDULES = {
    "one tile": ((256, 128), Overrides(copy="tma", cluster=2, stages=2)),
    "persistent": ((256, 64), Overrides(copy="tma", cluster=2, stages=2, persistent=True)),
    "stored by tma": ((256, 128), Overrides(copy="tma", cluster=2, stages=3, persistent=True, store="tma")),
}
KINDS = {
    "counts one block", "ring of one block", "product of one block", "barrier of one block", "barrier dropped",
    "barrier elsewhere", "all threads of the role", "other rows", "halves exchanged", "rank in control", "rank in an operand",
    "in the leader alone", "rank on another axis", "rank in an offset twice",
}  # fmt: skip


def prepared(name: str) -> str:
    (rows, columns), wanted = SCHEDULES[name]
    return print_function(prepare(source("bf16", rows, columns), SM_100A, wanted))


def is_accepted(text: str) -> bool:
    try:
        verify(parse_function(text), SM_100A)
    except VerifyError:
        return False
    return True


@pytest.mark.parametrize("name", SCHEDULES)
def test_mistakes_in_what_blocks_share_are_refused(name: str) -> None:
    text = prepared(name)
    assert is_accepted(text)
    kinds: Counter[str] = Counter()
    for mutant in pair_mutants.mutants(text):
        kinds[mutant.kind] += 1
        assert not is_accepted(mutant.text), f"accepted: {mutant.kind}, {mutant.what}"
    assert kinds.keys() == KINDS and kinds.total() > 60


@pytest.mark.parametrize("name", SCHEDULES)
def test_mistakes_in_one_block_are_refused_in_a_pair_too(name: str) -> None:
    """`test_tmem_mutants` says why some changes have no effect."""
    reasons = SAME | OF_VALUES | (ONE_TILE if name == "one tile" else {})
    count = 0
    for mutant in schedule_mutants.mutants(prepared(name), SOME):
        count += 1
        if is_accepted(mutant.text):
            detail, _ = reasons.get(mutant.kind, ("^", ""))
            assert mutant.kind in reasons and re.search(f"{detail}$", mutant.what), f"accepted: {mutant.kind}, {mutant.what}"
    assert count > 60
