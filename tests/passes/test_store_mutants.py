"""Tiles stored by TMA, with one change each: the independent verifier refuses each change of the order."""

from __future__ import annotations

from typing import Any

import pytest

from tests import campaign
from tests.passes.schedule_mutants import mutants
from tests.tensor_products import source
from tilec.ir.core import Op, VerifyError
from tilec.ir.ops.store_ops import WaitStores
from tilec.ir.ops.sync_ops import SharedFree
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

STORED = (
    "scratch_store_rows dropped", "tensor_store dropped", "tensor_store doubled", "wait_stores dropped", "proxy_fence dropped",
    "waits for fewer stores", "stores other columns", "barrier of other threads",
)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "tile", "wanted"),
    campaign.first(
        3,
        [
            (SM_90A, (64, 80), {"stages": 2}),
            (SM_90A, (64, 80), {"stages": 2, "persistent": True}),
            (SM_120A, (64, 80), {"stages": 2, "persistent": True}),
            (SM_90A, (64, 256), {"stages": 5, "persistent": True}),  # fewer scratch buffers than sub-tiles
            (SM_90A, (64, 80), {"stages": 2, "persistent": True, "order": "pingpong"}),
            (SM_120A, (128, 128), {"stages": 2, "persistent": True, "order": "pingpong"}),
        ],
    ),
)
def test_what_changes_the_order_of_stores_is_refused(target: Target, tile: tuple[int, int], wanted: dict[str, Any]) -> None:
    """Tries every location; with ping-pong consumers, which run the same code, one mutant in three."""
    text = print_function(prepare(source("bf16", *tile), target, Overrides(copy="tma", store="tma", **wanted)))
    verify(parse_function(text), target)
    found = list(mutants(text, 3 if "order" in wanted else 1, STORED))
    assert {mutant.kind for mutant in found} == set(STORED)
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), target)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")


def test_scratch_is_not_freed_while_it_may_be_read() -> None:
    wanted = Overrides(copy="tma", store="tma", stages=2)
    text = print_function(prepare(source("bf16", 64, 64), SM_90A, wanted))
    for count in (0, 1):  # before the wait, and after it
        function = parse_function(text)
        (home,) = [region for op in function.body.walk() for region in op.regions if any(map(_waits, region.ops))]
        (wait,) = filter(_waits, home.ops)
        home.ops.insert(home.ops.index(wait) + count, SharedFree(operands=list(wait.operands)))
        if count:
            verify(function, SM_90A)
        else:
            with pytest.raises(VerifyError, match="shared_free"):
                verify(function, SM_90A)


def _waits(op: Op) -> bool:
    return isinstance(op, WaitStores)
