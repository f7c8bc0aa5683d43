"""For a misspelled word the hint suggests the intended one: of the language, of the kernel, of a call, of a tile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.diagnostics.spelling import ask_first, did_you_mean, nearest, or_mean
from tilec.frontend import load_kernel

KERNEL = '''"""Scale."""
import math

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, f32, grid, load, store


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """number of elements"""


@tilec.function
def twice(tile, times):
    return tile * times


@tilec.kernel
def scale(x: In[E, N], out: Out[E, N], factor: f32, *, E: Const, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    row = bid(0)
    total = load(x, row, shape=BLOCK, pad=0).astype(f32) * factor * math.pi
    store(out, row, twice(total, times=2.0).astype(E), mask=True)
'''


def hint(tmp_path: Path, right: str, wrong: str, constants: dict[str, str | int] | None = None) -> str:
    """The hint of the one error that a misspelling causes."""
    path = tmp_path / "scale.py"
    assert right in KERNEL
    path.write_text(KERNEL.replace(right, wrong, 1), encoding="utf-8")
    with pytest.raises(CompileError) as refused:
        load_kernel(path, constants or {"E": "bf16", "BLOCK": 128}, root=tmp_path)
    return refused.value.diagnostics[0].hint


def test_the_kernel_is_right_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(KERNEL, encoding="utf-8")
    load_kernel(tmp_path / "scale.py", {"E": "bf16", "BLOCK": 128}, root=tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [
        ("row = bid(0)", "row = bidd(0)", "bid"),
        ("row = bid(0)", "row = tilec.bidd(0)", "bid"),
        ("bid, cdiv", "bidd, cdiv", "bid"),
        ("grid(cdiv", "grid(cdvi", "cdiv"),
        ("shape=BLOCK", "shape=BLOKC", "BLOCK"),
        ("cdiv(N, ", "cdiv(n, ", "N"),
        ("load(x", "load(X", "x"),
        ("twice(total", "twice(totl", "total"),
        ("twice(total", "twcie(total", "twice"),
        ("times=2.0", "time=2.0", "times"),
        ("pad=0", "pda=0", "pad"),
        ("shape=BLOCK", "shpae=BLOCK", "shape"),
        (".astype(E)", ".astyp(E)", "astype"),
        ("twice(total,", "twice(total.shap,", "shape"),
        ("math.pi", "math.pie", "pi"),
        ("x: In[E, N]", "x: Inn[E, N]", "In"),
        ("x: In[E, N]", "x: In[E, NN]", "N"),
        ("x: In[E, N]", "x: In[bf61, N]", "bf16"),
        ("factor: f32", "factor: f23", "f32"),
    ],
)
def test_the_word_that_was_meant(tmp_path: Path, right: str, wrong: str, meant: str) -> None:
    assert hint(tmp_path, right, wrong).startswith(f"did you mean `{meant}`?")


def test_a_constant_of_the_build_file(tmp_path: Path) -> None:
    assert hint(tmp_path, "", "", {"E": "bf16", "BLOKC": 128}) == "did you mean `BLOCK`? its constants: `E`, `BLOCK`"
    assert hint(tmp_path, "", "", {"E": "bf16", "BLOCK": 128, "BLOC": 1}) == "did you mean `BLOCK`? its constants: `E`, `BLOCK`"


def test_nothing_is_suggested_for_a_word_like_no_other(tmp_path: Path) -> None:
    assert hint(tmp_path, "row = bid(0)", "row = qqqqqqqq(0)") == "check the spelling"


def test_a_dtype_that_is_no_word_is_answered_with_what_it_may_be(tmp_path: Path) -> None:
    for wrong in ("x: In[E[0], N]", "x: In[E.bf16, N]", "x: In[1 + 1, N]"):
        assert hint(tmp_path, "x: In[E, N]", wrong) == "use a dtype such as `bf16`, or a class that derives from `Element`"


def test_hints() -> None:
    assert nearest("M", ["m", "n"]) == "m"
    assert nearest("qq", ["m", "n"]) is None
    assert did_you_mean("qq", ["m"], "else") == "else"
    assert ask_first("qq", ["m"], "the words are m") == "the words are m"
    assert ask_first("mm", ["m"], "the words are m") == "did you mean `m`? the words are m"
    assert (or_mean("qq", ["m"]), or_mean("mm", ["m"])) == ("", "; did you mean `m`?")
