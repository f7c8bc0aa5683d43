"""Kernels without a schedule of their own: which get a producer, so that warpgroups make their products, and which do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files import ROOT
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.fed_by_default import has_looped_product
from tilec.target.families import TMA
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A

PLAIN = ROOT / "ci/bench/kernels/plain"
FED: dict[str, dict[str, Any]] = {
    "int4_gemm": {"BM": 64, "BN": 64},
    "bias_attention": {"D": 64, "BM": 64, "BN": 64},
}
AS_BEFORE: dict[str, tuple[str, dict[str, Any]]] = {
    "groups of four heads are no tile of a warpgroup": ("gqa_decode", {"E": "bf16", "G": 4, "D": 128, "BLOCK": 64}),
    "threads feed the products of warpgroups": ("gemm_gelu", {"E": "bf16", "BM": 128, "BN": 128, "BK": 64}),
    "a product of no loop": ("centroid", {"E": "bf16", "K": 256, "D": 64, "BLOCK": 64}),
    "a computed sum between products": ("linear_attention", {"D": 64, "C": 64}),
}


def function(name: str, constants: dict[str, Any]) -> Function:
    path: Path = PLAIN / f"{name}.py"
    return load_kernel(path, constants, root=PLAIN)


@pytest.mark.parametrize("name", FED)
def test_products_of_warpgroups_are_fed(name: str) -> None:
    schedule = choose(function(name, FED[name]), SM_90A)
    assert [(loop.copy, loop.mma) for loop in schedule.pipelines] == [(TMA, "wgmma")]
    scheduled = prepare(function(name, FED[name]), SM_90A, schedule)
    assert not has_looped_product(scheduled.body)
    assert 2 * (shared_bytes(scheduled) + 1024) <= SM_90A.max_shared_bytes + 1024


@pytest.mark.parametrize("name", AS_BEFORE)
def test_others_have_no_producer(name: str) -> None:
    assert all(loop.copy != TMA for loop in choose(function(*AS_BEFORE[name]), SM_90A).pipelines)


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("target", [SM_100A, SM_120A], ids=str)
def test_only_where_warpgroups_multiply_from_registers(name: str, target: Any) -> None:
    assert all(loop.copy != TMA for loop in choose(function(name, FED[name]), target).pipelines)


@pytest.mark.parametrize(
    "wanted", [Overrides(warps=4), Overrides(stages=3), Overrides(mma="mma_sync"), Overrides(blocks=2)], ids=str
)
@pytest.mark.parametrize("name", FED)
def test_a_given_schedule_is_kept(name: str, wanted: Overrides) -> None:
    assert all(loop.copy != TMA for loop in choose(function(name, FED[name]), SM_90A, wanted).pipelines)
