"""Extents in the kernel, coordinates of a thread's elements, and the accesses and cache hints that follow from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from block_machine import launch

from tests.passes.builder import Kernel
from tilec.frontend import load_kernel
from tilec.ir.core import Access, Function
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Load
from tilec.lowering import lower
from tilec.lowering.block_dependence import block_dependent_values
from tilec.lowering.context import Context
from tilec.lowering.coordinates import TileCoordinates
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

HEAD = '''"""One access."""
import tilec
from tilec import Dim, In, Out, Strides, bid, f16, f32, grid, i8, i16, i32, load, requires, store, u8, u16, u32, zeros


class N(Dim):
    """elements or rows"""


class P(Dim):
    """elements of a plane"""


class S(Dim):
    """elements from row to row"""


@tilec.kernel
'''


def kernel(folder: Path, text: str) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def test_an_extent_that_is_an_argument_costs_no_instruction() -> None:
    k = Kernel(1)
    tensor = k.tensor("x", Access.IN, "N", 7)
    context = Context(k.function)
    before = len(context.lines)
    assert context.extent(tensor, 0) == context.leaves["N"].value
    assert len(context.lines) == before
    context.extent(tensor, 1)
    assert [line.partition(" = ")[2] for line in context.lines[before:]] == ["llvm.mlir.constant(7 : i32) : i32"]


EXTENTS = {
    "u8": ("N", 200, 200),
    "u16": ("N - 39900", 40000, 100),
    "u32": ("N - 3000000000", 3000000100, 100),
    "i8": ("20 - N", -100, 120),
    "i16": ("20 - N", -100, 120),
    "i32": ("20 - N", -100, 120),
}
"""dtype of the scalar `N`, an extent with it, its value, the extent's value"""


@pytest.mark.parametrize("dtype", EXTENTS)
def test_a_scalar_in_an_extent_has_the_sign_of_its_dtype(dtype: str, tmp_path: Path) -> None:
    expression, value, extent = EXTENTS[dtype]
    text = f"def k(x: In[f32, {expression}], out: Out[f32, 256], N: {dtype}):\n    grid(1)\n"
    text += "    store(out, 0, load(x, 0, shape=256, pad=7))\n"
    function, prepared = (kernel(tmp_path, text) for _ in range(2))
    x, out = np.arange(100, 100 + extent, dtype=np.float32), np.zeros(256, np.float32)
    launch(function, lower(prepare(prepared, SM_90A, Overrides(warps=1)), SM_90A), {"x": x, "out": out}, {"N": value})
    assert (out[:extent] == x).all() and (out[extent:] == 7).all()


def test_coordinates_of_a_tile_of_one_thread_need_no_thread_index() -> None:
    context = Context(Kernel(1).function)
    before = len(context.lines)
    coordinates = TileCoordinates(context, Layout(2, (), (), ()), (1, 1)).thread_origin
    assert len(coordinates) == 2
    assert {line.partition(" = ")[2] for line in context.lines[before:]} == {"llvm.mlir.constant(0 : i32) : i32"}


BOXES = {
    "a matrix": ("N, 70, Strides[S, 1]", (3, 64)),
    "a batch": ("N, 3, 70, Strides[P, S, 1]", (2, 3, 64)),
}
"""Rows of 70 elements, which end between two vectors, and a box of their first 64."""


@pytest.mark.parametrize("name", BOXES)
def test_a_box_that_exceeds_only_another_axis_is_loaded_in_vectors(name: str, tmp_path: Path) -> None:
    dims, shape = BOXES[name]
    other_offsets, sizes = ", 0" * (len(shape) - 1), {"S": 72} | ({"P": 3 * 72} if len(shape) == 3 else {})
    text = f"def k(x: In[f16, {dims}], out: Out[f16, {', '.join(map(str, shape))}], at: i32):\n"
    text += f"    requires({' and '.join(f'{name} % 8 == 0' for name in sizes)})\n    grid(1)\n"
    text += f"    store(out, load(x, offset=(at{other_offsets}), shape={shape}, pad=7), offset=(0{other_offsets}))\n"
    function, prepared = (kernel(tmp_path, text) for _ in range(2))
    prepared = prepare(prepared, SM_90A, Overrides(warps=1))
    padded = [op for op in prepared.body.walk() if isinstance(op, Load) and op.pad is not None]
    assert padded and all(op.vector == 16 and not op.whole for op in padded)
    lowered = lower(prepared, SM_90A)
    assert not [line for line in lowered.mlir.splitlines() if "llvm.load" in line and line.endswith((" f16", " i16"))]
    x = np.arange(shape[0] * max(sizes.values()), dtype=np.float16)
    inner = x.reshape(shape[0], *shape[1:-1], 72)[..., :64]
    for at in (-1, 0, 1):
        out = np.zeros(shape, np.float16)
        launch(function, lowered, {"x": x, "out": out}, {"at": at, "N": shape[0], **sizes})
        for index, plane in enumerate(out, at):
            assert (plane == (inner[index] if 0 <= index < shape[0] else 7)).all(), (at, index)


CARRIED = """def k(w: In[f32, N], x: In[f32, N], out: Out[f32, N]):
    grid(8)
    at, turn = bid(0), 0
    total = zeros((64,), f32)
    for i in range(4):
        total = total + load(w, offset=at, shape=64, pad=0) + load(x, offset=turn, shape=64, pad=0)
        at, turn = at + 64, turn + 64
    store(out, 0, total, mask=True)
"""


def test_an_offset_that_a_loop_advances_from_the_block_index_depends_on_the_block(tmp_path: Path) -> None:
    function = kernel(tmp_path, CARRIED)
    dependent = block_dependent_values(function)
    loads = {function.parameter_of(op.source).name: op for op in function.body.walk() if isinstance(op, Load)}
    assert not dependent.isdisjoint(loads["w"].offsets)
    assert dependent.isdisjoint(loads["x"].offsets)
