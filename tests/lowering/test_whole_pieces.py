"""Masked or padded accesses at the edge of a tensor: whole vectors if every row ends at a vector boundary, else single
elements.

The rule (`Box.no_partial_access`, `VectorOp.whole`) against enumeration: first its three facts one by one, then kernels at
every extent and offset near an edge, on a machine that refuses out-of-bounds accesses, against the interpreter."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tests.programs.generate import Program
from tests.programs.machines import examine
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.blocked_layouts import natural, reshaped, vector_length, with_axes
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Load, Store
from tilec.lowering import Lowered, lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

HEAD = '''import tilec
from tilec import Dim, In, InOut, Out, Strides, bid, f16, f32, grid, i8, i32, i64, load, requires, store


class N(Dim):
    """rows"""


class D(Dim):
    """columns"""


class S(Dim):
    """elements from row to row"""


@tilec.kernel
'''
# Reads a padded box at an offset given by the launch, and adds 1 to those of its elements that lie inside `y`.
MOVE = """def move(x: In[{x}], y: InOut[{x}], seen: Out[{dtype}, {rows}, {columns}], at: {index}, row: i32):
    {promise}
    grid(1)
    v = load(x, offset=(row, {offset}), shape=({rows}, {columns}), pad=7)
    store(seen, v, offset=(0, 0))
    store(y, v + 1, offset=(row, {offset}), mask=True)
"""
WIDTHS = {"f16": 8, "f32": 4, "i8": 16}


def kernel(folder: Path, text: str) -> Function:
    path = folder / "kernel.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def text(
    dtype: str = "f16", rows: int = 3, columns: int = 64, promise: str = "requires(D % 8 == 0)", offset: str = "at * 8",
    index: str = "i32", dims: str = "N, D",
) -> str:  # fmt: skip
    return MOVE.format(
        x=f"{dtype}, {dims}", dtype=dtype, rows=rows, columns=columns, promise=promise, offset=offset, index=index
    )


# The rule's facts


def layouts() -> list[tuple[tuple[int, ...], Layout]]:
    """Layouts of tiles of many shapes: natural ones, and those after a reshape or a permutation of axes."""
    shapes: list[tuple[int, ...]] = [(1, 64), (3, 64), (64,), (100,), (1000,), (3, 40), (2, 120), (5, 24), (12, 12)]
    shapes += [(16, 1000), (4, 4, 8), (1, 1, 520)]
    found = [(shape, natural(shape, warps, vector)) for shape in shapes for warps in (1, 3, 4) for vector in (4, 8, 16)]
    for shape, layout in list(found):
        size = int(np.prod(shape))
        for other in ((size,), (size // 4, 4), (4, size // 4), (size // 8, 8)):
            same_elements = reshaped(layout, shape, other) if int(np.prod(other)) == size else None
            found += [(other, same_elements)] if same_elements is not None else []
        if len(shape) == 2:
            found.append((shape[::-1], with_axes(layout, {0: 1, 1: 0}, 2)))
    assert sum(layout.wraps(shape) for shape, layout in found) > 20
    return found


def test_a_vector_begins_at_a_multiple_of_its_width_and_wraps_as_a_whole() -> None:
    """Checks the first register of every vector, in every thread, in units of the tile's last axis."""
    checked = 0
    for shape, layout in layouts():
        width, warps = vector_length(layout, 16), int(np.prod([digit.extent for digit in layout.warps]))
        if width == 1 or shape[-1] % width:
            continue
        for first, lane, warp in product(range(0, layout.num_registers, width), range(32), range(warps)):
            coordinates = [layout.coordinates(first + step, lane, warp) for step in range(width)]
            assert {coordinate[:-1] for coordinate in coordinates} == {coordinates[0][:-1]}
            columns = [coordinate[-1] % shape[-1] for coordinate in coordinates]
            assert columns == list(range(columns[0], columns[0] + width)) and columns[0] % width == 0, (shape, str(layout))
            checked += 1
    assert checked > 10000


def test_between_multiples_of_a_power_of_two_is_no_end() -> None:
    """In unsigned arithmetic, in which positions are compared: also below 0 and past the largest i64, where sums wrap."""
    bits = 8  # exhaustive for a small width, which stands for 64
    for width in (1, 2, 4, 8, 16):
        for start, extent in product(range(0, 2**bits, width), range(0, 2 ** (bits - 1), width)):
            in_bounds = {(start + step) % 2**bits < extent for step in range(width)}
            assert len(in_bounds) == 1
    assert len({(4 + step) % 256 < 6 for step in range(4)}) == 2  # an extent between two multiples
    assert len({(2 + step) % 256 < 4 for step in range(4)}) == 2  # a position between two multiples


# Which accesses the rule applies to


def bounds_checked_accesses(function: Function) -> set[tuple[bool, int]]:
    """`whole` and `vector` of the accesses that need a bounds check."""
    return {(op.whole, op.vector) for op in function.body.walk() if isinstance(op, Load | Store) and op.clipped}


def element_accesses(function: Function) -> int:
    """Loads and stores of single f16 or i8 elements."""
    lines = lower(function, SM_90A).mlir.splitlines()
    return sum(
        ("llvm.load" in line or "llvm.store" in line) and "vector<" not in line and line.endswith((" f16", " i16", " i8"))
        for line in lines
    )


STRIDED = "N, D, Strides[S, 1]"
WHOLE = {
    "a promise": (text(), 16),
    "an extent": (text(promise="pass", dims="N, 72"), 16),
    "a wider box than the tensor": (text(columns=128), 16),
    "a box that wraps": (text(rows=16, columns=1000), 16),
    "rows apart": (text(dims=STRIDED, promise="requires(D % 8 == 0 and S % 8 == 0)"), 16),
    "a wide offset": (text(index="i64"), 16),
    "bytes": (text("i8", promise="requires(D % 16 == 0)", offset="at * 16"), 16),
    "an extent of halves": (text(promise="pass", dims="N, 68"), 8),
    "another rest": (text(promise="requires(D % 8 == 4)"), 8),
    "halves between": (text(offset="at * 8 + 4"), 8),
}
NOT_WHOLE = {
    "rows apart that end anywhere": text(dims=STRIDED, promise="requires(S % 8 == 0)"),
    "rows apart that end at half a vector": text(dims=STRIDED, promise="requires(D % 4 == 0 and S % 8 == 0)"),
    "rows apart of an extent that is none": text(dims="N, 70, Strides[S, 1]", promise="requires(S % 8 == 0)"),
}
ELEMENTS = {"no promise": text(promise="pass"), "any offset": text(offset="at")}


@pytest.mark.parametrize("name", WHOLE)
def test_rows_that_end_at_a_vector_are_moved_by_vectors(name: str, tmp_path: Path) -> None:
    source, vector = WHOLE[name]
    function = prepare(kernel(tmp_path, source), SM_90A, Overrides(warps=2))
    assert bounds_checked_accesses(function) == {(True, vector)}
    assert element_accesses(function) == 0


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_other_rows_are_moved_by_elements_at_the_edge(name: str, tmp_path: Path) -> None:
    function = prepare(kernel(tmp_path, NOT_WHOLE[name]), SM_90A, Overrides(warps=2))
    assert bounds_checked_accesses(function) == {(False, 16)}
    assert element_accesses(function) > 0


@pytest.mark.parametrize("name", ELEMENTS)
def test_boxes_at_any_offset_have_no_vectors(name: str, tmp_path: Path) -> None:
    function = prepare(kernel(tmp_path, ELEMENTS[name]), SM_90A, Overrides(warps=2))
    assert {vector for _, vector in bounds_checked_accesses(function)} == {2}


# The accessed elements


def check_launch(
    plain: Function, lowered: tuple[Function, Lowered], extents: dict[str, int], at: int, row: int, dtype: str
) -> None:
    """One launch on the block machine, compared with the interpreter."""
    random = np.random.default_rng(at + 100)
    kinds = {"f16": np.float16, "f32": np.float32, "i8": np.int8}
    shapes = {
        parameter.name: tuple(extents.get(str(dim), dim.constant or 0) for dim in parameter.value.tensor.dims)
        for parameter in plain.parameters
        if parameter.access is not None
    }
    # The row stride is `S`: the gaps between rows are in the launch's arrays but not in the interpreter's.
    stored_shapes = {
        name: (*shape[:-1], max(shape[-1], extents["S"])) if name != "seen" else shape for name, shape in shapes.items()
    }
    arrays: dict[str, Array] = {
        name: random.integers(0, 99, shape).astype(kinds[dtype]) for name, shape in stored_shapes.items()
    }
    expected = {name: array.copy() for name, array in arrays.items()}
    scalars = {"at": at, "row": row}
    run(plain, {name: array[:, : shapes[name][-1]] for name, array in expected.items()}, scalars)
    launch(*lowered, arrays, {**scalars, **extents})
    for name, array in arrays.items():
        assert (array == expected[name]).all(), (name, extents, scalars)


EDGES = {
    "f16": (text(columns=32), 8),
    "f16, a wrapping box": (text(columns=40), 8),
    "f32": (text("f32", columns=16, promise="requires(D % 4 == 0)", offset="at * 4"), 4),
    "i8": (text("i8", columns=48, promise="requires(D % 16 == 0)", offset="at * 16"), 16),
    "f16 by halves": (text(columns=16, promise="requires(D % 4 == 0)", offset="at * 4"), 4),
    "f16 at any extent": (text(columns=16, promise="pass"), 3),
    "f16 at any offset": (text(columns=16, offset="at"), 8),
    "f16 apart, of any extent": (text(columns=32, dims=STRIDED, promise="requires(S % 8 == 0)"), 5),
    "f16 apart, of vectors": (text(columns=32, dims=STRIDED, promise="requires(D % 8 == 0 and S % 8 == 0)"), 8),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_agree_with_the_interpreter(name: str, tmp_path: Path) -> None:
    """Boxes before a row, across its start, inside, across its end and after it."""
    source, step = EDGES[name]
    plain, function = (kernel(tmp_path, source) for _ in range(2))
    function = prepare(function, SM_90A, Overrides(warps=1))
    lowered = function, lower(function, SM_90A)
    for extent, at, row in product((step, 2 * step, 5 * step), (-3, -1, 0, 1, 2, 4, 6), (-1, 0, 1)):
        extents = {"N": 3, "D": extent, "S": (-(-extent // 8) + 1) * 8 if "apart" in name else extent}
        check_launch(plain, lowered, extents, at, row, name.partition(",")[0].partition(" ")[0])


@pytest.mark.parametrize(("name", "at"), [("a promise", -1), ("a promise", 8), ("a promise", 9), ("a box that wraps", 1)])
def test_machine_code_moves_the_same(name: str, at: int) -> None:
    program = Program(1, HEAD + WHOLE[name][0], True, {"N": 3, "D": 72}, {"at": at, "row": 1}, 2, small=("x", "y"))
    outcome = examine(program, (SM_90A,))
    assert outcome.kind == "equal", outcome.detail
