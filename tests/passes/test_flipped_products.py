"""Products whose right operand is computed: `wgmma` makes the transpose, whose left operand is in registers. What qualifies,
that no element passes between threads, loads ahead, results of fixed and random kernels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests import campaign
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, Op
from tilec.ir.ops import For, Gather, If, Load, Permute
from tilec.ir.ops.staging_ops import LoadAhead, PackPairs, RegisterGroupMma, ScratchStore, WaitMma
from tilec.ir.ops.sync_ops import Roles
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.pipelining.packed_operands import MIDDLE, MIDDLE_BITS, MOST_SMALL
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A

HEAD = '''"""Products."""

import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


@tl.kernel
def products(x: tl.In[tl.{element}, {x}], w: tl.In[tl.{weight}, {w}], scale: tl.In[tl.f32, N], first: tl.i32,
             out: tl.Out[tl.f32, M, N]):
    tl.requires(K % 64 == 0, N % 8 == 0, M % 8 == 0, first >= 0, first <= 100)
    tl.grid(tl.cdiv(M, {rows}), tl.cdiv(N, {columns}))
    m, n = tl.bid(0), tl.bid(1)
    total = tl.zeros(({rows}, {columns}), tl.f32)
    for k in range(first, K // {depth}):
'''
X = {
    "M, K": "tl.load(x, (m, k), shape=({rows}, {depth}), pad=0)",
    "K, M": "tl.load(x, (k, m), shape=({depth}, {rows}), pad=0).T",
}
WEIGHTS = {
    "K, N": "tl.load(w, (k, n), shape=({depth}, {columns}), pad=0)",
    "N, K": "tl.load(w, (n, k), shape=({columns}, {depth}), pad=0).T",
}
NIBBLES = """        words = tl.load(w, (k, n), shape=({depth} // 8, {columns}), pad=0)
        y = (words[:, None, :] >> (tl.arange(8) * 4)[None, :, None]) & 15
        y = (y - k % 3).astype(tl.{element}).reshape(({depth}, {columns}))
"""
COMPUTED = {
    "a cast": ("i8", "y = {y}.astype(tl.{element})"),
    "an unsigned cast": ("u8", "y = {y}.astype(tl.{element})"),
    "a difference": ("i16", "y = ({y}.astype(tl.i32) % 512 - k % 7).astype(tl.{element})"),
    "an unsigned difference that wraps": ("u8", "y = ({y} - 200).astype(tl.{element})"),
    "a signed difference that wraps": ("i8", "y = ({y} - (100 + k % 7).astype(tl.i8)).astype(tl.{element})"),
    "a rounded sum": ("f32", "y = ({y} * 0.37 + 1.0).astype(tl.{element})"),
    "an exponential": ("f32", "y = tl.exp2({y}).astype(tl.{element})"),
    "a scaled operand": ("bf16", "y = ({y}.astype(tl.f32) * tl.load(scale, n, shape={columns}, pad=0)[None, :])"
                                 ".astype(tl.{element})"),
    "wide integers": ("i32", "y = {y}.astype(tl.{element})"),
    "nibbles": ("i32", NIBBLES),
}  # fmt: skip
SUMS = {
    "carried": "        total = tl.mma(a, y, total)\n",
    "of each iteration": "        total = total + tl.mma(a, y, tl.zeros(({rows}, {columns}), tl.f32))"
                         " * tl.load(scale, n, shape={columns}, pad=0)[None, :]\n",
    "from numbers of columns": "        start = tl.broadcast_to(tl.load(scale, n, shape={columns}, pad=0)[None, :],"
                               " ({rows}, {columns}))\n        total = total + tl.mma(a, y, start)\n",
    "scaled before": "        total = tl.mma(a, y, total * 0.5)\n",
}  # fmt: skip


WANTED = Overrides(copy="tma", consumers=2)


@dataclass(frozen=True)
class Kernel:
    """One kernel: how the operands lie, what is computed, where sums are, tiles."""

    computed: str = "a cast"
    sums: str = "carried"
    x: str = "M, K"
    w: str = "K, N"
    element: str = "bf16"
    tile: tuple[int, int, int] = (64, 128, 64)
    wanted: Overrides = WANTED

    def function(self, folder: Path) -> Function:
        rows, columns, depth = self.tile
        weight, text = COMPUTED[self.computed]
        dims = "K // 8, N" if self.computed == "nibbles" else self.w
        fields = {"rows": rows, "columns": columns, "depth": depth, "element": self.element, "weight": weight, "x": self.x}
        body = f"        a = {X[self.x]}\n"
        body += text if self.computed == "nibbles" else f"        {text.replace('{y}', WEIGHTS[self.w])}\n"
        whole = HEAD.replace("{w}", dims) + body + SUMS[self.sums] + "    tl.store(out, (m, n), total, mask=True)\n"
        (folder / "products.py").write_text(whole.format(**fields))
        return load_kernel(folder / "products.py", {}, root=folder)

    def prepared(self, folder: Path) -> Function:
        return prepare(self.function(folder), SM_90A, self.wanted)


def consumer_ops(function: Function) -> list[Op]:
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    (loop,) = (op for op in roles.regions[0].walk() if isinstance(op, For))
    return list(loop.regions[0].walk())


def check(kernel: Kernel, dims: dict[str, int], folder: Path, seed: int = 0) -> None:
    """The emulator finds nothing, and the interpreter's results up to the order of sums."""
    function, random_ = kernel.function(folder), np.random.default_rng(seed)
    schedule = choose(function, SM_90A, kernel.wanted)
    lowered = lower(prepare(kernel.function(folder), SM_90A, schedule), SM_90A)
    ptx = to_ptx(lowered.mlir, SM_90A)
    assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx
    rows, columns, depth = (dims[name] for name in "MNK")
    element = bfloat16 if kernel.element == "bf16" else np.float16
    shapes = {"M, K": (rows, depth), "K, M": (depth, rows), "K, N": (depth, columns), "N, K": (columns, depth)}
    shape = (depth // 8, columns) if kernel.computed == "nibbles" else shapes[kernel.w]
    arrays: dict[str, Any] = {
        "x": (random_.integers(-8, 9, shapes[kernel.x]) / 8).astype(element),
        "scale": (random_.integers(1, 9, columns) / 4).astype(np.float32),
        "out": np.zeros((rows, columns), np.float32),
        "w": weights(COMPUTED[kernel.computed][0], shape, random_, words=kernel.computed == "nibbles"),
    }
    flat = {name: one.reshape(-1).view(np.uint16 if one.dtype.itemsize == 2 and one.dtype != np.int16 else one.dtype)
            for name, one in arrays.items()}  # fmt: skip
    report = emulate(ptx, manifest(function, lowered, SM_90A), {name: one.copy() for name, one in flat.items()}, dims)
    assert report.clean, report
    run(function, arrays, {"first": dims["first"]})
    found, expected = report.tensors["out"].reshape(rows, columns).astype(np.float64), arrays["out"].astype(np.float64)
    assert np.abs(found - expected).max() <= 2.0**-16 * np.abs(expected).max()
    assert expected.any() or dims["first"] * kernel.tile[2] >= depth


def weights(dtype: str, shape: tuple[int, int], random_: np.random.Generator, *, words: bool) -> Any:
    if dtype in ("f32", "bf16"):
        return (random_.integers(-16, 17, shape) / 8).astype(np.float32 if dtype == "f32" else bfloat16)
    integers = np.iinfo({"i8": np.int8, "u8": np.uint8, "i16": np.int16, "i32": np.int32}[dtype])
    low, high = (integers.min, integers.max) if words or dtype != "i32" else (-(1 << 15), 1 << 15)
    return random_.integers(low, high, shape, integers.dtype, endpoint=True)


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("sums", ["carried", "of each iteration"])
def test_nothing_passes_between_threads(computed: str, sums: str, tmp_path: Path) -> None:
    """Each thread loads what its own elements follow from; the loads are ahead of the iteration that uses them."""
    ops = consumer_ops(Kernel(computed, sums).prepared(tmp_path))
    (product,) = (op for op in ops if isinstance(op, RegisterGroupMma))
    assert not product.mn_major and product.result.tile.shape == (128, 64)
    assert not any(isinstance(op, ScratchStore) for op in ops)
    (packed,) = (op for op in ops if isinstance(op, PackPairs))
    ahead = [op for op in ops if isinstance(op, LoadAhead)]
    assert ahead and ops.index(packed) < ops.index(product) < min(map(ops.index, ahead))
    assert max(map(ops.index, ahead)) < min(ops.index(op) for op in ops if isinstance(op, WaitMma))


def test_a_thread_loads_neighboring_columns_as_vectors(tmp_path: Path) -> None:
    """Rows 0 and 8 of a fragment stand for columns side by side; those of two fragments, for four."""
    for columns, length in ((128, 2), (256, 4)):
        ops = consumer_ops(Kernel("nibbles", tile=(64, columns, 64)).prepared(tmp_path))
        (load,) = (op for op in ops if isinstance(op, LoadAhead))
        assert load.result.layout is not None and load.vector == 16
        assert str(load.result.layout).startswith(f"<{length}@1*1 ")


def test_the_library_kernel_has_its_products_from_registers() -> None:
    folder = Path(__file__).resolve().parents[2] / "tilec" / "kernels" / "source"
    constants = {"E": "bf16", "S": "f16", "BM": 128, "BN": 128}
    function = load_kernel(folder / "int4_matmul.py", constants, root=folder)
    ops = consumer_ops(prepare(function, SM_90A, Overrides(copy="tma", consumers=2)))
    assert sum(isinstance(op, RegisterGroupMma) for op in ops) == 1
    assert sum(isinstance(op, LoadAhead) for op in ops) == 1 and sum(isinstance(op, Gather) for op in ops) == 1
    assert not any(isinstance(op, ScratchStore) for op in ops)


@pytest.mark.parametrize(("computed", "sums"), campaign.in_turn(COMPUTED, tuple(SUMS)))
@pytest.mark.parametrize("element", campaign.first(1, ["bf16", "f16"]))
def test_results_are_those_of_the_interpreter(computed: str, sums: str, element: str, tmp_path: Path) -> None:
    """Of rows and columns that fill no tile."""
    kernel = Kernel(computed, sums, "K, M" if element == "f16" else "M, K", element=element)
    check(kernel, {"M": 72, "N": 136, "K": 192, "first": 0}, tmp_path)


@pytest.mark.parametrize("sums", SUMS)
def test_a_loop_without_iterations_loads_nothing(sums: str, tmp_path: Path) -> None:
    """The first loads are in a branch: the loop may begin past the end of the tensor."""
    kernel = Kernel("a cast", sums)
    check(kernel, {"M": 64, "N": 128, "K": 64, "first": 3}, tmp_path)
    (roles,) = (op for op in kernel.prepared(tmp_path).body.ops if isinstance(op, Roles))
    (branch,) = (op for op in roles.regions[0].ops if isinstance(op, If) and op.results)
    loads = [op for op in roles.regions[0].ops if isinstance(op, Load)]
    assert any(isinstance(op, Load) for op in branch.regions[0].ops) and not loads


@pytest.mark.parametrize("number", campaign.first(6, range(300)))
def test_random_kernels(number: int, tmp_path: Path) -> None:
    r = random.Random(f"flipped product {number}")
    consumers = r.choice([1, 2])
    rows, columns = r.choice([64, 128, 192]), 64 * consumers * r.choice([1, 1, 2])
    depth = r.choice([64, 64, 128])
    if rows * columns * 2 > 128 * 128 * consumers:
        rows = 64
    wanted = Overrides(copy="tma", consumers=consumers, stages=r.choice([None, 2, 3]))
    kernel = Kernel(r.choice(list(COMPUTED)), r.choice(list(SUMS)), r.choice(list(X)), r.choice(list(WEIGHTS)),
                    r.choice(["bf16", "f16"]), (rows, columns, depth), wanted)  # fmt: skip
    steps = r.choice([1, 1, 2, 3, 5])
    dims = {"M": 8 * r.randint(1, 20), "N": 8 * r.randint(1, 40), "K": depth * steps, "first": r.choice([0, 0, 0, 1])}
    check(kernel, dims, tmp_path, number)


def test_the_transpose_is_undone_where_a_thread_keeps_its_elements(tmp_path: Path) -> None:
    """Permutations around the product rename registers: no conversion of the result before the loop ends."""
    ops = consumer_ops(Kernel("a cast", "scaled before").prepared(tmp_path))
    assert sum(isinstance(op, Permute) for op in ops) >= 2
    assert not any(isinstance(op, ScratchStore) for op in ops)


def test_other_targets_and_shapes_are_refused(tmp_path: Path) -> None:
    """No other family has its left operand in registers and both others elsewhere; 64 columns are no two warpgroups' rows."""
    for target in (SM_100A,):
        with pytest.raises(CompileError, match="cannot have this schedule"):
            choose(Kernel().function(tmp_path), target, Overrides(copy="tma", consumers=2))
    with pytest.raises(CompileError, match="cannot have this schedule"):
        choose(Kernel(tile=(128, 64, 64)).function(tmp_path), SM_90A, Overrides(copy="tma", consumers=2))
    assert choose(Kernel().function(tmp_path), SM_120A).pipelines[0].mma == "mma_sync"


def test_small_integers_become_floats_by_a_sum() -> None:
    numbers = np.array([0, 1, -1, 255, -256, MOST_SMALL, -MOST_SMALL], np.int32)
    assert np.float32(MIDDLE).view(np.int32) == MIDDLE_BITS
    assert ((numbers + np.int32(MIDDLE_BITS)).view(np.float32) - np.float32(MIDDLE) == numbers).all()
    beyond = np.array([MOST_SMALL + 2], np.int32)
    assert ((beyond + np.int32(MIDDLE_BITS)).view(np.float32) - np.float32(MIDDLE) != beyond).all()
