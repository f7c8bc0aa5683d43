"""Schedules of roles that share a ring, with one thing changed: the second verifier refuses what changes any order."""

from __future__ import annotations

import pytest

from tests.passes.schedule_mutants import mutants
from tests.tensor_products import source
from tilec.ir.core import VerifyError
from tilec.ir.parser import parse_function
from tilec.ir.printer import print_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.verify import verify
from tilec.schedule import Overrides
from tilec.target import SM_90A

REFUSED = (
    "acquire dropped", "commit dropped", "wait dropped", "release dropped", "tensor_copy dropped", "proxy_fence dropped",
    "wait doubled", "release doubled", "tensor_copy doubled", "wrong stage", "wrong parity", "wrong bytes", "wrong readers",
    "swapped roles", "roles of other warps", "released too early or late", "loop begins elsewhere", "loop of other turns",
    "counts other stages", "barrier of other threads",
)  # fmt: skip
EVERY = 3


def test_what_changes_an_order_is_refused() -> None:
    text = print_function(prepare(source("bf16", 64, 64), SM_90A, Overrides(copy="tma", stages=2)))
    verify(parse_function(text), SM_90A)
    found = [mutant for mutant in mutants(text) if mutant.kind in REFUSED]
    assert len({mutant.kind for mutant in found}) == len(REFUSED) and len(found) > 80
    for mutant in found[::EVERY]:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), SM_90A)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")
