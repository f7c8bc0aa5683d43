"""The number of warps follows the tiles of a kernel; if a thread would hold too many elements of one, the kernel is refused
before lowering."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, render
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.layouts.thread_elements import MOST_ELEMENTS, MOST_OPERATIONS
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

HEAD = '''import tilec
from tilec import Dim, In, Out, bid, cdiv, exp, f32, grid, load, max, store, sum


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
'''

OUTER = """def outer(x: In[f32, N, {extent}], out: Out[f32, N, {extent}]):
    grid(N)
    a = load(x, (bid(0), 0), shape=(1, {extent})).reshape(({extent},))
    s = a[:, None] * a[None, :]
    store(out, (bid(0), 0), sum(exp(s - max(s, axis=1)[:, None]), axis=1).reshape((1, {extent})))
"""

MASKED = """def masked(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(cdiv(N, {extent}), cdiv(M, {extent}))
    place = (bid(0), bid(1))
    store(out, place, exp(load(x, place, shape=({extent}, {extent}), pad=0)), mask=True)
"""


def kernel(folder: Path, body: str, extent: int) -> Function:
    path = folder / "kernel.py"
    path.write_text(HEAD + body.format(extent=extent), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def refusal(folder: Path, body: str, extent: int, warps: int | None) -> Diagnostic:
    """The error that the kernel is refused with."""
    with pytest.raises(CompileError) as caught:
        lower(prepare(kernel(folder, body, extent), SM_90A, Overrides(warps=warps)), SM_90A)
    (found,) = caught.value.diagnostics
    return found


@pytest.mark.parametrize(("extent", "warps"), [(32, 1), (64, 4), (100, 8), (200, 16), (256, 16)])
def test_tiles_computed_from_small_loads_get_enough_warps(tmp_path: Path, extent: int, warps: int) -> None:
    assert prepare(kernel(tmp_path, OUTER, extent), SM_90A).num_warps >= warps


def test_a_tile_that_is_too_large_for_the_threads_is_shown_with_a_suggestion(tmp_path: Path) -> None:
    output = render(refusal(tmp_path, OUTER, 256, 1), {"kernel.py": HEAD + OUTER.format(extent=256)})
    assert output == (
        """error[E0530]: each thread would hold 2048 elements of one tile; at most 1024 can be compiled
  --> kernel.py:17:9
   |
17 |     s = a[:, None] * a[None, :]
   |         ^^^^^^^^^^^^^^^^^^^^^^^ a tile of 256 x 256 f32: 2048 elements for each of 32 threads
   |
   = a thread has 255 registers of 32 bits, and holds well up to 64 elements of a tile

hint: set `schedule = { warps = 16 }` for this kernel, or use a smaller tile: 32 threads hold 2048 elements well"""
    )


def test_more_warps_than_exist_are_no_suggestion(tmp_path: Path) -> None:
    found = refusal(tmp_path, OUTER, 1024, 16)
    assert found.code == "E0530"
    assert found.hint == "use a smaller tile: 512 threads hold 32768 elements well"


def test_too_many_operations_are_refused_while_they_are_emitted(tmp_path: Path) -> None:
    found = refusal(tmp_path, MASKED, 256, 2)
    assert found.code == "E0531"
    assert found.message == f"`masked` has more than {MOST_OPERATIONS} operations after unrolling over the elements of a thread"
    assert found.primary is not None
    assert found.primary.text == "a tile of 256 x 256 f32: 1024 elements for each of 64 threads"
    assert found.hint.startswith("set `schedule = { warps = 16 }` for this kernel, or ")


@pytest.mark.parametrize("warps", [None, 8, 16])
def test_a_square_of_256_is_compiled(tmp_path: Path, warps: int | None) -> None:
    lowered = lower(prepare(kernel(tmp_path, OUTER, 256), SM_90A, Overrides(warps=warps)), SM_90A)
    assert lowered.mlir.count("\n") < MOST_OPERATIONS
    assert all(
        value.layout.num_registers <= MOST_ELEMENTS
        for op in prepare(kernel(tmp_path, OUTER, 256), SM_90A, Overrides(warps=warps)).body.walk()
        for value in op.results
        if value.layout is not None
    )
