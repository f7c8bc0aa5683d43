"""Notes on narrow accesses: each suggestion is applied to its kernel, which then has no such note any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.passes.schedule import prepare
from tilec.passes.schedule.notes import Note, notes
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_80, SM_90A, Target

HEAD = '''"""Narrow accesses."""
import tilec
from tilec import Align, Atomic, Dim, In, Out, Strides, arange, atomic_add, bf16, bid, cdiv, f16, f32, grid, i32, load, max
from tilec import requires, store, values


class N(Dim):
    """elements"""


class M(Dim):
    """more"""


class S(Dim):
    """a stride"""


@tilec.kernel
'''
ROWS = """def k(x: In[bf16, 4, {dims}], out: Out[f32, 4]):
    grid(4)
    {promise}
    store(out, bid(0), max(load(x, offset=(bid(0), {first}), shape=(1, {columns}), pad=0), axis=1).astype(f32))
"""
DEEP = """def k(x: In[f32, 4, N, M], out: Out[f32, 4]):
    grid(4)
    {promise}
    v = load(x, (bid(0), 0, 0), shape=(1, 4, 512), pad=0)
    store(out, bid(0), max(max(v, axis=2), axis=1))
"""
APART = """def k(x: In[f32, 4, 1024, Strides[S, 1]{align}], out: Out[f32, 4]):
    grid(4)
    {promise}
    store(out, bid(0), max(load(x, (bid(0), 0), shape=(1, 1024)), axis=1))
"""
BOX = """def k(x: In[bf16, 4, 1024], t: Atomic[{dtype}, 4, {width}]):
    grid(4)
    {promise}
    atomic_add(t, load(x, (bid(0), 0), shape=(1, 1024)).astype({dtype}), offset=(bid(0), {first}), mask=True)
"""
TABLE = """def k(x: In[bf16, 4, 1024], ids: In[i32, 4], t: Atomic[bf16, N, 1024]):
    grid(4)
    values(ids, 0, N)
    v = load(x, (bid(0), 0), shape=(1, 1024)).reshape((1024,))
    atomic_add(t, v, at=(load(ids, bid(0)), {columns}))
"""
CASES: dict[str, tuple[str, dict[str, object], str, dict[str, object]]] = {
    "rows of any length": (
        ROWS, {"dims": "N", "promise": "", "first": "0", "columns": 1024},
        "state `requires(N % 8 == 0)` where it is so",
        {"promise": "requires(N % 8 == 0)"},
    ),
    "rows of pairs": (
        ROWS, {"dims": "N", "promise": "requires(N % 2 == 0)", "first": "0", "columns": 1024},
        "state `requires(N % 8 == 0)` where it is so",
        {"promise": "requires(N % 8 == 0)"},
    ),
    "an extent that is computed": (
        ROWS, {"dims": "3 * N", "promise": "", "first": "0", "columns": 1024},
        "state `requires(N % 8 == 0)` where it is so",
        {"promise": "requires(N % 8 == 0)"},
    ),
    "an extent that is twice a dim": (
        ROWS, {"dims": "2 * N", "promise": "", "first": "0", "columns": 1024},
        "state `requires(N % 4 == 0)` where it is so",
        {"promise": "requires(N % 4 == 0)"},
    ),
    "both the row and the first column": (
        ROWS, {"dims": "N", "promise": "", "first": "bid(0) * 3", "columns": 1024},
        "state `requires(N % 8 == 0)` where it is so and begin at columns that are multiples of 8 elements",
        {"promise": "requires(N % 8 == 0)", "first": "bid(0) * 8"},
    ),
    "a constant length": (
        ROWS, {"dims": "1025", "promise": "", "first": "0", "columns": 1024},
        "make rows of `x` a multiple of 8 elements apart",
        {"dims": "1032"},
    ),
    "a tile and a tensor of an odd length": (
        ROWS, {"dims": "1023", "promise": "", "first": "0", "columns": 1023},
        "choose an extent that is a multiple of 8 and make rows of `x` a multiple of 8 elements apart",
        {"dims": "1024", "columns": 1024},
    ),
    "a tile of an odd length": (
        ROWS, {"dims": "N", "promise": "requires(N % 8 == 0)", "first": "0", "columns": 1023},
        "choose an extent that is a multiple of 8",
        {"columns": 1024},
    ),
    "rows of boxes": (
        DEEP, {"promise": ""}, "state `requires(M % 4 == 0)` where it is so", {"promise": "requires(M % 4 == 0)"},
    ),
    "a stride": (
        APART, {"promise": "", "align": ""}, "state `requires(S % 4 == 0)` where it is so",
        {"promise": "requires(S % 4 == 0)"},
    ),
    "a stride and the base": (
        APART, {"promise": "", "align": ", Align[4]"},
        "align `x` to 16 bytes and state `requires(S % 4 == 0)` where it is so",
        {"promise": "requires(S % 4 == 0)", "align": ""},
    ),
    "sums of pairs": (
        BOX, {"dtype": "bf16", "width": "N", "first": "0", "promise": ""},
        "state `requires(N % 2 == 0)` where it is so, or add to f32",
        {"promise": "requires(N % 2 == 0)"},
    ),
    "sums in f32": (
        BOX, {"dtype": "bf16", "width": "N", "first": "0", "promise": ""}, "or add to f32", {"dtype": "f32"},
    ),
    "sums from an odd column": (
        BOX, {"dtype": "f16", "width": "2048", "first": "1", "promise": ""},
        "begin at columns that are multiples of 2 elements, or add to f32",
        {"first": "2"},
    ),
    "sums of rows in odd columns": (
        TABLE, {"columns": "arange(1024) ^ 1"}, "let the positions of the last axis count up from even numbers",
        {"columns": "arange(1024)"},
    ),
}  # fmt: skip


def narrow(folder: Path, text: str, target: Target = SM_90A) -> list[Note]:
    path = folder / "k.py"
    path.write_text(HEAD + text.replace("    \n", ""))
    function = load_kernel(path, {}, root=folder)
    return [note for note in notes(prepare(function, target, Overrides(warps=2)), target) if note.kind == "narrow_access"]


@pytest.mark.parametrize("name", CASES)
def test_the_suggestion_works(name: str, tmp_path: Path) -> None:
    text, values, hint, fix = CASES[name]
    (note,) = narrow(tmp_path, text.format(**values))
    assert hint in note.hint, note.hint
    assert narrow(tmp_path, text.format(**values | fix)) == []


PARTS = {
    "a wider tile alone": ("a tile and a tensor of an odd length", {"columns": 1024}),
    "a smaller divisor": ("rows of any length", {"promise": "requires(N % 2 == 0)"}),
}


@pytest.mark.parametrize("name", PARTS)
def test_half_of_a_suggestion_leaves_a_note(name: str, tmp_path: Path) -> None:
    text, values, _, _ = CASES[PARTS[name][0]]
    assert narrow(tmp_path, text.format(**values | PARTS[name][1]))


def test_windows_of_adjacent_lanes_have_no_note(tmp_path: Path) -> None:
    """Only the first column keeps it narrow, which a window needs, and lanes access neighbors."""
    text, values, _, _ = CASES["both the row and the first column"]
    assert narrow(tmp_path, text.format(**values | {"promise": "requires(N % 8 == 0)"})) == []


def test_chips_without_vectors_have_no_note_on_sums(tmp_path: Path) -> None:
    text, values, _, _ = CASES["sums from an odd column"]
    assert narrow(tmp_path, text.format(**values), SM_80) == []
