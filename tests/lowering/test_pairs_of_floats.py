"""Products of 16-bit floats, and sums that use them, are computed two at a time, with the bits that the interpreter has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from block_machine import launch as on_block_machine
from numpy.typing import NDArray

from tests.clean import check_clean
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_80, SM_90A, Target

DTYPES: Final = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
NUMBERS: Final = 1024
KERNEL: Final = """
import tilec as tl


@tl.kernel
def k(a: tl.In[tl.{dtype}, {n}], b: tl.In[tl.{dtype}, {n}], c: tl.In[tl.{dtype}, {n}], out: tl.Out[tl.{dtype}, {n}]):
    tl.grid(1)
    x, y, z = tl.load(a, 0, shape={n}), tl.load(b, 0, shape={n}), tl.load(c, 0, shape={n})
    tl.store(out, 0, {expression})
"""


class Made:
    """A kernel of one block, compiled for a target."""

    def __init__(self, folder: Path, dtype: str, expression: str, target: Target, number: int = NUMBERS) -> None:
        path = folder / "k.py"
        path.write_text('"""Elements."""\n' + KERNEL.format(dtype=dtype, expression=expression, n=number))
        self.function, self.scheduled = (load_kernel(path, {}, root=folder) for _ in range(2))
        prove(self.function)
        prove(self.scheduled)
        self.target, self.schedule = target, choose(self.function, target, Overrides(warps=1))
        self.scheduled = prepare(self.scheduled, target, Overrides(warps=1))
        self.lowered = lower(self.scheduled, target)
        self.ptx = to_ptx(self.lowered.mlir, target)

    def emulated(self, arrays: dict[str, Any]) -> Any:
        described = manifest(self.scheduled, self.lowered, self.target, self.schedule)
        report = launch.emulate(self.ptx, described, arrays, {})
        check_clean(report)
        return report.tensors["out"]

    def interpreted(self, arrays: dict[str, Any]) -> Any:
        after = {name: array.copy() for name, array in arrays.items()}
        run(self.function, after, {})
        return after["out"]


def all_kinds(dtype: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Three tiles of random bits: subnormal and large numbers, zeros of both signs, infinities, NaN, and exact ties."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 16, (3, NUMBERS), dtype=np.uint16)
    bits[:, : NUMBERS // 2] = random.integers(0x3800, 0x4200, (3, NUMBERS // 2), dtype=np.uint16)  # numbers of one size
    bits[:, :64] &= 0x800F  # the smallest subnormal ones
    names = dict(zip("abc", bits.view(DTYPES[dtype]), strict=True))
    return names | {"out": np.zeros(NUMBERS, DTYPES[dtype])}


def same(found: Any, right: Any) -> bool:
    """Whether bits are equal, those of NaN apart."""
    nan = np.isnan(right.astype(np.float32))
    return bool(np.array_equal(nan, np.isnan(found.astype(np.float32)))) and np.array_equal(
        found.view(np.uint16)[~nan], right.view(np.uint16)[~nan]
    )


@pytest.mark.parametrize("target", [SM_80, *MAIN_TARGETS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expression", ["x * y", "x * 1.0 + y", "x * 1.0 - y", "x - y * 1.0"])
def test_pairs_have_the_bits_of_one_element_alone(expression: str, dtype: str, target: Target, tmp_path: Path) -> None:
    kernel, arrays = Made(tmp_path, dtype, expression, target), all_kinds(dtype)
    found = kernel.interpreted(arrays)
    assert same(kernel.emulated(arrays), found)
    with np.errstate(all="ignore"):
        wide = {name: arrays[name].astype(np.float64) for name in "abc"}
        function = np.add if "+" in expression else np.subtract if "-" in expression else np.multiply
        exact = function(wide["a"], wide["b"]).astype(DTYPES[dtype])
    assert same(found, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_block_machine_agrees(dtype: str, tmp_path: Path) -> None:
    kernel, arrays = Made(tmp_path, dtype, "x * y - z + x", SM_90A), all_kinds(dtype)
    arrays = {name: np.where(np.isfinite(one.astype(np.float32)), one, 1).astype(one.dtype) for name, one in arrays.items()}
    after = {name: one.copy() for name, one in arrays.items()}
    with np.errstate(all="ignore"):
        on_block_machine(kernel.function, kernel.lowered, after, {})
    assert same(after["out"], kernel.interpreted(arrays))


@pytest.mark.parametrize(
    ("target", "dtype"), [(SM_80, "f16"), *((target, dtype) for target in MAIN_TARGETS for dtype in DTYPES)]
)
def test_an_instruction_computes_two(target: Target, dtype: str, tmp_path: Path) -> None:
    text = Made(tmp_path, dtype, "x * y", target).ptx
    assert re.findall(rf"\b(?:mul|fma)(?:\.rn)?\.{dtype}x2\b", text)
    assert not re.search(rf"\b(?:add|sub|mul|fma)(?:\.rn)?\.(?:{dtype}|f32)\b", text)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_and_the_sum_that_uses_it_are_one_instruction_for_two(dtype: str, tmp_path: Path) -> None:
    text = Made(tmp_path, dtype, "x * y + z", SM_90A).ptx
    assert len(re.findall(rf"\bfma\.rn\.{dtype}x2\b", text)) == NUMBERS // 32 // 2
    assert not re.search(rf"\b(?:add|mul)(?:\.rn)?\.{dtype}", text)


def test_a_thread_with_an_odd_number_of_elements_computes_each_alone(tmp_path: Path) -> None:
    kernel = Made(tmp_path, "bf16", "x * y", SM_90A, 65)
    arrays = {name: array[480:545].copy() for name, array in all_kinds("bf16").items()}
    assert "bf16x2" not in kernel.ptx
    assert same(kernel.emulated(arrays), kernel.interpreted(arrays))
