"""Operands computed in registers: the scratch for their layout conversion counts toward the shared-memory budget that limits
stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

SOURCE = '''
import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, mma, requires, store, zeros


class E(Element):
    """bf16"""


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


class K(Dim):
    """inputs"""


@tilec.kernel
def held(a: In[E, M, K], b: In[E, N, K], out: Out[E, M, N], *, E: Const, BM: Const, BN: Const, BK: Const):
    """`(2 * a) @ b.T`."""
    requires(K % 8 == 0 and N % 8 == 0)
    grid(cdiv(M, BM), cdiv(N, BN))
    acc = zeros((BM, BN), f32)
    for k in range(cdiv(K, BK)):
        x = load(a, (bid(0), k), shape=(BM, BK), pad=0)
        y = load(b, (bid(1), k), shape=(BN, BK), pad=0)
        acc = mma(x * 2, y.T, acc)
    store(out, (bid(0), bid(1)), astype(acc, E), mask=True)
'''


@pytest.mark.parametrize(
    ("target", "tile"), [(SM_90A, (256, 64, 256)), (SM_120A, (128, 192, 256)), (SM_120A, (256, 64, 128))], ids=str
)
def test_a_register_operand_and_its_stages_fit(tmp_path: Path, target: Target, tile: tuple[int, int, int]) -> None:
    path = tmp_path / "kernels_src" / "held.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    rows, columns, depth = tile
    function = load_kernel(path, {"E": "bf16", "BM": rows, "BN": columns, "BK": depth}, root=tmp_path)
    assert lower(prepare(function, target, Overrides(warps=4)), target).dynamic_shared_bytes <= target.max_shared_bytes
