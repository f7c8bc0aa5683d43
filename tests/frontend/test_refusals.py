"""Refusals: their code, their location to the column, and that one kernel reports all of its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from frontend_kernels import SIGNATURE, compile_body, compile_text, refusals, text_of

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel, read_kernel

CASES = {
    "while without a number": ("while pos != 0:\n    pos = pos - 1", "E0111", "pos != 0"),
    "try": ("try:\n    pass\nexcept ValueError:\n    pass", "E0105", "try:"),
    "break": ("break", "E0105", "break"),
    "comprehension": ("a = [i for i in range(3)]", "E0106", "[i for i in range(3)]"),
    "element of a tile": ("a = load(x, 0, shape=4)[2]", "E0106", "2"),
    "element of a tensor": ("a = x[0]", "E0106", "x[0]"),
    "item assignment": ("out[0] = 1.0", "E0105", "out[0]"),
    "unknown word argument": ("a = load(x, 0, shapes=4)", "E0113", "load(x, 0, shapes=4)"),
    "index and offset": ("a = load(x, 0, offset=0, shape=4)", "E0113", "load(x, 0, offset=0, shape=4)"),
    "true division of integers": ("a = pos / 2", "E0204", "pos / 2"),
    "floor division of floats": ("a = eps // 2", "E0204", "eps // 2"),
    "dtype mix": ("a = load(x, 0) + load(ids, 0)", "E0201", "load(x, 0) + load(ids, 0)"),
    "loop variable with a float": ("for i in range(4):\n    a = eps * i", "E0201", "eps * i"),
    "i64 with i32": ("a = i64(bid(0)) + bid(0)", "E0201", "i64(bid(0)) + bid(0)"),
    "symbolic shape": ("a = load(x, 0, shape=N)", "E0203", "load(x, 0, shape=N)"),
    "zero shape": ("a = zeros((4, 0), f32)", "E0203", "zeros((4, 0), f32)"),
    "huge tile": ("a = zeros((4096, 4096), f32)", "E0203", "zeros((4096, 4096), f32)"),
    "rank": ("a = load(x, (0, 0), shape=(1, 4))", "E0206", "load(x, (0, 0), shape=(1, 4))"),
    "float index": ("a = load(x, 1.5, shape=4)", "E0206", "1.5"),
    "read of Out": ("a = load(out, 0)", "E0207", "out"),
    "write to In": ("store(x, 0, 1.0)", "E0207", "x"),
    "atomic on Out": ("atomic_add(out, 0, 1.0)", "E0207", "out"),
    "atomic at positions of Out": ("atomic_add(out, 1.0, at=pos)", "E0207", "out"),
    "store dtype": ("store(out, 0, pos + load(ids, 0))", "E0201", "store(out, 0, pos + load(ids, 0))"),
    "literal overflow": ("a = pos + 5000000000", "E0205", "pos + 5000000000"),
    "f16 overflow": ("a = full(4, 1e6, f16)", "E0205", "full(4, 1e6, f16)"),
    "padding overflow": ("a = load(x, 0, shape=4, pad=1e39)", "E0205", "load(x, 0, shape=4, pad=1e39)"),
    "constant division by zero": ("a = 4 % (2 - 2)", "E0205", "4 % (2 - 2)"),
    "division of a value by zero": ("a = pos // 0", "E0205", "pos // 0"),
    "negative step": ("for i in range(4, 0, -1):\n    pass", "E0111", "-1"),
    "zero step": ("for i in range(0, 4, 0):\n    pass", "E0111", "0"),
    "loop over a tile": ("for i in arange(4):\n    pass", "E0111", "arange(4)"),
    "loop at compile time over a dim": ("for i in tilec.static_range(N):\n    pass", "E0203", "N"),
    "loop at compile time without a step": ("for i in tilec.static_range(0, 4, 0):\n    pass", "E0111", "0"),
    "loop at compile time of no number": ("for i in tilec.static_range():\n    pass", "E0111", "tilec.static_range()"),
    "loop at compile time of too many passes": (
        "for i in tilec.static_range(1 << 60):\n    pass", "E0511", "for i in tilec.static_range(1 << 60):"
    ),
    "claim about a loop at compile time": (
        "for i in tilec.static_range(4):\n    tilec.invariant(i >= 0)", "E0111", "tilec.invariant(i >= 0)"
    ),
    "return from a loop at compile time": ("for i in (1, 2):\n    return", "E0115", "return"),
    "unpacking of items": ("for i, j in (1, 2):\n    pass", "E0217", "i, j"),
    "tuple that doubles": ("a = (1, 2)\nfor i in tilec.static_range(20):\n    a = a + a", "E0511", "a + a"),
    "slice of a tuple by a value": ("a = (1, 2)[pos:]", "E0203", "pos"),
    "slice of a tuple without a step": ("a = (1, 2)[::0]", "E0203", "0"),
    "unpacking of no tuple": ("a = (1, *pos)", "E0217", "*pos"),
    "loop else": ("for i in range(4):\n    pass\nelse:\n    a = 1", "E0111", "a = 1"),
    "tile condition": ("if load(x, 0, shape=4) > 0.0:\n    pass", "E0210", "load(x, 0, shape=4) > 0.0"),
    "integer condition": ("if pos:\n    pass", "E0210", "pos"),
    "undefined": ("a = nothing", "E0108", "nothing"),
    "local before it is set": ("a = M\nM = 3", "E0108", "M"),
    "python sum": ("a = sorted(x)", "E0108", "sorted"),
    "set in one branch": ("if pos > 0:\n    a = 1\nb = a", "E0209", "if pos > 0:"),
    "set in a loop only": ("for i in range(pos):\n    a = 1\nb = a", "E0209", "for i in range(pos):"),
    "branches of different types": ("if pos > 0:\n    a = pos\nelse:\n    a = eps\nb = a", "E0209", "if pos > 0:"),
    "choice of different types": ("a = pos if pos > 0 else load(x, 0)", "E0209", "pos if pos > 0 else load(x, 0)"),
    "loop changes shape": ("a = zeros(4, f32)\nfor i in range(3):\n    a = a[None, :]\nb = a", "E0208", "for i in range(3):"),
    "loop carries a tensor": ("a = x\nfor i in range(3):\n    b = load(a, i)\n    a = x\nc = a", "E0208", "for i in range(3):"),
    "requires of a loaded value": ("requires(load(ids, 0) > 3)", "E0215", "load(ids, 0)"),
    "requires of a float": ("requires(eps >= 1)", "E0215", "eps"),
    "requires is false": ("requires(3 > 4)", "E0216", "3 > 4"),
    "values of floats": ("values(x, 0, 4)", "E0217", "values(x, 0, 4)"),
    "rows of one axis": (
        "values(ids, 0, N, distinct_in_rows=True)", "E0217", "values(ids, 0, N, distinct_in_rows=True)",
    ),
    "rows and all elements": (
        "values(pairs, 0, N, distinct=True, distinct_in_rows=True)", "E0113",
        "values(pairs, 0, N, distinct=True, distinct_in_rows=True)",
    ),
    "promised rows of one axis": (
        "ensures(chosen, 0, N, distinct_in_rows=True)", "E0217", "ensures(chosen, 0, N, distinct_in_rows=True)",
    ),
    "rows that are no truth value": (
        "values(pairs, 0, N, distinct_in_rows=1)", "E0113", "values(pairs, 0, N, distinct_in_rows=1)",
    ),
    "grid in a loop": ("for i in range(3):\n    grid(4)", "E0109", "grid(4)"),
    "bid axis": ("a = bid(1)", "E0110", "bid(1)"),
    "mma of f32": ("a = zeros((16, 16), f32) @ zeros((16, 16), f32)", "E0201", "zeros((16, 16), f32) @ zeros((16, 16), f32)"),
    "mma of f32 by a name that is no truth value": (
        "a = mma(zeros((16, 8), f32), zeros((8, 16), f32), zeros((16, 16), f32), tf32=1)", "E0203",
        "mma(zeros((16, 8), f32), zeros((8, 16), f32), zeros((16, 16), f32), tf32=1)",
    ),
    "mma of bf16 as tf32": (
        "a = mma(zeros((16, 16), bf16), zeros((16, 16), bf16), zeros((16, 16), f32), tf32=True)", "E0201",
        "mma(zeros((16, 16), bf16), zeros((16, 16), bf16), zeros((16, 16), f32), tf32=True)",
    ),
    "mma of i8 summed in f32": (
        "a = mma(zeros((16, 32), i8), zeros((32, 16), u8), zeros((16, 16), f32))", "E0201",
        "mma(zeros((16, 32), i8), zeros((32, 16), u8), zeros((16, 16), f32))",
    ),
    "mma of i8 and f8": (
        "a = zeros((16, 32), i8) @ zeros((32, 16), f8e4m3)", "E0201", "zeros((16, 32), i8) @ zeros((32, 16), f8e4m3)",
    ),
    "mma of bf16 and f16": (
        "a = zeros((16, 16), bf16) @ zeros((16, 16), f16)", "E0201", "zeros((16, 16), bf16) @ zeros((16, 16), f16)",
    ),
    "mma of i16": ("a = zeros((16, 16), i16) @ zeros((16, 16), i16)", "E0201", "zeros((16, 16), i16) @ zeros((16, 16), i16)"),
    "mma inner extents": (
        "a = zeros((16, 8), bf16) @ zeros((16, 16), bf16)", "E0202", "zeros((16, 8), bf16) @ zeros((16, 16), bf16)",
    ),
    "reduction of a scalar": ("a = sum(pos)", "E0206", "pos"),
    "broadcast": ("a = zeros((4, 8), f32) + zeros(4, f32)", "E0202", "zeros((4, 8), f32) + zeros(4, f32)"),
    "unsafe without a reason": ("with unsafe(''):\n    pass", "E0113", "with unsafe(''):"),
    "another context manager": ("with open('f'):\n    pass", "E0105", "with open('f'):"),
    "return in a loop": ("for i in range(3):\n    return", "E0115", "return"),
    "is": ("a = pos is None", "E0106", "pos is None"),
    "starred": ("a = load(*x)", "E0113", "*x"),
    "method of a tensor": ("a = x.sum()", "E0106", "x.sum"),
    "boolean arithmetic": ("a = (pos > 0) + (pos > 1)", "E0204", "(pos > 0) + (pos > 1)"),
    "kernel calls itself": ("k(x)", "E0108", "k"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_at_the_right_span(tmp_path: Path, name: str) -> None:
    body, code, marked = CASES[name]
    (diagnostic,) = refusals(tmp_path, f"grid(N)\n{body}\n", f"{SIGNATURE}, pairs: In[i32, N, 2], chosen: Out[i32, N]")
    assert diagnostic.code == code
    assert diagnostic.primary is not None
    span = diagnostic.primary.span
    line = (tmp_path / "k.py").read_text(encoding="utf-8").split("\n")[span.line - 1]
    assert line[span.column : span.end_column] == marked
    assert span.end_line == span.line


def test_all_problems_are_reported_once_in_source_order(tmp_path: Path) -> None:
    body = """
        grid(N)
        a = pos / 2
        b = a + 1
        for i in range(4):
            c = load(out, i)
            d = c + b
        store(out, 0, d)
        store(x, 0, 1.0)
    """
    found = refusals(tmp_path, body)
    assert [d.code for d in found] == ["E0204", "E0209", "E0207", "E0207"]
    lines = [d.primary.span.line for d in found if d.primary]
    assert lines == sorted(lines)


def test_columns_count_characters(tmp_path: Path) -> None:
    (diagnostic,) = refusals(tmp_path, 'grid(N)\nß = "é"; größe = nichts\n')
    assert diagnostic.primary is not None
    span = diagnostic.primary.span
    line = (tmp_path / "k.py").read_text(encoding="utf-8").split("\n")[span.line - 1]
    assert line[span.column : span.end_column] == "nichts"


def test_error_inside_a_tile_function_points_there(tmp_path: Path) -> None:
    before = """
        @tilec.function
        def half(v):
            return v / 2
    """
    (diagnostic,) = refusals(tmp_path, "grid(N)\na = half(pos) + half(pos)", before=before)
    assert diagnostic.primary is not None
    assert (tmp_path / "k.py").read_text().split("\n")[diagnostic.primary.span.line - 1].strip() == "return v / 2"


TILES_AS_INDICES = {
    "load": ("a = load(x, arange(4))", "gather"),
    "store": ("store(out, arange(4), 1.0)", "scatter"),
    "atomic": ("atomic_add(out, arange(4), 1.0)", "one element after the other"),
    "loop bound": ("for i in range(arange(4)):\n    pass", "take one number"),
    "float": ("store(out, load(x, 0), 1.0)", "astype(i32)"),
}


@pytest.mark.parametrize("name", TILES_AS_INDICES)
def test_hint_for_a_tile_as_an_index_names_the_word_that_takes_it(tmp_path: Path, name: str) -> None:
    body, word = TILES_AS_INDICES[name]
    access = "Atomic" if name == "atomic" else "Out"
    (diagnostic,) = refusals(tmp_path, f"grid(N)\n{body}", f"x: In[f32, N], out: {access}[f32, N]")
    assert diagnostic.code == "E0206"
    assert word in diagnostic.hint


SIGNATURES = {
    "no annotation": ("x", "E0107"),
    "a Python type": ("x: int", "E0107"),
    "star": ("*x", "E0107"),
    "default": ("x: f32 = 1.0", "E0107"),
    "no dims": ("x: In[f32]", "E0107"),
    "unknown dim": ("x: In[f32, Q]", "E0107"),
    "constant dim is not positive": ("x: In[f32, 0]", "E0213"),
    "alignment": ("x: In[f32, N, Align[24]]", "E0107"),
    "strides": ("x: In[f32, N, Strides[1, 1]]", "E0107"),
    "positional constant": ("B: Const", "E0107"),
    "keyword that is no constant": ("*, b: f32", "E0107"),
    "element without constant": ("x: In[E, N]", "E0214"),
    "dim that no axis measures": ("x: In[f32, N * M]", "E0214"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_refused(tmp_path: Path, name: str) -> None:
    signature, code = SIGNATURES[name]
    assert {d.code for d in refusals(tmp_path, "grid(1)", signature)} == {code}


CONSTANTS: dict[str, tuple[dict[str, int | float | bool | str], str]] = {
    "missing": ({"E": "bf16", "M": 4}, "E0211"),
    "unknown": ({"E": "bf16", "M": 4, "B": 1, "C": 2}, "E0212"),
    "dtype for a number": ({"E": "bf16", "M": 4, "B": "bf16"}, "E0213"),
    "number for a dtype": ({"E": 16, "M": 4, "B": 1}, "E0213"),
    "unknown dtype": ({"E": "float32", "M": 4, "B": 1}, "E0213"),
    "float for a dim": ({"E": "bf16", "M": 4.0, "B": 1}, "E0213"),
    "bool for a dim": ({"E": "bf16", "M": True, "B": 1}, "E0213"),
    "negative dim": ({"E": "bf16", "M": -4, "B": 1}, "E0213"),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_is_refused(tmp_path: Path, name: str) -> None:
    constants, code = CONSTANTS[name]
    (diagnostic,) = refusals(tmp_path, "grid(N)", "x: In[E, N, M], *, E: Const, M: Const, B: Const", constants)
    assert diagnostic.code == code


def test_file_problems(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0102"):
        load_kernel(tmp_path / "missing.py", {})
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    with pytest.raises(CompileError, match=r"E0102.*UTF-8"):
        read_kernel(tmp_path / "latin.py")
    with pytest.raises(CompileError, match="E0103"):
        compile_text(tmp_path, "import tilec\n")
    with pytest.raises(CompileError, match="E0104") as caught:
        compile_text(tmp_path, text_of("grid(N)") + "\n@tilec.kernel\ndef second(x: In[f32, N]):\n    grid(N)\n")
    assert caught.value.diagnostics[0].secondary
    with pytest.raises(CompileError, match="E0101"):
        compile_text(tmp_path, "def f(:\n")


def test_accepted_counterpart(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\nstore(out, bid(0), load(x, bid(0)))")
    assert function.name == "k"
