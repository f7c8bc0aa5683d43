"""Kernels whose code once read stale data, lacked a barrier, masked by a truncated offset or could not be built."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tests.campaign import first
from tests.files import ROOT
from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import AsyncCopy
from tilec.ir.ops.sync_ops import Barrier, Drain
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import barrier_check
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_120A, Target

FOLDER = ROOT / "tests" / "soundness" / "corpus"
FILES = {
    "far_offset": "m5_i64",
    "initialized_sum": "h5_shared",
    "moving_window": "m2_window_dyn",
    "scratch_product": "m1_scratch",
    "update_ahead": "m1_staged",
    "wrapped_offset": "l12_unsafe",
}
"""Files of kernels there."""
PRODUCTS = ("far_offset", "initialized_sum", "scratch_product", "update_ahead")
RANDOM = np.random.default_rng(9)


def proven(name: str) -> Function:
    function = load_kernel(FOLDER / f"{FILES[name]}.py", {}, root=FOLDER)
    prove(function)
    return function


def run(name: str, target: Target, arrays: dict[str, Array], scalars: dict[str, float]) -> None:
    """Threads copy what feeds products: the machine of blocks has no tensor maps."""
    wanted = Overrides(copy="cp_async") if name in PRODUCTS else Overrides()
    launch(proven(name), lower(prepare(proven(name), target, wanted), target), arrays, scalars)


def small(*shape: int, dtype: type = ml_dtypes.bfloat16) -> Array:
    """Integers small enough that sums of products are exact."""
    return RANDOM.integers(-2, 3, shape).astype(dtype)


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
@pytest.mark.parametrize("name", FILES)
def test_every_kernel_becomes_ptx(name: str, target: Target) -> None:
    assert ".visible .entry" in to_ptx(lower(prepare(proven(name), target), target).mlir, target)


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
def test_a_tile_that_the_previous_iteration_wrote_is_not_prefetched(target: Target) -> None:
    iterations, a, w = 3, small(1, 64, 256), small(256, 64)
    expected, total = a.copy(), np.zeros((64, 64), np.float32)
    for k in range(iterations):
        total = total + expected[0, :, 64 * k : 64 * k + 64].astype(np.float32) @ w[64 * k : 64 * k + 64].astype(np.float32)
        expected[0, :, 64 * k + 64 : 64 * k + 128] = total.astype(ml_dtypes.bfloat16)
    out = np.full((1, 64, 64), 7, np.float32)
    run("update_ahead", target, {"a": a, "w": w, "out": out}, {"T": 1, "KB": 256, "turns": iterations})
    assert (a == expected).all() and (out[0] == total).all()


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
def test_a_tile_that_this_iteration_wrote_is_not_prefetched(target: Target) -> None:
    iterations, x, w = 3, small(2, 64, 192), small(192, 64)
    scratch, out = np.full_like(x, 99), np.full((2, 64, 64), 7, np.float32)
    run("scratch_product", target, {"x": x, "w": w, "s": scratch, "out": out}, {"T": 2, "KB": 192, "turns": iterations})
    assert (out == 2 * x.astype(np.float32) @ w.astype(np.float32)).all()


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_threads_synchronize_between_the_iterations_of_a_loop(turns: int) -> None:
    x, s = small(1, 1024, dtype=np.float32), np.zeros((1, 2048), np.float32)
    out = np.full((1, 1024), 7, np.float32)
    run("moving_window", SM_90A, {"x": x, "s": s, "out": out}, {"N": 1, "S": 2048, "turns": turns})
    assert (out == turns * x).all()
    for iteration in range(turns):
        assert (s[0, 128 * iteration : 128 * iteration + 128] == x[0, :128]).all()


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
def test_a_row_past_four_billion_is_out_of_bounds(target: Target) -> None:
    x, w, out = small(80, 128), small(128, 64), np.full((2, 64, 64), 7, np.float32)
    run("far_offset", target, {"x": x, "w": w, "out": out}, {"M": 80, "KB": 128})
    assert (out[0] == x[:64].astype(np.float32) @ w.astype(np.float32)).all() and (out[1] == 0).all()


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
def test_a_product_may_be_added_to_a_loaded_tile(target: Target) -> None:
    a, w, c = small(64, 192), small(192, 128), small(64, 128, dtype=np.float32)
    out = np.full((64, 128), 7, np.float32)
    lowered = lower(prepare(proven("initialized_sum"), target), target)
    assert lowered.dynamic_shared_bytes <= target.max_shared_bytes
    run("initialized_sum", target, {"a": a, "w": w, "c": c, "out": out}, {"KD": 192})
    assert (out == a.astype(np.float32) @ w.astype(np.float32) + c).all()


@pytest.mark.parametrize("n", [0, 3, 16383, 16384, 20000, 32767, 65535])
def test_a_mask_in_an_unsafe_block_stays(n: int) -> None:
    out = np.zeros(4096, np.float32)
    product = (n % 65536) * 65536 * 2
    offset = ((product + 2**31) % 2**32 - 2**31) // 1048576
    run("wrapped_offset", SM_90A, {"out": out}, {"n": n})
    expected = np.zeros(4096, np.float32)
    expected[[index for index in range(offset, offset + 4) if 0 <= index < 4096]] = 1
    assert (out == expected).all()


@pytest.mark.parametrize("name", ["moving_window", "update_ahead"])
def test_the_independent_checker_misses_no_barrier(name: str) -> None:
    """Every barrier that the pass inserts here is needed, and the independent checker, which shares no path logic with it,
    agrees. Of one stage: the barrier after which a ring's are known is one that `ring_check` asks for."""
    one_stage = Overrides(stages=1) if name in PRODUCTS else Overrides()
    count = sum(isinstance(op, Barrier) for op in prepare(proven(name), SM_90A, one_stage).body.walk())
    assert count
    for number in range(count):
        function = prepare(proven(name), SM_90A, one_stage)
        barrier_check.check(function)
        barrier = [op for op in function.body.walk() if isinstance(op, Barrier)][number]
        containing_block = next(block for block in blocks(function) if barrier in block)
        containing_block.remove(barrier)
        with pytest.raises(VerifyError, match="no barrier of the block's threads"):
            barrier_check.check(function)


def prefetching_kernel() -> tuple[Function, Op]:
    """A kernel that prefetches from a tensor and stores to it after the loop; and that store."""
    function = prepare(proven("far_offset"), SM_120A)
    copy = next(op for op in function.body.walk() if isinstance(op, AsyncCopy))
    store = next(op for op in function.body.walk() if op.opcode == "store")
    store.operands[0] = copy.source
    return function, store


def test_a_write_after_prefetches_needs_their_completion_and_a_barrier() -> None:
    function, store = prefetching_kernel()
    barrier_check.check(function)
    ops = function.body.ops
    end = next(index for index, op in enumerate(ops) if isinstance(op, Drain))
    for index in (end, end + 1):
        assert isinstance(ops[index], (Drain, Barrier))
        dropped = ops.pop(index)
        others = [op for op in ops[end : ops.index(store)] if isinstance(op, Barrier)] if isinstance(dropped, Barrier) else []
        for other in others:
            ops.remove(other)
        with pytest.raises(VerifyError, match="may still read it"):
            barrier_check.check(function)
        function, store = prefetching_kernel()
        ops = function.body.ops


@pytest.mark.parametrize("where", ["before the copies", "in their loop"])
def test_a_prefetch_before_a_write_is_refused(where: str) -> None:
    function, store = prefetching_kernel()
    containing_block = next(block for block in blocks(function) if store in block)
    containing_block.remove(store)
    loops = (op for op in function.body.ops if isinstance(op, For))
    loop = next(candidate for candidate in loops if any(isinstance(inner, AsyncCopy) for inner in candidate.regions[0].walk()))
    (loop.regions[0] if where == "in their loop" else function.body).ops.insert(0, store)
    with pytest.raises(VerifyError, match="started ahead of writes"):
        barrier_check.check(function)


def blocks(function: Function) -> list[list[object]]:
    return [function.body.ops, *(region.ops for op in function.body.walk() for region in op.regions)]  # pyright: ignore
