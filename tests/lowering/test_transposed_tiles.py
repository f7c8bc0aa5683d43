"""Transposed tiles whose rows are not whole vectors: right elements, few sectors of memory, all banks of shared memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES

from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.coalescing import SECTOR, pieces
from tilec.ir.layouts.layout import Digit
from tilec.ir.ops import Load, Store
from tilec.ir.ops.staging_ops import ScratchLoad, ScratchStore
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TEXT = '''"""Transposes of matrices."""

import tilec as tl


class B(tl.Dim):
    """matrices"""


class H(tl.Dim):
    """rows"""


class W(tl.Dim):
    """columns"""


@tl.kernel
def k(x: tl.In[tl.{dtype}, B, H, W], out: tl.Out[tl.{dtype}, B, W, H]):
    {requires}
    tl.grid(tl.cdiv(H, {rows}), tl.cdiv(W, {columns}), B)
    i, j, b = tl.bid(0), tl.bid(1), tl.bid(2)
    v = tl.load(x, (b, i, j), shape=(1, {rows}, {columns}), pad=0)
    tl.store(out, (b, j, i), tl.permute(v, (0, 2, 1)), mask=True)
'''


def transposes(folder: Path, dtype: str, rows: int, columns: int, requires: str = "pass") -> Function:
    path = folder / "k.py"
    path.write_text(TEXT.format(dtype=dtype, rows=rows, columns=columns, requires=requires), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (32, 128), (128, 16), (16, 32)])
@pytest.mark.parametrize("dtype", ["f16", "f32", "i8", "i64"])
def test_results_agree_with_the_interpreter(dtype: str, rows: int, columns: int, tmp_path: Path) -> None:
    prove(transposes(tmp_path, dtype, rows, columns))
    function = prepare(transposes(tmp_path, dtype, rows, columns), SM_90A)
    lowered, random = lower(function, SM_90A), np.random.default_rng(rows)
    for height, width in ((rows, columns), (rows + 3, columns - 5)):
        x = random.integers(-90, 90, (2, height, width)).astype(TYPES[dtype])
        emulated, executed = ({"x": x, "out": np.zeros((2, width, height), x.dtype)} for _ in range(2))
        run(transposes(tmp_path, dtype, rows, columns), emulated, {})
        launch(function, lowered, executed, {"B": 2, "H": height, "W": width})
        np.testing.assert_array_equal(emulated["out"], executed["out"])


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8"])
def test_accesses_touch_the_fewest_sectors(dtype: str, tmp_path: Path) -> None:
    body = prepare(transposes(tmp_path, dtype, 64, 64), SM_90A).body
    moved = [(op.result if isinstance(op, Load) else op.tile, op.vector) for op in body.walk() if isinstance(op, Load | Store)]
    assert len(moved) == 4
    for value, vector in moved:
        size, layout = value.tile.dtype.bytes, value.layout
        assert layout is not None
        assert pieces(layout, size, vector // size, SECTOR) * SECTOR == layout.num_registers * 32 * size


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8"])
def test_a_warp_takes_no_bank_twice(dtype: str, tmp_path: Path) -> None:
    """Lanes that need different words need different banks, in the store and in the load of a conversion."""
    body = prepare(transposes(tmp_path, dtype, 64, 64), SM_90A).body
    passed = [op for op in body.walk() if isinstance(op, ScratchStore | ScratchLoad)]
    assert passed
    for op in passed:
        value = op.result if isinstance(op, ScratchLoad) else op.operands[1]
        assert value.layout is not None
        positions = [value.layout.coordinates(0, lane, 0) for lane in range(32)]
        words = {sum(map(int.__mul__, position, op.steps)) * value.tile.dtype.bytes // 4 for position in positions}
        assert len({word % 32 for word in words}) == len(words)


def test_rows_of_whole_vectors_keep_them(tmp_path: Path) -> None:
    aligned = "tl.requires(H % 8 == 0)\n    tl.requires(W % 8 == 0)"
    prove(transposes(tmp_path, "f16", 64, 64, aligned))
    body = prepare(transposes(tmp_path, "f16", 64, 64, aligned), SM_90A, Overrides(warps=4)).body
    loads = [op for op in body.walk() if isinstance(op, Load)]
    for load in loads:
        layout = load.result.layout
        assert load.vector == 16 and layout is not None and layout.registers[0] == Digit(8, 2, 1)
    assert loads
