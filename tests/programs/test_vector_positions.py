"""Rows of tables at positions, gathered and scattered as vectors: random ones on the interpreter, the block machine and the
emulator of three architectures; which of them are vectors; and vectors that are too wide."""

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
from tilec.ir.core import Function
from tilec.ir.ops import Gather, Scatter
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.layouts import vector_positions
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

Array = np.ndarray[Any, Any]
HEAD = '''"""Rows of a table."""
import tilec
from tilec import Align, Dim, In, InOut, Out, arange, bf16, bid, f16, f32, gather, grid, i8, i32, i64, load, requires, scatter
from tilec import store, values


class V(Dim):
    """rows of the table"""


class D(Dim):
    """elements of a row"""


@tilec.kernel
'''


@dataclass(frozen=True)
class Program:
    """Each block reads (or with `writes` writes) `rows` rows of a table of `extent` rows of `width` elements, `columns` of them
    from column `first` on. `masked`: some lie outside. `symbolic`: the width is known at launch, a multiple of `multiple`."""

    dtype: str = "f32"
    rows: int = 4
    columns: int = 64
    width: int = 64
    first: int = 0
    writes: bool = False
    masked: bool = True
    blocks: int = 2
    warps: int = 2
    symbolic: bool = False
    multiple: int = 1
    extent: int = 9
    align: int = 16
    last: str = ""

    @property
    def text(self) -> str:
        align = f", Align[{self.align}]" if self.align != 16 else ""
        table = f"{self.dtype}, V, {'D' if self.symbolic else self.width}{align}"
        dense = f"{self.dtype}, {self.blocks}, {self.rows}, {self.columns}"
        box, flat = f"(1, {self.rows}, {self.columns})", f"({self.rows}, {self.columns})"
        body = [
            f"grid({self.blocks})",
            "b = bid(0)",
            f"r = load(ids, (b, 0), shape=(1, {self.rows})).reshape(({self.rows}, 1))",
        ]
        body += [f"requires(D % {self.multiple} == 0)"] if self.symbolic else []
        body += ["values(ids, 0, V, distinct=True)"] if self.writes else [] if self.masked else ["values(ids, 0, V)"]
        at = f"(r, {self.last or f'{self.first} + arange({self.columns})[None, :]'})"
        if self.writes:
            mask = ", mask=True" if self.masked else ""
            body += [f"scatter(t, {at}, load(x, (b, 0, 0), shape={box}).reshape({flat}){mask})"]
            parameters = [f"x: In[{dense}]", f"t: InOut[{table}]"]
        else:
            pad = ", pad=3" if self.masked else ""
            body += [f"store(x, (b, 0, 0), gather(t, {at}{pad}).reshape({box}))"]
            parameters = [f"t: In[{table}]", f"x: Out[{dense}]"]
        parameters.append(f"ids: In[i32, {self.blocks}, {self.rows}]")
        lines = "\n".join(f"    {line}" for line in body)
        return f"{HEAD}def k({', '.join(parameters)}):\n{lines}\n"

    @property
    def dims(self) -> dict[str, int]:
        return {"V": self.extent} | ({"D": self.width} if self.symbolic else {})

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        return load_kernel(path, {}, root=folder)

    def arrays(self, seed: int) -> dict[str, Array]:
        random, dtype = np.random.default_rng(seed), numpy_dtype(DTYPES[self.dtype])
        shape, margin = (self.blocks, self.rows), 2 if self.masked else 0
        ids = random.integers(-margin, self.extent + margin, shape).astype(np.int32)
        if self.writes:
            ids = random.permutation(self.extent)[: self.blocks * self.rows].reshape(shape).astype(np.int32)
        return {
            "x": random.integers(-9, 10, (*shape, self.columns)).astype(dtype), "ids": ids,
            "t": random.integers(-9, 10, (self.extent, self.width)).astype(dtype),
        }  # fmt: skip


def agrees_everywhere(program: Program, folder: Path) -> None:
    agreed(program, folder, "t" if program.writes else "x")


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    rows, columns = draw(st.sampled_from(((1, 64), (4, 32), (3, 40), (2, 24), (5, 12), (1, 100), (4, 2), (2, 7))))
    writes, masked, first = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from((0, 0, 4, 8, 1, 6)))
    spare = draw(st.sampled_from((0, 2, 4, 8, -3)))
    width = max(first + columns + (spare if masked else abs(spare)), 1)
    multiple = draw(st.sampled_from([n for n in (1, 2, 4, 8) if width % n == 0]))
    blocks = draw(st.integers(1, 3))
    return Program(
        draw(st.sampled_from(("f32", "f16", "bf16", "i8", "i64"))), rows, columns, width, first, writes, masked, blocks,
        draw(st.sampled_from((1, 2, 4))), draw(st.booleans()) and masked, multiple,
        draw(st.integers(blocks * rows, 16)) if blocks * rows < 16 else 16, draw(st.sampled_from((16, 16, 8))),
    )  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(programs())
def test_random_programs_agree(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agrees_everywhere(program, Path(folder))


def vectors(program: Program, folder: Path) -> int:
    """Bytes that a thread moves at once, by the schedule and by the code; they are the same."""
    prepared = prepare(program.function(folder), SM_90A, Overrides(warps=program.warps))
    (op,) = [op for op in prepared.body.walk() if isinstance(op, Gather | Scatter)]
    return op.vector if op.vector and (op.whole or not op.clipped) else op.tile.tile.dtype.bytes


BYTES = [
    (Program(), 16), (Program(first=4, width=68), 16), (Program(first=2, width=68), 8), (Program(first=1, width=68), 4),
    (Program(width=66), 8), (Program(width=65), 4), (Program(align=8), 8), (Program("bf16"), 16), (Program("i8"), 16),
    (Program("f16", width=67), 2), (Program(symbolic=True, multiple=4), 16), (Program(symbolic=True), 4),
    (Program(masked=False), 16), (Program(writes=True), 16), (Program("bf16", writes=True, width=68), 8),
    (Program(last="arange(64)[None, :] * 1"), 16), (Program(last="63 - arange(64)[None, :]"), 4),
    (Program(last="arange(64)[None, :] + r % 8 * 4"), 16), (Program(last="arange(64)[None, :] + r % 8"), 4),
    (Program(last="r % 8 * 4 + arange(64)[None, :] * 2"), 4), (Program("i64", width=64), 16),
]  # fmt: skip


@pytest.mark.parametrize(("program", "expected"), BYTES, ids=[f"{number}" for number in range(len(BYTES))])
def test_which_vectors(program: Program, expected: int, tmp_path: Path) -> None:
    assert vectors(program, tmp_path) == expected
    agrees_everywhere(program, tmp_path)


def test_instructions_of_a_gather(tmp_path: Path) -> None:
    """16 rows of 128 bf16 by 32 threads: 8 vectors of each instead of 64 elements."""
    program = Program("bf16", rows=16, columns=128, width=128, warps=1, blocks=1, extent=16)
    code = lower(prepare(program.function(tmp_path), SM_90A, Overrides(warps=1)), SM_90A)
    wide, narrow = (re.findall(pattern, code.mlir) for pattern in (r"ld\.global(?:\.nc)?\.v4\.b32", r"llvm\.load .* -> bf16"))
    assert len(wide) == 8 and not narrow


def _sixteen(*_: object) -> int:
    return 16


@pytest.mark.parametrize("writes", [False, True])
def test_a_vector_that_is_too_wide_is_found(writes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(width=66, writes=writes)
    function = program.function(tmp_path)
    monkeypatch.setattr(Alignments, "divisor_of_rows", _sixteen)
    monkeypatch.setattr(vector_positions, "_aligned", _sixteen)
    code = lower(prepare(program.function(tmp_path), SM_90A), SM_90A)
    arrays = program.arrays(0)
    arrays["ids"][:] = 1
    with pytest.raises(AssertionError, match="misaligned"):
        launch(function, code, {name: array.copy() for name, array in arrays.items()}, program.dims)
    assert not emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, program.dims, seed=0).clean
