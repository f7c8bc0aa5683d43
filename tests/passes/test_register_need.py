"""How many registers tiles need: by lifetimes, and what the choice of warps makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes.schedule import choose
from tilec.passes.schedule.passes import LAYOUT, run_on_copy, through
from tilec.passes.schedule.register_need import FITTING_ONCE, FITTING_REGISTERS, registers
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

HEAD = '''"""Products."""
import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, load, mma, requires, store, sum, zeros


class K(Dim):
    """depth"""


@tilec.kernel
'''
PRODUCT = """def product(a: In[bf16, 128, K], b: In[bf16, 128, K], out: Out[f32, 128, 128]):
    requires(K % 8 == 0)
    grid(1)
    acc = zeros((128, 128), f32)
    for k in range(cdiv(K, 64)):
        x, y = load(a, (0, k), shape=(128, 64), pad=0), load(b, (0, k), shape=(128, 64), pad=0)
        acc = SUMS
    store(out, (0, 0), acc)
"""
PLAIN, FRESH = "mma(x, y.T, acc)", "acc + mma(x, y.T, zeros((128, 128), f32)) * 0.5"
SCALED = """def scaled(x: In[f32, 4096], y: In[f32, 4096], out: Out[f32, 4096]):
    grid(1)
    v = load(x, 0, shape=4096)
    total = zeros((4096,), f32)
    for k in range(3):
        total = total + load(y, 0, shape=4096) * TERM
    store(out, 0, total)
"""


def made(folder: Path, text: str) -> Function:
    name = text[4 : text.index("(")]
    path = folder / f"{name}.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def needed(function: Function, warps: int) -> int:
    return registers(run_on_copy(through(LAYOUT), function, choose(function, SM_90A, Overrides(warps=warps)), SM_90A))


def test_a_tile_that_a_loop_uses_takes_registers_in_all_its_iterations(tmp_path: Path) -> None:
    """With 4 warps, a tile of 4096 f32 has 32 registers of a thread."""
    assert needed(made(tmp_path, SCALED.replace("TERM", "2.0")), 4) == 2 * 32
    assert needed(made(tmp_path, SCALED.replace("TERM", "v")), 4) == 3 * 32


def test_sums_of_an_iteration_need_as_many_registers_as_those_that_a_loop_carries(tmp_path: Path) -> None:
    plain, fresh = (made(tmp_path, PRODUCT.replace("SUMS", sums)) for sums in (PLAIN, FRESH))
    assert needed(fresh, 4) >= needed(plain, 4) + 128
    assert needed(fresh, 8) < needed(fresh, 4)


@pytest.mark.parametrize(("sums", "wanted", "warps"), [
    (PLAIN, Overrides(), 4), (FRESH, Overrides(copy="cp_async"), 8), (FRESH, Overrides(warps=4), 4),
    (FRESH, Overrides(blocks=1), 4),
])  # fmt: skip
def test_more_warps_are_chosen_where_registers_would_spill(
    tmp_path: Path, sums: str, wanted: Overrides, warps: int
) -> None:  # fmt: skip
    """What the author says about warps or blocks stands."""
    assert choose(made(tmp_path, PRODUCT.replace("SUMS", sums)), SM_90A, wanted).warps == warps


ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "ci" / "bench" / "kernels" / "plain"
NEAREST = {"E": "bf16", "K": 256, "D": 64, "BLOCK": 64}


@pytest.mark.parametrize(("points", "warps"), [(64, 4), (128, 8)])
def test_a_product_in_no_loop_has_room_for_more(points: int, warps: int) -> None:
    """That of 64 rows counts 304 on 4 warps, and ptxas fits it; twice as many rows take more warps."""
    path = KERNELS / "centroid.py"
    function = load_kernel(path, NEAREST | {"BLOCK": points}, root=ROOT)
    assert choose(function, SM_90A).warps == warps
    assert (needed(load_kernel(path, NEAREST | {"BLOCK": points}, root=ROOT), 4) > FITTING_ONCE) == (warps == 8)


@pytest.mark.parametrize(("requires", "warps"), [("", 8), ("    tl.requires(K % 16 == 0, N % 8 == 0)\n", 4)])
def test_operands_of_single_warps_in_stages_need_less_than_those_in_registers(
    tmp_path: Path, requires: str, warps: int
) -> None:  # fmt: skip
    """Both count more than 248 on 4 warps: with rows that begin at whole vectors, threads copy operands to stages."""
    text = (KERNELS / "int8_gemm.py").read_text().replace("    tl.grid(", f"{requires}    tl.grid(")
    path = tmp_path / "int8_gemm.py"
    path.write_text(text)
    function = load_kernel(path, {"E": "bf16", "BM": 128, "BN": 128, "BK": 64}, root=tmp_path)
    assert needed(function, 4) > FITTING_REGISTERS
    assert choose(function, SM_90A).warps == warps
