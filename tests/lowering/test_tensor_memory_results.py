"""Products with accumulators in tensor memory: bit-identical to the interpreter at odd sizes, in several orders of threads, and
without a fault; and what their schedules contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import campaign, shipped
from tests.clean import check_clean
from tests.programs.machines import manifest
from tests.tensor_products import emulated, made, source
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.ir.ops.sync_ops import Ring, Roles
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemMma, TmemReserve
from tilec.ir.types import TmemSpaceType
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A

ONE, PERSISTENT = {"stages": 2}, {"stages": 2, "persistent": True}
BY_TMA = {"stages": 3, "persistent": True, "store": "tma"}
CASES: list[Any] = [
    (("bf16", 64, 64), ONE, (72, 72, 392)),
    (("bf16", 64, 64), PERSISTENT, (200, 136, 200)),
    (("bf16", 128, 48), ONE, (1, 8, 8)),
    (("f16", 128, 64), BY_TMA, (264, 200, 136)),
    (("bf16", 128, 160), BY_TMA, (136, 328, 72)),
    (("bf16", 128, 192), ONE | {"store": "tma"}, (129, 200, 64)),
    (("bf16", 64, 256), BY_TMA, (63, 520, 8)),
    (("f16", 256, 128), ONE, (264, 136, 72)),
    (("f16", 256, 128), PERSISTENT, (520, 264, 64)),
    (("bf16", 128, 256), BY_TMA, (257, 520, 136)),
    (("f16", 512, 64), ONE, (513, 72, 72)),
]


@pytest.mark.parametrize(
    ("sizes", "wanted", "extents", "seed"),
    campaign.chosen(
        [(*case, seed) for case in CASES for seed in range(4)],
        lambda case: case[:3] in CASES[:5] and case[3] == CASES.index(case[:3]) % 4,
    ),
)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, wanted: Any, extents: Any, seed: int) -> None:
    kernel = made(*sizes, SM_100A, **wanted)
    assert any(isinstance(op, TmemMma) for op in kernel.prepared.body.walk())
    report, found, expected = emulated(kernel, extents, seed)
    check_clean(report)
    assert (found == expected).all()


def of_later_columns(path: Path) -> Function:
    """The product of all columns of the operands but the first 64: none if there are no more."""
    for name in ("dims.py", "matmul.py"):
        text = (shipped.ROOT / "kernels_src" / name).read_text(encoding="utf-8")
        (path / name).write_text(text.replace("range(tl.cdiv(K, BK))", "range(1, tl.cdiv(K, BK))"), encoding="utf-8")
    constants = {"E": "bf16", "BM": 64, "BN": 64, "BK": 64, "GROUP": 8}
    return load_kernel(path / "matmul.py", constants, root=path)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("depth", [8, 64, 72])
def test_a_loop_without_iterations_stores_zeros(persistent: bool, depth: int, tmp_path: Path) -> None:
    function = of_later_columns(tmp_path)
    wanted = Overrides(copy="tma", stages=2, persistent=persistent)
    lowered = lower(prepare(of_later_columns(tmp_path), SM_100A, wanted), SM_100A)
    random = np.random.default_rng(depth)
    m, n = 136, 72
    a, b = (random.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((m, depth), (n, depth)))
    arrays: dict[str, Any] = {"a": a, "b": b, "out": np.ones((m, n), ml_dtypes.bfloat16)}
    flat = {name: array.reshape(-1).view(np.uint16) for name, array in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, SM_100A), manifest(function, lowered, SM_100A), flat, {"M": m, "N": n, "K": depth})
    check_clean(report)
    run(function, arrays, {})
    assert (report.tensors["out"].view(ml_dtypes.bfloat16).reshape(m, n) == arrays["out"]).all()
    assert bool(arrays["out"].any()) == (depth > 64)


@pytest.mark.parametrize(
    ("tile", "wanted", "stages", "columns", "readers"),
    [
        ((64, 64), ONE, 1, 64, 8),
        ((64, 64), PERSISTENT, 2, 128, 8),
        ((128, 48), ONE, 1, 64, 4),
        ((128, 160), PERSISTENT, 2, 512, 8),
        ((128, 256), {"stages": 2, "persistent": True}, 2, 512, 8),
        ((256, 192), PERSISTENT, 1, 512, 8),
    ],
)
def test_a_persistent_block_has_two_accumulators_if_they_fit(
    tile: tuple[int, int], wanted: Any, stages: int, columns: int, readers: int
) -> None:
    function = prepare(source("bf16", *tile), SM_100A, Overrides(copy="tma", **wanted))
    (alloc,) = (op for op in function.body.ops if isinstance(op, TmemAlloc))
    (space,) = (op.result.type for op in function.body.ops if isinstance(op, TmemReserve))
    assert isinstance(space, TmemSpaceType) and isinstance(alloc.ring.owner, Ring)
    assert (alloc.result.tmem.stages, space.columns, alloc.ring.owner.readers) == (stages, columns, readers)
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    assert (roles.names, roles.alone) == (("consumer", "producer", "multiplier"), (False, True, True))
    assert roles.warps == (readers, 1, 1)
    assert [isinstance(op, TmemMma) for op in function.body.walk() if isinstance(op, GroupProduct)] == [True]
