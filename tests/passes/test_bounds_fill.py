"""Copies without out-of-bounds fill: used if and only if no stored element depends on the out-of-bounds rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import tensor_attention, tensor_products, weight_products
from tests.clean import check_clean
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.ops import Broadcast, Constant, For, Store
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import TileType
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import bounds_fill_check
from tilec.passes.schedule.pipelining import bounds_fill, staging
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.passes.schedule.specialization import persistent
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

TEXT = '''"""A product, of which each test stores another thing."""
import tilec
from tilec import Dim, In, Out, astype, bf16, bid, cdiv, f32, grid, load, mma, num_blocks, requires, reshape, store, sum, zeros

class M(Dim):
    pass

class N(Dim):
    pass

class R(Dim):
    pass

class K(Dim):
    pass

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, N, K], out: Out[f32, ROWS, N]):
    requires(REQUIRED)
    grid(cdiv(ROWS, 64), cdiv(N, 64))
    m, n = bid(0), bid(1)
    acc = zeros((64, 64), f32)
    for j in range(cdiv(K, 64)):
        acc = mma(load(a, (m, j), shape=(64, 64), pad=0), load(b, (n, j), shape=(64, 64), pad=0).T, acc)
    store(out, STORED)
'''
EIGHTS = "K % 8 == 0 and N % 8 == 0"
CASES = {
    "each row for itself": ("M", EIGHTS, "(m, n), acc * 2.0 + 1.0, mask=True", {"a", "b"}),
    "a sum of columns": ("M", EIGHTS, "(m, n), acc + sum(acc, axis=1)[:, None], mask=True", {"a"}),
    "a sum of rows": ("M", EIGHTS, "(m, n), acc + sum(acc, axis=0)[None, :], mask=True", {"b"}),
    "rows of another extent": ("R", EIGHTS, "(m, n), acc, mask=True", {"b"}),
    "rows of another tile": ("M", EIGHTS, "(m + 1, n), acc, mask=True", {"b"}),
    "columns as rows": ("M", EIGHTS, "(m, n), acc.T, mask=True", set[str]()),
    "rows in two halves": ("M", EIGHTS, "(m, n), reshape(reshape(acc, (2, 32, 64)) + 1.0, (64, 64)), mask=True", {"b"}),
    "rows next to an axis of one": ("M", EIGHTS, "(m, n), reshape(reshape(acc, (64, 1, 64)), (64, 64)), mask=True", {"a", "b"}),
    "no row outside": ("M", "K % 8 == 0 and M % 64 == 0 and N % 64 == 0", "(m, n), acc", set[str]()),
}
"""The dim of `out`'s rows, the precondition, the store, and the tensors whose copies skip out-of-bounds rows."""


def unfilled(function: Function) -> set[str]:
    """The tensors whose copies skip out-of-bounds rows; either all copies of a tensor do, or none."""
    copies = [op for op in function.body.walk() if isinstance(op, TensorCopy)]
    found = {function.parameter_of(op.source).name for op in copies if op.unfilled}
    assert not found & {function.parameter_of(op.source).name for op in copies if not op.unfilled}
    return found


def check_refuses(function: Function, copy: TensorCopy) -> None:
    """The independent checker refuses the function if this copy skips out-of-bounds rows too."""
    copy.unfilled = True
    with pytest.raises(VerifyError, match="leaves out rows that are asked for"):
        bounds_fill_check.check(function)
    copy.unfilled = False


def written(folder: Path, case: str) -> Function:
    """The kernel of a case."""
    rows, required, stored, _ = CASES[case]
    path = folder / "k.py"
    path.write_text(TEXT.replace("ROWS", rows).replace("REQUIRED", required).replace("STORED", stored))
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, case: str, target: Target) -> Function:
    return prepare(written(folder, case), target, Overrides(copy="tma", stages=2, consumers=1))


TARGETS = pytest.mark.parametrize("target", [SM_90A, SM_120A], ids=str)
"""Operands that products read from shared memory, and operands that threads load from there."""


@TARGETS
@pytest.mark.parametrize("case", CASES)
def test_rows_are_not_filled_if_no_stored_element_depends_on_them(case: str, target: Target, tmp_path: Path) -> None:
    assert unfilled(prepared(tmp_path, case, target)) == CASES[case][3]


@TARGETS
@pytest.mark.parametrize("case", CASES)
def test_an_independent_checker_works_backwards_from_stored_elements(
    case: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The independent checker accepts every copy that the pass marks and refuses all others."""
    refused: set[str] = set()
    mark = bounds_fill.mark

    def checked(function: Function) -> Function:
        mark(function)
        bounds_fill_check.check(function)
        for copy in [op for op in function.body.walk() if isinstance(op, TensorCopy) and not op.unfilled]:
            check_refuses(function, copy)
            refused.add(function.parameter_of(copy.source).name)
        return function

    monkeypatch.setattr(bounds_fill, "mark", checked)
    assert unfilled(prepared(tmp_path, case, target)) == {"a", "b"} - refused


@pytest.mark.parametrize("later", [False, True])
def test_rows_of_the_previous_tile_are_not_those_of_the_current_tile(later: bool) -> None:
    """No schedule stores a tile one iteration late; if one did, the stored rows would not be the copied rows."""
    function = tensor_products.source("bf16", 64, 64)
    schedule = choose(function, SM_90A, Overrides(copy="tma", stages=2, persistent=True))
    canonicalize(function)
    persistent.wrap(function)
    function.num_warps = schedule.tile_warps
    staging.stage(function, schedule)
    if later:
        (store,) = (op for op in function.body.walk() if isinstance(op, Store))
        loop = next(op for op in function.body.ops if isinstance(op, For) and store in op.regions[0].ops)
        nothing = Emitter()
        zero = nothing.add(Constant(value=0.0), TileType(store.tile.tile.dtype))
        loop.operands.append(nothing.add(Broadcast(operands=[zero]), store.tile.tile))
        loop.results.append(Value(store.tile.tile, "before", loop))
        loop.regions[0].ops[-1].operands.append(store.tile)
        store.operands[1] = loop.regions[0].add_argument(store.tile.tile, "before")
        function.body.ops[:0] = nothing.ops
    verify(function)
    assert unfilled(bounds_fill.mark(function)) == (set[str]() if later else {"a", "b"})
    bounds_fill_check.check(function)
    for op in function.body.walk():
        if later and isinstance(op, TensorCopy):
            check_refuses(function, op)


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (lambda: tensor_products.made("bf16", 64, 64, stages=2), {"a", "b"}),
        (lambda: tensor_products.made("bf16", 64, 64, stages=2, persistent=True), {"a", "b"}),
        (lambda: tensor_products.made("bf16", 64, 64, stages=2, persistent=True, order="pingpong"), {"a", "b"}),
        (lambda: weight_products.made("matmul_few", "bf16", 16, 64, stages=2), {"a", "b"}),
        (lambda: weight_products.made("matmul_split", "bf16", 16, 64, stages=2), {"a", "b"}),
        (lambda: weight_products.made("matmul_silu_mul_few", "bf16", 16, 64, stages=2), {"a"}),
        (lambda: tensor_attention.made("bf16", 64, 64), set[str]()),
        (lambda: tensor_products.made("bf16", 64, 64, target=SM_120A, stages=2, persistent=True, order="pingpong"), {"a", "b"}),
        (lambda: weight_products.made("matmul_silu_mul_few", "bf16", 16, 64, target=SM_120A, stages=2), {"a"}),
        (lambda: tensor_attention.made("bf16", 64, 64, target=SM_120A), set[str]()),
    ],
)
def test_shipped_kernels(kernel: Any, names: set[str]) -> None:
    """In attention, every query depends on every row of keys."""
    assert unfilled(kernel().prepared) == names


@TARGETS
@pytest.mark.parametrize("case", ["a sum of columns", "a sum of rows", "rows of another extent"])
def test_the_emulator_finds_an_observed_row(case: str, target: Target, tmp_path: Path) -> None:
    """Emulation of the pass' output reports nothing; if every copy skips its out-of-bounds rows, an uninitialized row reaches a
    store."""
    right = prepared(tmp_path, case, target)
    wrong = parse_function(print_function(right))
    for op in wrong.body.walk():
        if isinstance(op, TensorCopy):
            op.unfilled = True
    check_clean(emulated(tmp_path, case, right, target))
    assert "uninitialised" in {fault.kind for fault in emulated(tmp_path, case, wrong, target).faults}


def emulated(folder: Path, case: str, function: Function, target: Target) -> Report:
    """A launch whose last tiles extend past the tensors, in M = 65 by all rows but one."""
    extents = {"M": 65, "N": 72, "K": 72} | ({"R": 128} if CASES[case][0] == "R" else {})
    lowered = lower(function, target)
    random = np.random.default_rng(0)
    tensors: dict[str, Any] = {
        name: random.integers(-2, 3, extents[rows] * 72).astype(ml_dtypes.bfloat16).view(np.uint16)
        for name, rows in (("a", "M"), ("b", "N"))
    }
    tensors["out"] = np.zeros(extents[CASES[case][0]] * extents["N"], np.float32)
    described = manifest(written(folder, case), lowered, target)
    return emulate(to_ptx(lowered.mlir, target), described, tensors, extents, seed=1)
