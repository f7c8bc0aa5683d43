"""Conversions in which a thread chooses among its own registers: the right elements for every thread, no barrier, and no more
of them than pay."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES

from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.blocked_layouts import natural, without_axis
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.layouts.selections import MOST_SELECTS, Selection, selection
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.ir.ops.sync_ops import Barrier
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

PLAIN = Path(__file__).parents[2] / "ci" / "bench" / "kernels" / "plain"
WARPS = 8
SHAPES = [(4, 1024), (8, 512), (2, 128), (16, 64), (64, 16), (32, 32), (4, 4, 64), (8, 1000), (3, 256)]


def layouts(shape: tuple[int, ...]) -> list[Layout]:
    """Layouts that tiles of a shape have: the natural one, and those that reductions of a larger tile leave."""
    found = [natural(shape, WARPS), natural(shape, WARPS, 1)]
    for axis, extent in product(range(len(shape) + 1), (2, 16, 512)):
        found.append(without_axis(natural((*shape[:axis], extent, *shape[axis:]), WARPS), axis))
    return found


def is_right(chosen: Selection, source: Layout, target: Layout) -> bool:
    """Whether every thread gets its elements, by brute force."""
    for lane, warp in product(range(32), range(WARPS)):
        row = chosen.registers[int("".join(str((warp * 32 + lane) >> bit & 1) for bit in chosen.bits), 2)]
        had = [source.coordinates(register, lane, warp) for register in row]
        if had != [target.coordinates(register, lane, warp) for register in range(target.num_registers)]:
            return False
    return True


def test_every_thread_chooses_its_elements() -> None:
    found = 0
    for shape in [*SHAPES, *((extent,) for extent in (2, 4, 8, 16, 64, 512))]:
        for source, target in product(layouts(shape), repeat=2):
            chosen = selection(source, target, shape)
            if chosen is not None:
                found += 1
                assert is_right(chosen, source, target), (shape, str(source), str(target))
                assert ((1 << len(chosen.bits)) - 1) * target.num_registers <= MOST_SELECTS
    assert found >= 20


ALL = Layout(1, (Digit(4, 0, 1),), (Digit(32),), (Digit(WARPS),))
BY_WARP = Layout(1, (), (Digit(32),), (Digit(4, 0, 1), Digit(2)))
BY_LANE = Layout(1, (), (Digit(4, 0, 1), Digit(8)), (Digit(WARPS),))


def test_bits_of_the_thread_that_decide() -> None:
    assert selection(ALL, BY_WARP, (4,)) == Selection((5, 6), ((0,), (2,), (1,), (3,)))
    assert selection(ALL, BY_LANE, (4,)) == Selection((0, 1), ((0,), (2,), (1,), (3,)))


def test_elements_of_other_threads_are_none_to_choose() -> None:
    """A thread lacks them in each direction, and where lanes of other warps have them."""
    assert selection(BY_WARP, ALL, (4,)) is None
    assert selection(BY_WARP, BY_LANE, (4,)) is None and selection(BY_LANE, BY_WARP, (4,)) is None


def test_tiles_that_wrap_and_extents_that_are_no_powers_of_two_are_left() -> None:
    three = Layout(1, (Digit(3, 0, 1),), (Digit(32),), (Digit(6),))
    by_three = Layout(1, (), (Digit(32),), (Digit(3, 0, 1), Digit(2)))
    assert selection(three, by_three, (3,)) is None
    assert selection(ALL, BY_WARP, (3,)) is None


def test_few_warps_keep_their_barriers() -> None:
    assert selection(replace(ALL, warps=(Digit(4),)), replace(BY_WARP, warps=(Digit(4, 0, 1),)), (4,)) is None


TEXT = '''"""Rows with a factor and a position of each."""

import tilec as tl


class T(tl.Dim):
    """rows"""


@tl.kernel
def rows(x: tl.In[tl.{dtype}, T, 1024], factor: tl.In[tl.{dtype}, T], out: tl.Out[tl.{dtype}, T, 1024]):
    tl.grid(tl.cdiv(T, {rows}))
    i = tl.bid(0)
    v = tl.load(x, (i, 0), shape=({rows}, 1024), pad=0)
    a = {sign}tl.load(factor, i, shape={rows}, pad=0)
    slope = {term}
    tl.store(out, (i, 0), v + slope[:, None], mask=True)
'''
TERMS = ["a * tl.max(v, axis=1)", "tl.max(v, axis=1) * a - a", "tl.where(a > 1, a, tl.min(v, axis=1))"]


def rows(folder: Path, dtype: str, number: int, term: str, sign: str = "-") -> Function:
    path = folder / "rows.py"
    path.write_text(TEXT.format(dtype=dtype, rows=number, term=term, sign=sign), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("number", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "i8"])
def test_factors_of_rows_need_no_shared_memory(dtype: str, number: int, term: str, tmp_path: Path) -> None:
    prove(rows(tmp_path, dtype, number, term))
    function = prepare(rows(tmp_path, dtype, number, term), SM_90A, Overrides(warps=8))
    assert not any(isinstance(op, ScratchStore) for op in function.body.walk())
    random, count = np.random.default_rng(number), 2 * number + 1
    type_ = TYPES[dtype]
    x, factor = (random.integers(0, 4, shape).astype(type_) for shape in ((count, 1024), count))
    emulated, executed = ({"x": x, "factor": factor, "out": np.zeros(x.shape, type_)} for _ in range(2))
    run(rows(tmp_path, dtype, number, term), emulated, {})
    launch(function, lower(function, SM_90A), executed, {"T": count})
    np.testing.assert_array_equal(emulated["out"], executed["out"])


def test_what_is_loaded_passes_through_shared_memory(tmp_path: Path) -> None:
    """Barriers add little to the wait for the load."""
    prove(rows(tmp_path, "f32", 4, TERMS[0], ""))
    function = prepare(rows(tmp_path, "f32", 4, TERMS[0], ""), SM_90A, Overrides(warps=8))
    assert any(isinstance(op, ScratchStore) for op in function.body.walk())


@pytest.mark.parametrize(("name", "constants", "most"), [
    ("focal_loss", {"E": "bf16", "V": 1000, "ROWS": 4}, 26),
    ("sinkhorn", {"N": 512, "ROWS": 8}, 6),
])  # fmt: skip
def test_barriers_of_kernels_as_users_write_them(name: str, constants: dict[str, int | str], most: int) -> None:
    """Reductions across warps need two barriers each, in the version of whole tiles and in the other; what combines their
    results adds one exchange, and so does each tile whose rows pass from all warps to one warp each."""
    body = prepare(load_kernel(PLAIN / f"{name}.py", constants, root=PLAIN), SM_90A).body
    assert 0 < sum(isinstance(op, Barrier) for op in body.walk()) <= most
