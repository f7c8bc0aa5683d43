"""Schedules that tensor memory, or the division of a product among consumers, rules out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensor_products import source
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.ops.tmem_ops import TmemReserve
from tilec.ir.types import TMEM_COLUMNS, TmemSpaceType
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, Target


def refusal(rows: int, columns: int, target: Target, **wanted: Any) -> str:
    """The text of the E0809 with which the schedule is refused; empty if it is accepted."""
    try:
        choose(source("bf16", rows, columns), target, Overrides(copy="tma", **wanted))
    except CompileError as error:
        (found,) = error.diagnostics
        assert found.code == "E0809" and found.hint
        return found.message
    return ""


@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_blocks_of_an_sm_have_tensor_memory_for_all_of_them(columns: int, persistent: bool, blocks: int) -> None:
    wanted: dict[str, Any] = {"copy": "tma", "stages": 2, "persistent": persistent}
    alone = prepare(source("bf16", 128, columns), SM_100A, Overrides(**wanted))
    (type_,) = [op.result.type for op in alone.body.walk() if isinstance(op, TmemReserve)]
    assert isinstance(type_, TmemSpaceType)
    reported = refusal(128, columns, SM_100A, stages=2, persistent=persistent, blocks=blocks)
    assert ("columns of tensor memory" in reported) == (blocks * type_.columns > TMEM_COLUMNS), reported
    assert bool(reported) == (blocks * type_.columns > TMEM_COLUMNS)


@pytest.mark.parametrize("target", [SM_90A, SM_100A], ids=str)
def test_consumers_that_cannot_share_a_product_are_refused_as_an_override(target: Target) -> None:
    assert "3 consumers" in refusal(128, 64, target, consumers=3)
    assert not refusal(128, 64, target, consumers=2)
