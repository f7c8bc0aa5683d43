"""Where a kernel waits for the kernels before it, and what it asks for ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.ir.core import Access, Effect, Function, Op
from tilec.ir.ops_launch import Prefetch, WaitPrior
from tilec.passes import prepare
from tilec.passes.overlap import PREFETCH_BYTES
from tilec.target import SM_90A

SHIPPED = Path(__file__).resolve().parents[2] / "kernels_src"
MATVEC = {"E": "bf16", "B": 1, "K": 2560, "ROWS": 1, "BLOCK": 512}


def prepared(name: str, **constants: int | str) -> Function:
    return prepare(load_kernel(SHIPPED / f"{name}.py", constants), SM_90A)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("add", {"E": "bf16", "BLOCK": 2048}),
        ("embedding", {"E": "bf16", "H": 1024, "BLOCK": 1024}),
        ("add_rms_norm", {"E": "f16", "H": 1024}),
        ("matmul", {"E": "bf16", "BM": 128, "BN": 128, "BK": 64, "GROUP": 8}),
        ("matvec", MATVEC),
        ("matvec", {**MATVEC, "B": 4, "ROWS": 32, "BLOCK": 128}),
    ],
)
def test_nothing_touches_memory_before_the_wait(name: str, constants: dict[str, int | str]) -> None:
    before: list[Op] = []
    after: list[Op] = []
    seen = after
    function = prepared(name, **constants)
    seen = before
    for op in function.body.ops:
        if isinstance(op, WaitPrior):
            assert seen is before, "waits twice"
            seen = after
        else:
            seen.append(op)
    assert after, "never waits"
    assert all(op.effect is Effect.NONE or isinstance(op, Prefetch) for op in before), before
    assert not any(isinstance(inner, WaitPrior | Prefetch) for op in after for region in op.regions for inner in region.walk())


def test_a_linear_layer_asks_for_the_rows_of_its_own_weight() -> None:
    (ahead,) = [op for op in prepared("matvec", **MATVEC).body.ops if isinstance(op, Prefetch)]
    assert ahead.source.name == "w"
    assert ahead.shape == (1, 2560)


def test_a_block_asks_for_no_more_than_its_share() -> None:
    for depth in (8192, 25600):
        (ahead,) = [op for op in prepared("matvec", **(MATVEC | {"K": depth})).body.ops if isinstance(op, Prefetch)]
        assert ahead.shape == (1, PREFETCH_BYTES // 2)


def test_what_every_block_reads_is_not_asked_for() -> None:
    function = prepared("matvec", **MATVEC)
    assert {op.source.name for op in function.body.walk() if isinstance(op, Prefetch)} == {"w"}
    assert not [op for op in prepared("rms_norm", E="bf16", H=1024).body.walk() if isinstance(op, Prefetch)]


def test_only_inputs_are_asked_for() -> None:
    function = prepared("add_rms_norm", E="bf16", H=1024)
    asked = [op.source for op in function.body.walk() if isinstance(op, Prefetch)]
    assert all(function.parameter_of(tensor).access is Access.IN for tensor in asked)
