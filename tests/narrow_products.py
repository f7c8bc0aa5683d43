"""Products of dtypes other than bf16 and f16, for tests: kernels written for a case, compiled, and launches of them in the
emulator and the interpreter."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs.machines import manifest
from tilec.artifact.records import Manifest
from tilec.codegen import to_ptx
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.interpreter.dtypes import numpy_dtype
from tilec.interpreter.error_bounds import run_bounded
from tilec.ir.core import Function
from tilec.ir.types import DTYPES
from tilec.lowering import Lowered, lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import Target

TEXT = """
from tilec import Const, Dim, In, Out, bid, cdiv, {left}, {right}, {sums}, grid, kernel, load, mma, requires, store, zeros
class M(Dim): "rows"
class N(Dim): "columns"
class K(Dim): "depth"
@kernel
def product(a: In[{left}, {a}], b: In[{right}, {b}], out: Out[{sums}, M, N]):
    requires(K % 16 == 0, M % 16 == 0, N % 16 == 0)
    across = cdiv(N, {columns})
    grid(cdiv(M, {rows}) * across)
    m, n = bid(0) // across, bid(0) % across
    acc = zeros(({rows}, {columns}), {sums})
    for k in range(cdiv(K, {depth})):
        acc = mma({x}, {y}, acc{tf32})
    store(out, (m, n), acc, mask=True)
"""


@dataclass(frozen=True)
class Case:
    """A product: dtypes of operands, tile (M, N, K), whether the rows of each operand are along K, schedule overrides, and
    other source text if it is given."""

    left: str
    right: str
    tile: tuple[int, int, int]
    along_k: tuple[bool, bool] = (True, True)
    wanted: tuple[tuple[str, Any], ...] = ()
    source: str = ""

    @property
    def sums(self) -> str:
        return "i32" if DTYPES[self.left].is_integer else "f32"

    def text(self) -> str:
        """The kernel's source."""
        if self.source:
            return self.source
        rows, columns, depth = self.tile
        x = f"load(a, (m, k), shape=({rows}, {depth}), pad=0)"
        x = x if self.along_k[0] else f"load(a, (k, m), shape=({depth}, {rows}), pad=0).T"
        y = f"load(b, (n, k), shape=({columns}, {depth}), pad=0).T"
        y = y if self.along_k[1] else f"load(b, (k, n), shape=({depth}, {columns}), pad=0)"
        return TEXT.format(
            left=self.left, right=self.right if self.right != self.left else self.left, sums=self.sums, rows=rows,
            columns=columns, depth=depth, x=x, y=y, tf32=", tf32=True" if self.left == "f32" else "",
            a="M, K" if self.along_k[0] else "K, M", b="N, K" if self.along_k[1] else "K, N",
        ).replace(f"{self.left}, {self.left}, ", f"{self.left}, ").replace("f32, f32, ", "f32, ")  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A kernel: as written, scheduled, compiled, and its launch information."""

    case: Case
    function: Function
    prepared: Function
    schedule: Schedule
    lowered: Lowered
    ptx: str
    manifest: Manifest = field(repr=False)


def function_of(case: Case) -> Function:
    """The kernel as written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "product.py")
        path.write_text(case.text())
        return load_kernel(path, {}, root=Path(folder))


@cache
def made(case: Case, target: Target) -> Made:
    """The compiled kernel."""
    function = function_of(case)
    schedule = choose(function, target, Overrides(**dict(case.wanted)))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    prepared = prepare(function, target, schedule, positive=positive)
    lowered = lower(prepared, target, min_blocks=schedule.blocks)
    launch = replace(manifest(function_of(case), lowered, target), schedule=schedule.to_json(), cluster=schedule.cluster)
    return Made(case, function_of(case), prepared, schedule, lowered, to_ptx(lowered.mlir, target), launch)


def operands(case: Case, extents: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """Random operands, all bits of an integer, and floats of which every sum is exact, and an empty result."""
    random = np.random.default_rng(seed)
    m, n, k = extents
    shapes = ((m, k) if case.along_k[0] else (k, m)), ((n, k) if case.along_k[1] else (k, n))

    def values(name: str, shape: tuple[int, int]) -> Any:
        dtype = DTYPES[name]
        if dtype.is_integer:
            low, high = dtype.integer_range()
            return random.integers(low, high + 1, shape).astype(numpy_dtype(dtype))
        return (random.integers(-4, 5, shape) * 0.5).astype(numpy_dtype(dtype))

    a, b = (values(name, shape) for name, shape in zip((case.left, case.right), shapes, strict=True))
    return {"a": a, "b": b, "out": np.full((m, n), 7, numpy_dtype(DTYPES[case.sums]))}


def emulated(kernel: Made, arrays: dict[str, Any], ptx: str | None = None, seed: int = 0) -> tuple[Report, Any]:
    """The report of a launch in the emulator, and the result."""
    (m, n), a = arrays["out"].shape, arrays["a"]
    flat = {name: array.reshape(-1).view(f"u{array.dtype.itemsize}").copy() for name, array in arrays.items()}
    dims = {"M": m, "N": n, "K": a.size // m}
    report = emulate(ptx or kernel.ptx, kernel.manifest, flat, dims, seed=seed)
    return report, report.tensors["out"].view(arrays["out"].dtype).reshape(m, n)


def interpreted(case: Case, arrays: dict[str, Any]) -> Any:
    """The interpreter's result."""
    own = {name: array.copy() for name, array in arrays.items()}
    run(function_of(case), own, {})
    return own["out"]


def differs_by_more(case: Case, arrays: dict[str, Any], found: Any) -> bool:
    """Whether a result differs from the interpreter's by more than the interpreter's bound of its error."""
    own = {name: array.copy() for name, array in arrays.items()}
    bound = run_bounded(function_of(case), own, {})["out"]
    assert np.isfinite(bound).all()
    return bool((np.abs(found.astype(np.float64) - own["out"].astype(np.float64)) > bound).any())
