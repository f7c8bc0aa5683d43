"""Loops of several products on `wgmma`: which loops qualify, in which order an iteration waits, planted mistakes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests import campaign, shipped
from tests.passes.schedule_mutants import mutants
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.ops import For, Load
from tilec.ir.ops.staging_ops import (
    GroupMma,
    GroupProduct,
    RegisterGroupMma,
    ScratchStore,
    SharedAlloc,
    TensorCopy,
    WaitMma,
)
from tilec.ir.ops.sync_ops import Release, Roles
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A

SOURCE = shipped.ROOT / "tilec" / "kernels" / "source"
WANTED = Overrides(copy="tma", consumers=2, stages=2)
TILES = {"q": {"BM": 128, "BN": 64}, "kv": {"BM": 64, "BN": 128}, "k": {"BM": 64, "BN": 128}}
REFUSED = (
    "acquire dropped", "commit dropped", "wait dropped", "release doubled", "tensor_copy dropped", "proxy_fence dropped",
    "wait doubled", "tensor_copy doubled", "wrong bytes", "wrong readers", "swapped roles", "roles of other warps",
    "loop begins elsewhere", "loop of other turns", "barrier of other threads",
)  # fmt: skip
HEAD = '''"""{doc}"""

from typing import Literal

import tilec as tl


class T(tl.Dim):
    """rows"""


@tl.kernel
def products(a: tl.In[tl.bf16, T, Literal[64]], b: tl.In[tl.bf16, T, Literal[64]], rows: tl.In[tl.f32, T],
             out: tl.Out[tl.bf16, T, Literal[64]]):
    tl.grid(tl.cdiv(T, 128))
    i = tl.bid(0)
    left = tl.load(a, (i, 0), shape=(128, 64), pad=0)
    sums = tl.zeros((128, 64), tl.f32)
    for j in range(tl.cdiv(T, 64)):
        right = tl.load(b, (j, 0), shape=(64, 64), pad=0)
'''
TAIL = "    tl.store(out, (i, 0), tl.astype(sums, tl.bf16), mask=True)\n"
CHAIN = """        s = tl.mma(left, right.T, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(tl.exp2(s), tl.bf16), right, sums)
"""
BODIES = {
    "one tile both ways": CHAIN,
    "numbers of columns": """        more = tl.reshape(tl.load(rows, j, shape=64, pad=0), (1, 64))
        s = tl.mma(left, right.T, tl.broadcast_to(more, (128, 64)))
        sums = tl.mma(tl.astype(tl.exp2(s), tl.bf16), right, sums)
""",
    "three in a row": """        s = tl.mma(left, right.T, tl.zeros((128, 64), tl.f32))
        t = tl.mma(tl.astype(s, tl.bf16), right, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(t, tl.bf16), right, sums)
""",
    "both loaded in the loop": """        other = tl.load(a, (j, 0), shape=(128, 64), pad=0)
        s = tl.mma(other, right.T, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(s, tl.bf16), right, sums)
""",
    "loaded, and rows along N": """        s = tl.mma(left, right, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(s, tl.bf16), right, sums)
""",
    "computed, and rows along K": """        s = tl.mma(left, right.T, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(s, tl.bf16), right.T, sums)
""",
}
REFUSED_BODIES = {
    "a computed right operand": """        s = tl.mma(left, right.T, tl.zeros((128, 64), tl.f32))
        sums = tl.mma(tl.astype(s, tl.bf16), tl.astype(tl.exp2(tl.astype(right, tl.f32)), tl.bf16), sums)
""",
}


def gradient(name: str, size: int = 64) -> Function:
    constants = {"E": "bf16", "D": size, **TILES[name]}
    return load_kernel(SOURCE / f"attention_backward_{name}.py", constants, root=SOURCE)


@cache
def text_of(name: str) -> str:
    return print_function(prepare(gradient(name), SM_90A, WANTED))


def written(folder: Path, body: str) -> Function:
    (folder / "products.py").write_text(HEAD.format(doc="Products.") + body + TAIL)
    return load_kernel(folder / "products.py", {}, root=folder)


def consumer_loop(function: Function) -> list[Op]:
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    (loop,) = (op for op in roles.regions[0].walk() if isinstance(op, For))
    return list(loop.regions[0].walk())


@pytest.mark.parametrize("body", BODIES)
def test_loops_of_products_of_both_kinds_qualify(body: str, tmp_path: Path) -> None:
    ops = consumer_loop(prepare(written(tmp_path, BODIES[body]), SM_90A, WANTED))
    assert sum(isinstance(op, GroupProduct) for op in ops) == BODIES[body].count("tl.mma")
    assert not any(isinstance(op, ScratchStore) for op in ops)


@pytest.mark.parametrize(("body", "rows"), campaign.in_turn(BODIES, (129, 64, 200)))
def test_results_are_those_of_the_interpreter(body: str, rows: int, tmp_path: Path) -> None:
    """Of rows that fill no tile; products add in another order, and round once to bf16."""
    function = written(tmp_path, BODIES[body])
    schedule = choose(function, SM_90A, WANTED)
    lowered = lower(prepare(written(tmp_path, BODIES[body]), SM_90A, schedule), SM_90A)
    random = np.random.default_rng(rows)
    arrays: dict[str, Any] = {name: (random.normal(size=(rows, 64)) / 8).astype(bfloat16) for name in ("a", "b")}
    arrays |= {"rows": random.normal(size=rows).astype(np.float32), "out": np.zeros((rows, 64), bfloat16)}
    flat = {name: array.reshape(-1).view(np.float32 if name == "rows" else np.uint16) for name, array in arrays.items()}
    ptx = to_ptx(lowered.mlir, SM_90A)
    report = emulate(ptx, manifest(function, lowered, SM_90A), {name: one.copy() for name, one in flat.items()}, {"T": rows})
    assert report.clean, report
    run(function, arrays, {})
    found, expected = (
        one.astype(np.float64) for one in (report.tensors["out"].view(bfloat16).reshape(rows, 64), arrays["out"])
    )
    assert np.abs(found - expected).max() <= 2.0**-7 * np.abs(expected).max() > 0
    assert ptx.count("wgmma.mma_async") == 4 * BODIES[body].count("tl.mma")


@pytest.mark.parametrize("body", REFUSED_BODIES)
def test_other_loops_are_refused_by_tma_and_compute_by_mma_sync(body: str, tmp_path: Path) -> None:
    function = written(tmp_path, REFUSED_BODIES[body])
    with pytest.raises(CompileError, match="cannot have this schedule"):
        choose(function, SM_90A, WANTED)
    assert all(loop.mma == "mma_sync" for loop in choose(function, SM_90A).pipelines)


def test_blocks_that_leave_too_few_registers_for_all_sums_are_refused(tmp_path: Path) -> None:
    """Three products of 64 columns take 32 registers each."""
    function = written(tmp_path, BODIES["three in a row"])
    with pytest.raises(CompileError, match="leave 40 registers a thread; products of 192 columns take 122"):
        choose(function, SM_90A, Overrides(copy="tma", consumers=2, stages=2, blocks=4))
    choose(function, SM_90A, Overrides(copy="tma", consumers=2, stages=2, blocks=1))


def test_a_tile_that_is_read_both_ways_is_copied_once(tmp_path: Path) -> None:
    function = prepare(written(tmp_path, BODIES["one tile both ways"]), SM_90A, WANTED)
    ops = list(function.body.walk())
    assert sum(isinstance(op, TensorCopy) for op in ops) == 2 == sum(isinstance(op, SharedAlloc) for op in ops) - 1
    (first,) = (op for op in ops if isinstance(op, GroupMma))
    (second,) = (op for op in ops if isinstance(op, RegisterGroupMma))
    assert first.operands[2] is second.operands[1]
    for target in (SM_100A, SM_120A):
        schedule = choose(written(tmp_path, BODIES["one tile both ways"]), target)
        assert schedule.pipelines[0].mma == "mma_sync"


@pytest.mark.parametrize(("name", "size"), [("q", 64), ("kv", 64), ("kv", 128), ("k", 128)])
def test_gradients_of_attention_pass_nothing_between_threads(name: str, size: int) -> None:
    """Products that depend on nothing computed run at once; rows of the forward are loaded as threads need them."""
    ops = consumer_loop(prepare(gradient(name, size), SM_90A, WANTED))
    order = [op for op in ops if isinstance(op, GroupProduct | WaitMma)]
    kinds = "".join("W" if isinstance(op, WaitMma) else "G" if isinstance(op, GroupMma) else "R" for op in order)
    assert kinds == {"q": "GGWWRW", "kv": "GGWRWRWW", "k": "GGWWRW"}[name]
    assert [op.pending for op in order if isinstance(op, WaitMma)] == {"q": [1, 0, 0], "kv": [1, 1, 1, 0], "k": [1, 0, 0]}[name]
    assert not any(isinstance(op, ScratchStore) for op in ops)
    assert sum(isinstance(op, Load) for op in ops) == (0 if name == "q" else 2)
    assert sum(isinstance(op, Release) for op in ops) == 2


@pytest.mark.parametrize("name", ["q", "kv"])
def test_a_wait_for_fewer_products_is_refused(name: str) -> None:
    waits = [index for index, op in enumerate(parse_function(text_of(name)).body.walk()) if isinstance(op, WaitMma)]
    for index in waits:
        function = parse_function(text_of(name))
        wait = list(function.body.walk())[index]
        assert isinstance(wait, WaitMma)
        wait.pending += 1
        with pytest.raises(VerifyError, match=r"not computed yet|gives back a stage that a product reads"):
            verify(function, SM_90A)
    assert len(waits) >= 3


@pytest.mark.parametrize("name", ["q", "kv"])
def test_a_result_that_no_wait_passes_on_is_refused(name: str) -> None:
    """Whoever used what a wait passes on uses what the product computes."""
    for index, op in enumerate(parse_function(text_of(name)).body.walk()):
        if isinstance(op, WaitMma):
            function = parse_function(text_of(name))
            wait = list(function.body.walk())[index]
            for block in [region for one in function.body.walk() for region in one.regions]:
                block.ops = [one for one in block.ops if one is not wait]
                for one in block.ops:
                    one.operands = [wait.operands[0] if value is wait.result else value for value in one.operands]
            with pytest.raises(VerifyError):
                verify(function, SM_90A)


@pytest.mark.parametrize(("name", "every"), campaign.chosen(
    [(name, every) for every in (30, 5) for name in ("q", "kv")], lambda case: case == ("kv", 30)))  # fmt: skip
def test_what_changes_an_order_is_refused(name: str, every: int) -> None:
    verify(parse_function(text_of(name)), SM_90A)
    found = list(mutants(text_of(name), every, REFUSED))
    assert len({mutant.kind for mutant in found}) > 10
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), SM_90A)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")
