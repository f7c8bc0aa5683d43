"""If a layout extends past the end of a tile, replicas are neither written nor summed, and a barrier is inserted if they are
read from another thread's elements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import chosen
from tests.programs.generate import Program
from tests.programs.machines import examine
from tilec.frontend import load_kernel
from tilec.ir.core import Function, VerifyError
from tilec.ir.ops.sync_ops import Barrier
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import barrier_check
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, TARGETS

HEAD = '''import tilec
from tilec import Atomic, Dim, In, InOut, Out, Scratch, arange, argmax, argmin, atomic_add, bid, cdiv, f32, gather, grid
from tilec import i32, load, max, min, scatter, store, sum, where


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
'''

UPDATE = """def update(y: InOut[f32, N, {extent}]):
    grid(N)
    store(y, (bid(0), 0), load(y, (bid(0), 0), shape=(1, {extent})) + 1.0)
"""

# Each has an integer input `x` of N rows, so results are exact.
KERNELS = {
    "sums": """def sums(x: In[i32, N, {extent}], out: Out[i32, N], low: Out[i32, N], high: Out[i32, N], at: Out[i32, N]):
    grid(N)
    v = load(x, (bid(0), 0), shape=(1, {extent}))
    store(out, bid(0), sum(v, axis=1))
    store(low, bid(0), min(v, axis=1))
    store(high, bid(0), argmin(v % 3, axis=1))
    store(at, bid(0), argmax(v, axis=1))
""",
    "places": """def places(x: In[i32, N, {extent}], out: Out[i32, N, {extent}], turned: Out[i32, N, {extent}]):
    grid(N)
    i = arange({extent})
    v = gather(x, (bid(0), {extent} - 1 - i))
    store(out, (bid(0), 0), (v * 7 + i).reshape((1, {extent})))
    store(turned, (bid(0), 0), v.reshape((4, {extent} // 4)).permute((1, 0)).reshape((1, {extent})))
""",
    "scattered": """def scattered(x: In[i32, N, {extent}], y: InOut[i32, N, {extent}], total: Atomic[i32, {extent}]):
    grid(N)
    v = load(x, (bid(0), 0), shape=(1, {extent})).reshape(({extent},))
    scatter(y, (bid(0), {extent} - 1 - arange({extent})), v)
    atomic_add(total, v, offset=0)
""",
    # The second block has one row in bounds and one out of bounds, so every element is checked separately.
    "masked": """def masked(x: In[i32, N, M], out: Out[i32, N], turned: Out[i32, N, M]):
    grid(cdiv(N, 2))
    v = load(x, (bid(0), 0), shape=(2, {extent}), pad=123456789)
    store(out, bid(0), max(where(v == 123456789, 5000, v % 4000), axis=1), mask=True)
    store(turned, (bid(0), 0), v + 1, mask=True)
""",
    "square": """def square(x: In[i32, N, {extent}], out: Out[i32, N, {extent}], held: Scratch[i32, N, {extent}]):
    grid(N)
    v = load(x, (bid(0), 0), shape=(1, {extent})).reshape(({extent},))
    store(held, (bid(0), 0), (v + 1).reshape((1, {extent})))
    w = load(held, (bid(0), 0), shape=(1, {extent})).reshape(({extent},))
    s = sum(where(v[:, None] > w[None, :], v[:, None] + w[None, :], 1), axis=0)
    store(out, (bid(0), 0), s.reshape((1, {extent})))
""",
}


def kernel(folder: Path, body: str, extent: int) -> Function:
    """The kernel at an extent."""
    path = folder / "kernel.py"
    path.write_text(HEAD + body.format(extent=extent), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


SHAPES = ((100, 3), (100, 4), (180, 1), (180, 3), (1000, 3), (1000, 4))
CASES = [(name, *shape) for name in KERNELS for shape in SHAPES]


def in_default_run(case: tuple[str, int, int]) -> bool:
    """In the default run each kernel gets two shapes, round-robin."""
    name, *shape = case
    return (list(KERNELS).index(name) + SHAPES.index(tuple(shape))) % 3 == 0


@pytest.mark.parametrize(("name", "extent", "warps"), chosen(CASES, in_default_run))
def test_machines_agree(name: str, extent: int, warps: int) -> None:
    extent = {100: 40, 180: 60, 1000: 100}[extent] if name == "square" else extent
    dims = {"N": 3, "M": extent} if name == "masked" else {"N": 2}
    program = Program(5, HEAD + KERNELS[name].format(extent=extent), True, dims, {}, warps)
    outcome = examine(program, (TARGETS[0],), seeds=(0, 1), block_machine=True)
    assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}"


def barriers(function: Function) -> int:
    """The number of barriers."""
    return sum(isinstance(op, Barrier) for op in function.body.walk())


def test_a_copy_is_read_before_its_element_is_written(tmp_path: Path) -> None:
    """The thread with the replica reads an element that another thread overwrites."""
    assert barriers(prepare(kernel(tmp_path, UPDATE, 1024), SM_90A, Overrides(warps=4))) == 0
    function = prepare(kernel(tmp_path, UPDATE, 1000), SM_90A, Overrides(warps=4))
    assert barriers(function) == 1
    function.body.ops = [op for op in function.body.ops if not isinstance(op, Barrier)]
    with pytest.raises(VerifyError, match="no barrier"):
        barrier_check.check(function)


def test_only_vectors_that_may_pass_the_end_are_predicated(tmp_path: Path) -> None:
    """1000 elements on 64 threads of 8: the first of a thread's two vectors is always in bounds, the second is stored as 2 x 16
    bytes."""
    wrapping, exact = (
        lower(prepare(kernel(tmp_path, UPDATE, n), SM_90A, Overrides(warps=2)), SM_90A).mlir for n in (1000, 1024)
    )
    assert wrapping.count("scf.if") == exact.count("scf.if") + 2
