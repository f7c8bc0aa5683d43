"""The lowered code of every shipped kernel, run thread by thread, agrees with its reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tests import campaign, shipped
from tests.shipped_launches import SIZES, expected, launch_values, make_arrays
from tilec.ir.core import Function
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.lowering import lower
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

CASES = [(name, target, size) for name, sizes in SIZES.items() for size in sizes for target in (SM_90A, SM_120A)]
PIPELINED = {"matmul", "flash_attention", "decode_attention"}  # with as many stages as fit in shared memory
CASES = [case for case in CASES if case[0] in PIPELINED or case[1] == SM_90A]


def without_tma(name: str, target: Target, size: dict[str, float | str]) -> Function:
    """The kernel without TMA copies, which this machine cannot run; the emulator runs those (`test_tensor_copies.py`)."""
    prepared = shipped.prepared(name, target, size)
    uses_tma = any(isinstance(op, TensorCopy) for op in prepared.body.walk())
    return shipped.prepared_with(shipped.load(name, size), target, Overrides(copy="cp_async")) if uses_tma else prepared


ROUNDINGS = {
    "rotary_decode_attention": 8, "rope_decode_attention": 8, "rotary_decode_attention_c8": 8, "rope_decode_attention_c8": 8,
    "paged_decode_attention": 8, "paged_decode_attention_wide": 8, "paged_decode_attention_c8": 8, "decode_attention_wide": 8,
}  # fmt: skip
"""Tolerance factors. The sums of this kernel are not divided by their weights yet, and queries, keys and weights are rounded in
between."""


def assert_close(found: Array, expected: Array, relative: float) -> None:
    """Asserts equal integers, and floats within the rounding of the kernel's dtype, of sums and of approximate instructions."""
    if found.dtype.kind == "i":
        assert (found == expected).all()
        return
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=relative, atol=relative)


@pytest.mark.parametrize(
    ("name", "target", "size"),
    campaign.one_of_each(CASES, lambda case: shipped.form(case[0])),  # the first size of each form
    ids=[f"{name}-{target}-{size}" for name, target, size in CASES],
)
def test_lowered_code_computes_the_reference(name: str, target: Target, size: dict[str, float | str]) -> None:
    function = shipped.load(name, size)
    env = launch_values(function, size)
    arrays = make_arrays(function, env)
    references = expected(function, {name: array.copy() for name, array in arrays.items()}, env)
    launch(function, lower(without_tma(name, target, size), target), arrays, env)
    for parameter, values in references.items():
        rounding = 2.0**-7 if function.constants.get("E") == "bf16" else 1e-3
        assert_close(arrays[parameter], values, rounding * ROUNDINGS.get(name, 1))


def test_every_shipped_kernel_is_run() -> None:
    assert SIZES.keys() == set(shipped.NAMES)


def run_damaged(name: str, target: Target, size: dict[str, float | str], old: str, new: str) -> None:
    """Runs a kernel whose code has `old` replaced by `new`."""
    lowered = lower(without_tma(name, target, size), target)
    assert old in lowered.mlir
    function = shipped.load(name, size)
    env = launch_values(function, size)
    launch(function, replace(lowered, mlir=lowered.mlir.replace(old, new)), make_arrays(function, env), env)


CUBE: dict[str, float | str] = {"M": 128, "N": 128, "K": 128}
DEEP: dict[str, float | str] = {"M": 16, "N": 24, "K": 648, "BM": 128, "BN": 192}
PROXY = 'llvm.inline_asm has_side_effects "fence.proxy.async.shared::cta;", "~{memory}" : () -> ()\n'


@pytest.mark.parametrize(
    ("name", "target", "size", "old", "new", "message"),
    [
        ("rms_norm", SM_90A, {"T": 1, "eps": 0.0}, "nvvm.barrier\n", "", "without a barrier"),
        ("matmul", SM_120A, CUBE, "nvvm.barrier\n", "", "a read without a barrier"),
        ("matmul", SM_120A, CUBE, "nvvm.cp.async.wait.group 1", "nvvm.cp.async.wait.group 9", "on their way"),
        ("matmul", SM_90A, CUBE, "nvvm.barrier\n", "", "a product without a barrier"),
        ("matmul", SM_90A, CUBE, PROXY, "", "a product without a fence"),
        ("matmul", SM_90A, CUBE, "nvvm.cp.async.wait.group 4", "nvvm.cp.async.wait.group 9", "on their way"),
        ("matmul", SM_90A, DEEP, "wgmma.wait_group.sync.aligned 1", "wgmma.wait_group.sync.aligned 9", "on their way"),
        ("matmul", SM_90A, CUBE, "wgmma.fence.sync.aligned;", "", "wgmma.mma_async"),
        ("add", SM_90A, {"N": 5}, "griddepcontrol.wait", "griddepcontrol.other", "a read before earlier kernels are complete"),
        ("add", SM_90A, {"N": 5}, '"ult"', '"uge"', "an access outside of its tensor"),
        ("add", SM_90A, {"N": 2048}, "alignment = 16", "alignment = 32", "a misaligned access"),
    ],
)
def test_the_machine_detects_damaged_code(
    name: str, target: Target, size: dict[str, float | str], old: str, new: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        run_damaged(name, target, size, old, new)


def test_an_accumulator_is_not_used_before_its_product_is_done() -> None:
    """The wait is moved to the next barrier. On this machine the last product has not started by then."""
    lowered = lower(without_tma("matmul", SM_90A, CUBE), SM_90A)
    function = shipped.load("matmul", CUBE)
    env = launch_values(function, CUBE)
    arrays = make_arrays(function, env)
    unfinished = lowered.mlir.replace("wgmma.wait_group.sync.aligned 0", "wgmma.wait_group.sync.aligned 1")
    launch(function, replace(lowered, mlir=unfinished), arrays, env)
    assert np.isnan(arrays["out"].astype(np.float32)).any()
