"""Edge launches satisfy their contracts and have partial tiles, and their contents satisfy every value check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.audit import samples
from tests.campaign import chosen
from tests.shipped import LIKE, NAMES
from tilec.artifact.records import TensorSpec, ValueCheck
from tilec.audit.contract import contract_of
from tilec.audit.launches import BLOCKS, Case, contents, edge_launches
from tilec.audit.work import LAUNCHES
from tilec.ir.expr import const, sym
from tilec.ir.text.parser import parse_function
from tilec.ir.types import MAX_DIM

TOO_LARGE = {
    "experts_silu_mul_fp8", "experts_matmul_silu_mul_fp8", "experts_matmul_silu_mul_few_fp8",
    "experts_matmul_silu_mul_few_int4",
}  # fmt: skip
"""Kernels of which no launch was found that has so few blocks and elements as are emulated: eight experts of a token, each with
whole blocks of scales, are more."""


def launches(name: str, limit: int = 5, reasons: list[str] | None = None) -> list[Case]:
    manifest, function = samples.manifest(name), parse_function(samples.text(name))
    return edge_launches(manifest, function, contract_of(manifest, function), limit, reasons)


@pytest.mark.parametrize("name", chosen(NAMES, lambda name: name not in LIKE))
def test_launches_are_within_the_contract(name: str) -> None:
    manifest = samples.manifest(name)
    reasons: list[str] = []
    cases = launches(name, reasons=reasons)
    if name in TOO_LARGE:
        assert not cases
        assert reasons and all("exceed the emulated limits" in reason for reason in reasons), reasons
        return
    assert cases
    assert len({tuple(sorted(case.values.items())) for case in cases}) == len(cases)
    for case in cases:
        for check in manifest.launch_checks:
            assert check.condition.evaluate(case.values), (case, check.text)
        grid = [axis.evaluate(case.values) for axis in manifest.grid]
        assert min(grid) >= 1
        assert int(np.prod(grid)) <= BLOCKS
        assert all(0 <= dim.evaluate(case.values) <= MAX_DIM for spec in manifest.tensors for dim in spec.dims)
        arrays = contents(manifest, case.values, 0)
        assert arrays is not None
        for check in manifest.value_checks:
            array = arrays[check.tensor]
            assert array.min() >= check.low.evaluate(case.values)
            assert array.max() < check.high.evaluate(case.values)
            assert not check.distinct or len(np.unique(array)) == array.size


def test_edges_are_passed() -> None:
    sizes = [case.values["N"] for case in launches("add")]
    assert min(sizes) == 1
    assert any(size > 2048 and size % 2048 for size in sizes)
    rows = [case.values for case in launches("matmul")]
    assert any(values["M"] % 64 and values["M"] > 64 for values in rows)
    assert any(values["N"] > 64 for values in rows)


@pytest.mark.parametrize(
    ("name", "symbol", "cut"), [("matmul", "K", 64), ("flash_attention", "S", 64), ("decode_attention", "S", 32)]
)
def test_loops_have_five_iterations_and_six(name: str, symbol: str, cut: int) -> None:
    """Default launches make a ring wrap, and its parity flip, after an odd and an even number of iterations."""
    assert {5, 6} <= {-(-case.values[symbol] // cut) for case in launches(name, LAUNCHES)}


def test_loops_wrap_around_the_longest_ring() -> None:
    """A ring of ten stages wraps in eleven iterations; each split of K gets that many."""
    manifest, function = samples.manifest("matmul_split"), parse_function(samples.text("matmul_split"))
    manifest = replace(manifest, schedule={"pipelines": [{"copy": "tma", "mma": "wgmma", "stages": 10}]})
    cases = edge_launches(manifest, function, contract_of(manifest, function), LAUNCHES)
    parts = int(manifest.constants["S"]) * int(manifest.constants["BK"])
    assert {11, 12} <= {-(-case.values["K"] // parts) for case in cases}


def test_contents_are_the_same_twice() -> None:
    manifest = samples.manifest("kv_update")
    values = {"T": 3, "S": 5}
    first, second = contents(manifest, values, 0), contents(manifest, values, 0)
    assert first is not None and second is not None
    assert all(np.array_equal(first[name].view(np.uint8), second[name].view(np.uint8)) for name in first)
    assert contents(manifest, {"T": 6, "S": 5}, 0) is None  # six distinct slots out of five


@pytest.mark.parametrize("room", [4, 5, 8, 100])
def test_contents_of_rows_differ(room: int) -> None:
    """Elements of one row; those of others may be the same, and are where there are few."""
    check = ValueCheck("ids", const(0), const(room), False, distinct_in_rows=True)
    spec = TensorSpec("ids", "in", "i32", (sym("T"), const(4)), None, 16)
    rows = replace(samples.manifest("add"), tensors=(spec,), value_checks=(check,))
    for seed in range(5):
        arrays = contents(rows, {"T": 6}, seed)
        assert arrays is not None
        assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < room for row in arrays["ids"].tolist())
    assert contents(replace(rows, value_checks=(replace(check, high=const(3)),)), {"T": 6}, 0) is None
