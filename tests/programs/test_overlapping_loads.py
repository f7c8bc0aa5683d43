"""Boxes of a tensor that overlap: random stencils on the interpreter, the block machine and the emulator of three
architectures; which loads read the vectors that they share; and vectors that are too wide."""

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
from tilec.ir.core import Function, VerifyError
from tilec.ir.ops.overlapping_ops import OverlappingLoad
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import DTYPES
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

Array = np.ndarray[Any, Any]
HEAD = '''"""A stencil of a plane."""
import tilec
from tilec import Align, Dim, In, InOut, Out, bf16, bid, f16, f32, grid, i8, i32, i64, load, requires, store, unsafe, where


class H(Dim):
    """rows"""


class W(Dim):
    """elements of a row"""


@tilec.kernel
'''


@dataclass(frozen=True)
class Stencil:
    """Each block adds boxes of `rows` x `columns` elements of a plane of `height` x `width` that begin `taps` after its own.
    `symbolic`: extents are known at launch, the width as a multiple of `multiple`. `padded`: boxes may lie outside."""

    taps: tuple[tuple[int, int], ...] = ((0, -1), (0, 0), (0, 1))
    dtype: str = "f32"
    rows: int = 2
    columns: int = 64
    height: int = 5
    width: int = 128
    warps: int = 1
    symbolic: bool = True
    multiple: int = 8
    align: int = 16
    access: str = "In"
    padded: bool = True
    unsafe: bool = False
    bases: str = "i * {rows}, j * {columns}"

    @property
    def text(self) -> str:
        align = f", Align[{self.align}]" if self.align != 16 else ""
        extents = "H, W" if self.symbolic else f"{self.height}, {self.width}"
        first = self.bases.format(rows=self.rows, columns=self.columns)
        head = [f"grid({-(-self.height // self.rows)}, {-(-self.width // self.columns)})"]
        head += [f"requires(W % {self.multiple} == 0 and H <= 4096 and W <= 4096)"] if self.symbolic else []
        body = ["i, j = bid(0), bid(1)", f"h, w = {first}"]
        pad = ", pad=3" if self.padded else ""
        terms = [f"load(x, offset=(h + {r}, w + {c}), shape=({self.rows}, {self.columns}){pad})" for r, c in self.taps]
        body += [f"total = {terms[0]}", *(f"total = total + {term}" for term in terms[1:])]
        body.append("store(out, (i, j), total, mask=True)")
        body = ["with unsafe('a test'):", *(f"    {line}" for line in body)] if self.unsafe else body
        lines = "\n".join(f"    {line}" for line in (*head, *body))
        out = f"{-(-self.height // self.rows) * self.rows}, {-(-self.width // self.columns) * self.columns}"
        return f"{HEAD}def k(x: {self.access}[{self.dtype}, {extents}{align}], out: Out[{self.dtype}, {out}]):\n{lines}\n"

    @property
    def dims(self) -> dict[str, int]:
        return {"H": self.height, "W": self.width} if self.symbolic else {}

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        return load_kernel(path, {}, root=folder)

    def arrays(self, seed: int) -> dict[str, Array]:
        random, dtype = np.random.default_rng(seed), numpy_dtype(DTYPES[self.dtype])
        blocks = -(-self.height // self.rows), -(-self.width // self.columns)
        out = np.zeros((blocks[0] * self.rows, blocks[1] * self.columns), dtype)
        return {"x": random.integers(-9, 10, (self.height, self.width)).astype(dtype), "out": out}


def agrees_everywhere(stencil: Stencil, folder: Path) -> None:
    agreed(stencil, folder, "out")


@st.composite
def stencils(draw: Callable[..., Any]) -> Stencil:
    rows, columns = draw(st.sampled_from(((1, 64), (2, 32), (3, 40), (2, 24), (5, 12), (1, 100), (4, 2), (16, 16), (1, 256))))
    taps = draw(st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), min_size=2, max_size=4, unique=True))
    multiple = draw(st.sampled_from((1, 2, 4, 8, 16)))
    return Stencil(
        tuple(taps), draw(st.sampled_from(("f32", "f16", "bf16", "i8", "i64"))), rows, columns, draw(st.integers(1, 7)),
        multiple * draw(st.integers(1, 160 // multiple)), draw(st.sampled_from((1, 2, 4))), draw(st.booleans()), multiple,
        draw(st.sampled_from((16, 16, 8))),
    )  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(stencils())
def test_random_stencils_agree(stencil: Stencil) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agrees_everywhere(stencil, Path(folder))


def found(stencil: Stencil, folder: Path) -> list[tuple[int, int]]:
    """Bytes of the vectors, and the elements before the first column, of the loads that share vectors."""
    prepared = prepare(stencil.function(folder), SM_90A, Overrides(warps=stencil.warps))
    kept = {id(op): op for op in prepared.body.walk() if isinstance(op, OverlappingLoad)}
    return sorted({(op.vector, op.lead) for op in kept.values()})


WHICH: list[tuple[Stencil, list[tuple[int, int]]]] = [
    (Stencil(), [(16, 0), (16, 1), (16, 3)]),
    (Stencil(dtype="bf16"), [(16, 0), (16, 1), (16, 7)]),
    (Stencil(multiple=2), [(8, 0), (8, 1)]),
    (Stencil(align=8), [(8, 0), (8, 1)]),
    (Stencil(symbolic=False, width=128), [(16, 0), (16, 1), (16, 3)]),
    (Stencil(symbolic=False, width=126), [(8, 0), (8, 1)]),
    (Stencil(taps=((0, -3), (1, 5))), [(16, 1)]),
    # one box, boxes that begin at vectors, rows of any length
    (Stencil(taps=((0, 1),)), []),
    (Stencil(taps=((0, -4), (0, 4), (1, 0))), []),
    (Stencil(multiple=1), []),
    # columns that are known modulo 2 alone, or not at all
    (Stencil(bases="i * {rows}, j * 2"), [(8, 0), (8, 1)]),
    (Stencil(bases="i * {rows}, j"), []),
    # tensors that the kernel writes, and accesses that nothing proves
    (Stencil(unsafe=True), []),
]


@pytest.mark.parametrize(("stencil", "expected"), WHICH, ids=[f"{number}" for number in range(len(WHICH))])
def test_which_boxes_share_vectors(stencil: Stencil, expected: list[tuple[int, int]], tmp_path: Path) -> None:
    assert found(stencil, tmp_path) == expected


def test_boxes_of_a_row_load_each_vector_once(tmp_path: Path) -> None:
    """8 columns of a thread in each of two rows, and the columns next to them: in PTX, vectors of 16 bytes alone."""
    stencil = Stencil(columns=128, width=256, symbolic=False)
    code = lower(prepare(stencil.function(tmp_path), SM_90A, Overrides(warps=1)), SM_90A)
    text = ptx.to_ptx(code.mlir, SM_90A)
    loads = re.findall(r"ld\.global(?:\.nc)?(\S*)\.b32", text)
    assert set(loads) == {".v4"} and len(loads) <= 2 * 4 * 2  # four vectors of a row, in both versions of a block


def _sixteen(*_: object, **_more: object) -> int:
    return 16


def test_a_vector_that_is_too_wide_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not whole vectors: block machine and emulator find the addresses."""
    stencil = Stencil(width=126, multiple=2)
    function = stencil.function(tmp_path)
    monkeypatch.setattr(Alignments, "divisor_of_rows", _sixteen)
    monkeypatch.setattr(Alignments, "of", _sixteen)
    code = lower(prepare(stencil.function(tmp_path), SM_90A, Overrides(warps=1)), SM_90A)
    arrays = stencil.arrays(0)
    with pytest.raises(AssertionError, match="misaligned"):
        launch(function, code, {name: array.copy() for name, array in arrays.items()}, stencil.dims)
    assert not emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, stencil.dims, seed=0).clean


def test_text_and_verifier(tmp_path: Path) -> None:
    prepared = prepare(Stencil().function(tmp_path), SM_90A, Overrides(warps=1))
    text = print_function(prepared)
    assert "overlapping_load" in text and print_function(parse_function(text)) == text
    op = next(op for op in prepared.body.walk() if isinstance(op, OverlappingLoad))
    op.lead = 4
    with pytest.raises(VerifyError, match="`lead` lies in the first"):
        verify(prepared)
