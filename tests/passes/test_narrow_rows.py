"""Layouts of rows that are not whole vectors: interleaved layouts hold the same elements, the count of sectors is the true one,
and which kernels get them. Their code agrees with the interpreter on three architectures."""

from __future__ import annotations

import itertools
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.blocked_layouts import interleaved, natural
from tilec.ir.layouts.coalescing import instructions, pieces
from tilec.ir.ops import Load, Store
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

EXTENTS = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 40, 64, 97, 100, 128, 256, 1000))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=3).filter(lambda shape: prod(shape) <= 2048)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.sampled_from((1, 2, 3, 4, 8)), st.sampled_from((1, 2, 4, 8)))
def test_interleaved_layouts_hold_the_same_elements(shape: list[int], warps: int, most: int) -> None:
    before = natural(tuple(shape), warps)
    after = interleaved(before, most)
    assert after.problem(tuple(shape), warps) is None
    for group in ("registers", "lanes", "warps"):
        counts: list[list[int]] = []
        for layout in (before, after):
            axes = [[d.extent for d in getattr(layout, group) if d.axis == axis] for axis in (*range(len(shape)), None)]
            counts.append([int(np.prod(extents)) for extents in axes])
        assert counts[0] == counts[1]
    first = after.registers[0] if after.registers else None
    if after != before:
        assert first is not None and (first.extent <= most if first.stride == 1 else most < 8)
    assert interleaved(before, 8) == before


@settings(max_examples=100, deadline=None)
@given(
    SHAPES, st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4, 8)), st.sampled_from((32, 128))
)
def test_the_count_of_pieces_is_true(shape: list[int], number: int, size: int, most: int, piece: int) -> None:
    """Byte by byte, for every instruction of a warp."""
    layout = interleaved(natural(tuple(shape), 1), number)
    count = instructions(layout, most)
    width = layout.num_registers // count
    total = 0
    for instruction in range(count):
        touched: set[Any] = set()
        for lane, register in itertools.product(range(32), range(instruction * width, (instruction + 1) * width)):
            *row, column = layout.coordinates(register, lane, 0)
            touched |= {(*row, (column * size + byte) // piece) for byte in range(size)}
        total += len(touched)
    assert pieces(layout, size, most, piece) == total


HEAD = '''"""Rows of any length."""
import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f16, f32, grid, load, max, requires, store


class T(Dim):
    """rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
'''
SOFTMAX = """def k(x: In[{dtype}, T, N], w: In[{dtype}, N], out: Out[{dtype}, T, N]):
    requires(N <= {columns})
    requires(N % {multiple} == 0)
    grid(cdiv(T, {rows}))
    v = load(x, (bid(0), 0), shape=({rows}, {columns}), pad=0).astype(f32)
    v = v - max(v, axis=1)[:, None]
    v = v * load(w, 0, shape=({columns},), pad=0).astype(f32)[None, :]
    store(out, (bid(0), 0), v.astype({dtype}), mask=True)
"""
SUMMED = """def k(x: In[{dtype}, T, N], w: In[{dtype}, N], out: Out[{dtype}, T, N]):
    requires(N <= {columns})
    requires(N % {multiple} == 0)
    grid(cdiv(T, {rows}))
    v = load(x, (bid(0), 0), shape=({rows}, {columns}), pad=0).astype(f32)
    few = max(v.reshape(({rows}, {columns} // 8, 8)), axis=2)
    store(out, (bid(0), 0), (v - max(few, axis=1)[:, None]).astype({dtype}), mask=True)
"""


def built(folder: Path, text: str, **values: Any) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + text.format(**values))
    return load_kernel(path, {}, root=folder)


def adjacent(function: Function) -> bool:
    """Whether lanes of the large tiles that are loaded or stored are at most `vector` bytes apart."""
    prepared = prepare(function, SM_90A, Overrides(warps=4))
    found: list[bool] = []
    for op in prepared.body.walk():
        if isinstance(op, Load | Store) and op.tile.tile.size > 512 and op.tile.layout is not None:
            lane = next(digit for digit in op.tile.layout.lanes if digit.axis is not None)
            found.append(lane.stride * op.tile.tile.dtype.bytes <= op.vector)
    assert found
    return all(found)


CASES = {
    "bf16 of any length": (SOFTMAX, "bf16", 1, True), "f16 in pairs": (SOFTMAX, "f16", 2, True),
    "f32 of any length": (SOFTMAX, "f32", 1, True), "bf16 in whole vectors": (SOFTMAX, "bf16", 8, True),
    "f32 in whole vectors": (SOFTMAX, "f32", 4, False), "neighbors are summed in a thread": (SUMMED, "bf16", 1, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_which_kernels(name: str, tmp_path: Path) -> None:
    text, dtype, multiple, expected = CASES[name]
    assert adjacent(built(tmp_path, text, dtype=dtype, multiple=multiple, rows=4, columns=1024)) is expected


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from((SOFTMAX, SUMMED)), st.sampled_from(("bf16", "f16", "f32")),
    st.sampled_from(((4, 128), (2, 64), (1, 1024), (8, 40))), st.integers(1, 5), st.data(),
)  # fmt: skip
def test_code_agrees_with_the_interpreter(
    text: str, dtype: str, shape: tuple[int, int], height: int, data: st.DataObject
) -> None:
    """Maxima and products of small integers are exact."""
    rows, columns = shape
    width = data.draw(st.integers(1, columns))
    multiple = data.draw(st.sampled_from([n for n in (1, 2, 4) if width % n == 0]))
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {"dtype": dtype, "multiple": multiple, "rows": rows, "columns": columns}
        function = built(Path(folder), text, **values)
        prove(function)
        random = np.random.default_rng(width)
        kind = numpy_dtype(DTYPES[dtype])
        arrays = {"x": random.integers(-9, 10, (height, width)).astype(kind), "w": random.integers(-3, 4, width).astype(kind)}
        arrays["out"] = np.zeros((height, width), kind)
        expected = {name: array.copy() for name, array in arrays.items()}
        run(function, expected)
        for number, target in enumerate(MAIN_TARGETS):
            code = lower(prepare(built(Path(folder), text, **values), target, Overrides(warps=2)), target)
            described = manifest(function, code, target)
            report = emulate(ptx.to_ptx(code.mlir, target), described, arrays, {"T": height, "N": width}, seed=number)
            assert report.clean and not report.notes, (report.faults or report.notes)[0]
            found = report.tensors["out"].view(kind).reshape(height, width)
            np.testing.assert_array_equal(found.astype(np.float64), expected["out"].astype(np.float64))
