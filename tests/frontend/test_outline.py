"""The definitions in a file of kernels and their locations, from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import definition, meant_for_compiler, outline, word_doc
from tilec.language import __all__ as WORDS

TEXT = '''import tilec as t
from tilec import Dim, Element, In, Out as Result, function

from helpers import half, missing
é = 3; WIDE: int = 4


class N(Dim):
    """elements"""


class Plain:
    pass


class E(Element): ...


@t.function
def both(v, w=1, *, E):
    """Twice."""
    return v


@t.kernel
def k(x: In[E, N], out: Result[E, N], *, E: t.Const):
    pass


def plain(): ...
'''


def test_what_a_file_defines() -> None:
    found = outline(Path("k.py"), TEXT)
    assert found is not None and found.holds_kernels
    assert [(one.name, one.kind) for one in found.symbols] == [
        ("é", "constant"), ("WIDE", "constant"), ("N", "dim"), ("E", "element"), ("both", "function"), ("k", "kernel"),
    ]  # fmt: skip
    lines = TEXT.splitlines()
    for symbol in found.symbols:
        for one in (symbol, *symbol.children):
            assert lines[one.name_span.line - 1][one.name_span.column : one.name_span.end_column] == one.name
    assert [one.text for one in found.symbols[-1].children] == ["x: In[E, N]", "out: Result[E, N]", "E: t.Const"]
    assert found.symbols[4].doc == "Twice." and found.symbols[4].span.end_line == 22
    assert found.words == {"Dim": "Dim", "Element": "Element", "In": "In", "Result": "Out", "function": "function"}
    assert found.packages == {"t"} and set(found.imports) == {"half", "missing"}


def test_where_a_name_is_defined(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("from deeper import whole as half\n")
    (tmp_path / "deeper.py").write_text("import tilec\n@tilec.function\ndef on_disk(v): return v\n")
    found = outline(tmp_path / "k.py", TEXT)
    assert found is not None
    deeper = str((tmp_path / "deeper.py").resolve())
    unsaved = {deeper: "import tilec\n@tilec.function\ndef whole(v): return v\n"}
    half = definition(found, "half", None, None, unsaved)
    assert half is not None and (half.name, half.kind, half.name_span.line) == ("whole", "function", 3)
    assert definition(found, "half", None, None) is None  # the text on disk has no such name
    assert definition(found, "missing", None, None) is None
    assert definition(found, "nothing", 21, None) is None
    v = definition(found, "v", 22, None)
    assert v is not None and (v.kind, v.name_span.line) == ("parameter", 20)
    assert definition(found, "v", 26, None) is None
    element = definition(found, "E", 26, None)
    assert element is not None and element.kind == "element"  # the class of the constant's value


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import f\n")
    (tmp_path / "b.py").write_text("from a import f\n")
    found = outline(tmp_path / "a.py", "from b import f\n")
    assert found is not None and definition(found, "f", None, None) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("import tilec\n@tilec.kernel\ndef f(:", True),
        ("from tilec import kernel\n@kernel\ndef f(:", True),
        ("import tilec\n@tilec.function\ndef f(:", True),
        ("import tilec as tl\n@tl.kernel\ndef f(:", True),
        ("import tilec\ndef f(:", False),
        ("@kernel\ndef f(:", False),
    ],
)
def test_a_text_that_is_half_typed(text: str, meant: bool) -> None:
    assert outline(Path("k.py"), text) is None
    assert meant_for_compiler(text) is meant


def test_every_word_has_its_documentation() -> None:
    for word in WORDS:
        documented = word_doc(word)
        assert documented is not None and (documented[1] or word in ("inf", "nan")), word
    assert word_doc("nothing") is None
    cdiv = word_doc("cdiv")
    assert cdiv is not None and cdiv[0] == "cdiv(a: Scalar, b: Scalar, /) -> int"
