"""Sums of floats in memory as vectors: random boxes and rows of tables, on the interpreter, the block machine and the emulator
of three architectures; which of them are vectors; and vectors that are too wide."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.machines import LOWERING_TESTS, manifest
from tests.programs.small_programs import agreed
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import AtomicScatter, AtomicUpdate
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.layouts import vector_positions
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.dtypes import numpy_dtype
from tilec.target.targets import SM_80, SM_90A, Target

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

Array = np.ndarray[Any, Any]
HEAD = '''"""Sums in memory."""
import tilec
from tilec import Align, Atomic, Dim, In, arange, atomic_add, bf16, bid, f16, f32, grid, i32, load, requires, values


class V(Dim):
    """rows of the table"""


class D(Dim):
    """elements of a row"""


@tilec.kernel
'''


@dataclass(frozen=True)
class Program:
    """Each of `blocks` blocks adds a tile of `rows` x `columns` to a table of `extent` rows of `width` elements: to a box from
    column `first` on, or with `table` to rows that are loaded. `symbolic`: the width is known at launch, to be a multiple of
    `multiple`."""

    dtype: str = "f32"
    rows: int = 4
    columns: int = 64
    width: int = 64
    first: int = 0
    table: bool = True
    masked: bool = True
    blocks: int = 2
    warps: int = 2
    symbolic: bool = False
    multiple: int = 1
    extent: int = 5
    align: int = 16

    @property
    def text(self) -> str:
        width = "D" if self.symbolic else str(self.width)
        align = f", Align[{self.align}]" if self.align != 16 else ""
        body = [f"grid({self.blocks})", "b = bid(0)"]
        body += [f"requires(D % {self.multiple} == 0)"] if self.symbolic else []
        body += ["values(ids, 0, V)"] if self.table and not self.masked else []
        body += [f"tile = load(x, (b, 0, 0), shape=(1, {self.rows}, {self.columns})).reshape(({self.rows}, {self.columns}))"]
        mask = ", mask=True" if self.masked else ""
        if self.table:
            body += [f"rows = load(ids, (b, 0), shape=(1, {self.rows})).reshape(({self.rows}, 1))"]
            body += [f"atomic_add(t, tile, at=(rows, {self.first} + arange({self.columns})[None, :]){mask})"]
        else:
            body += [f"atomic_add(t, tile, offset=(b, {self.first}){mask})"]
        parameters = (
            f"x: In[{self.dtype}, {self.blocks}, {self.rows}, {self.columns}], ids: In[i32, {self.blocks}, {self.rows}]"
        )
        lines = "\n".join(f"    {line}" for line in body)
        return f"{HEAD}def k({parameters}, t: Atomic[{self.dtype}, V, {width}{align}]):\n{lines}\n"

    @property
    def dims(self) -> dict[str, int]:
        return {"V": self.extent} | ({"D": self.width} if self.symbolic else {})

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        return load_kernel(path, {}, root=folder)

    def arrays(self, seed: int) -> dict[str, Array]:
        random, dtype = np.random.default_rng(seed), numpy_dtype(DTYPES[self.dtype])
        margin = 2 if self.masked else 0
        return {
            "x": random.integers(-3, 4, (self.blocks, self.rows, self.columns)).astype(dtype),
            "ids": random.integers(-margin, self.extent + margin, (self.blocks, self.rows)).astype(np.int32),
            "t": random.integers(-3, 4, (self.extent, self.width)).astype(dtype),
        }

    def expected(self, arrays: dict[str, Array]) -> Array:
        out = arrays["t"].astype(np.float64)
        for block, row, column in np.ndindex(arrays["x"].shape):
            at = int(arrays["ids"][block, row]) if self.table else block + row
            if 0 <= at < self.extent and self.first + column < self.width:
                out[at, self.first + column] += float(arrays["x"][block, row, column])
        return out.astype(arrays["t"].dtype)


def agrees_everywhere(program: Program, folder: Path) -> None:
    total, before = agreed(program, folder, "t")
    np.testing.assert_array_equal(total, program.expected(before))


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    table = draw(st.booleans())
    rows, columns = draw(st.sampled_from(((1, 64), (4, 32), (3, 40), (2, 24), (5, 12), (1, 100), (4, 2), (2, 7))))
    masked = draw(st.booleans())
    first = draw(st.sampled_from((0, 0, 4, 8, 1, 6)))
    spare = draw(st.sampled_from((0, 2, 4, 8, -3)))
    width = first + columns + (spare if masked else abs(spare))
    multiple = draw(st.sampled_from([n for n in (1, 2, 4, 8) if width % n == 0]))
    symbolic = draw(st.booleans()) and masked
    blocks = draw(st.integers(1, 3))
    return Program(
        draw(st.sampled_from(("f32", "f16", "bf16"))), rows, columns, width, first, table, masked or not table, blocks,
        draw(st.sampled_from((1, 2, 4))), symbolic, multiple, draw(st.integers(blocks + rows, 12)),
        draw(st.sampled_from((16, 16, 4))),
    )  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(programs())
def test_random_programs_agree(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agrees_everywhere(program, Path(folder))


FORMS = [
    (Program(), {"v4.f32"}), (Program(table=False), {"v4.f32"}), (Program(first=4, width=68), {"v4.f32"}),
    (Program(first=2, width=68), {"v2.f32"}), (Program(first=1, width=68), {"f32"}), (Program(width=66), {"v2.f32"}),
    (Program(width=65), {"f32"}), (Program(columns=40, rows=3, width=40), {"v4.f32"}), (Program(align=8), {"v2.f32"}),
    (Program("bf16"), {"v4.bf16x2"}), (Program("f16", first=2, width=66), {"f16x2"}),
    (Program("bf16", width=68), {"v2.bf16x2"}),
    (Program("f16", width=67), {"f16"}), (Program(symbolic=True, multiple=4), {"v4.f32"}), (Program(symbolic=True), {"f32"}),
    (Program("bf16", symbolic=True, multiple=2), {"bf16x2"}), (Program(masked=False), {"v4.f32"}),
]  # fmt: skip


@pytest.mark.parametrize(("program", "forms"), FORMS, ids=[f"{number}" for number in range(len(FORMS))])
def test_which_vectors(program: Program, forms: set[str], tmp_path: Path) -> None:
    code = lower(prepare(program.function(tmp_path), SM_90A), SM_90A)
    found = re.findall(r"red\.relaxed\.gpu\.global\.add\.(?:noftz\.)?([\w.]+) ", code.mlir)
    assert set(found) == forms
    agrees_everywhere(program, tmp_path)


def test_older_chips_add_elements(tmp_path: Path) -> None:
    """Before compute capability 9.0 there are no vectors; nothing is marked."""
    assert not vectors(Program(), tmp_path, SM_80)
    assert vectors(Program(), tmp_path, SM_90A) == [16]


def vectors(program: Program, folder: Path, target: Target) -> list[int]:
    prepared = prepare(program.function(folder), target)
    return [op.vector for op in prepared.body.walk() if isinstance(op, AtomicScatter | AtomicUpdate) and op.vector]


def _sixteen(*_: object) -> int:
    return 16


TOO_WIDE = [Program(first=1, width=68), Program(width=65, table=False), Program(width=66), Program("bf16", width=68)]


@pytest.mark.parametrize("program", TOO_WIDE, ids=[f"{number}" for number in range(len(TOO_WIDE))])
def test_a_vector_that_is_too_wide_is_found(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: the alignment is not there. Both machines stop at it."""
    function = program.function(tmp_path)
    monkeypatch.setattr(Alignments, "of", _sixteen)
    monkeypatch.setattr(Alignments, "divisor_of_rows", _sixteen)
    monkeypatch.setattr(vector_positions, "_aligned", _sixteen)
    code = lower(prepare(program.function(tmp_path), SM_90A), SM_90A)
    arrays = program.arrays(0)
    arrays["ids"][:] = 1
    with pytest.raises(AssertionError, match="misaligned"):
        launch(function, code, {name: array.copy() for name, array in arrays.items()}, program.dims)
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, program.dims, seed=0)
    assert not report.clean


COLUMNS_OF_ROWS = {
    "columns change in the same row": "atomic_add(t, tile, at=(arange(4)[:, None], arange(64)[None, :] * 1), mask=True)",
    "every second column": "atomic_add(t, tile, at=(arange(4)[:, None], arange(64)[None, :] * 2), mask=True)",
    "backwards": "atomic_add(t, tile, at=(arange(4)[:, None], 63 - arange(64)[None, :]), mask=True)",
    "rows change too": "atomic_add(t, tile, at=(arange(64)[None, :] + arange(4)[:, None], arange(64)[None, :]), mask=True)",
    "the offset is loaded": "atomic_add(t, tile, at=(arange(4)[:, None], arange(64)[None, :] + rows), mask=True)",
    "the offset is a multiple": "atomic_add(t, tile, at=(arange(4)[:, None], arange(64)[None, :] + rows * 8), mask=True)",
}


@pytest.mark.parametrize("name", COLUMNS_OF_ROWS)
def test_positions_that_are_consecutive(name: str, tmp_path: Path) -> None:
    program = Program()
    text = re.sub(r"atomic_add\(t.*\n", f"{COLUMNS_OF_ROWS[name]}\n", program.text)
    path = tmp_path / "k.py"
    path.write_text(text)
    function = load_kernel(path, {}, root=tmp_path)
    code = lower(prepare(load_kernel(path, {}, root=tmp_path), SM_90A), SM_90A)
    assert ("add.v4.f32" in code.mlir) == (name in ("columns change in the same row", "the offset is a multiple"))
    arrays = program.arrays(3)
    expected = {key: array.copy() for key, array in arrays.items()}
    run(function, expected)
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, program.dims, seed=2)
    assert report.clean
    np.testing.assert_array_equal(report.tensors["t"].view(np.float32).reshape(expected["t"].shape), expected["t"])
