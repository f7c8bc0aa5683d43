"""What a function of floats that is a kind of `Unary` needs: CONTRIBUTING.md lists the places, and these tests name what is
missing."""

from __future__ import annotations

import re

import pytest

from ci.docs.language import SECTIONS
from tests.files import ROOT
from tilec.frontend.arithmetic import APPROXIMATED
from tilec.interpreter import arithmetic
from tilec.ir.ops import FLOAT_UNARY
from tilec.language import words
from tilec.lowering import arithmetic as lowering

MENTIONS = {
    "tilec/frontend/arithmetic.py": r'"{}"',
    "tilec/ir/SEMANTICS.md": r"\n\|[^|]*`{}`",
    "docs/language/tiles.md": r"\b{}\b",
    "tests/interpreter/test_operation_semantics.py": r'"{}"',
    "tests/lowering/test_operations.py": r"\b{}\(",
    "tests/soundness/floats.py": r'"{}"',
    "tilec/interpreter/error_rules.py": r'"{}"',
}
"""Files that name each function, and how."""


WORDS = frozenset(kind for kind in FLOAT_UNARY if not kind.startswith("fast_"))
"""A kind `fast_NAME` is what the word NAME builds with `fast=True`."""


@pytest.mark.parametrize("path", MENTIONS)
def test_every_function_is_in_every_file(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [kind for kind in sorted(WORDS) if not re.search(MENTIONS[path].format(kind), text)] == [], f"not in {path}"


def test_every_function_is_a_word_with_a_meaning_and_a_section() -> None:
    assert set(words.__all__) >= WORDS, "no name in tilec/language/words.py"
    assert {kind for kind in FLOAT_UNARY if kind not in WORDS} == {f"fast_{name}" for name in APPROXIMATED}, (
        "no approximation, and APPROXIMATED does not leave it out"
    )
    assert set(arithmetic.FLOAT_UNARY) >= FLOAT_UNARY, "no row in tilec/interpreter/arithmetic.py"
    assert {*lowering.FLOAT_UNARY} == {*FLOAT_UNARY, "neg", "abs"}, "no row in tilec/lowering/arithmetic.py"
    assert {word for some in SECTIONS.values() for word in some} >= WORDS, "not in SECTIONS of ci/docs/language.py"
