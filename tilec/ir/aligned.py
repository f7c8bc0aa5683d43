"""The aligned version of a specialisation: the same kernel, with the precondition that some launch values are multiples of what
16 bytes hold, so that its rows begin at multiples of 16 bytes.

It is a specialisation of its own. Its constants are those of the general one and `ALIGNED`, whose value is the precondition as
text, such as `K % 8 == 0 and N % 8 == 0`. Keys, manifests and bundles thus tell the two apart as any two specialisations. The
front end turns the text into a `requires` per clause, so the launcher checks it and proofs may use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tilec.ir.expr import Expr, binary, const, sym

ALIGNED: Final = "if"
"""Name of the constant: a keyword of Python, which no `Const` parameter can have."""
ALIGNED_SUFFIX: Final = "-aligned"
"""End of the file name of an aligned version, in place of its constant's name and value."""
MAX_CLAUSES: Final = 32
_CLAUSE: Final = re.compile(r"(\w{1,200}) % ([1-9]\d{0,3}) == 0")


def aligned_text(multiples: Mapping[str, int]) -> str:
    """The value of the constant: each name is a multiple of its number. Empty for no name."""
    return " and ".join(f"{name} % {multiples[name]} == 0" for name in sorted(multiples))


def read_aligned(text: Any) -> dict[str, int]:
    """The names and their numbers; ValueError for a text that `aligned_text` cannot have made of some."""
    found = [_CLAUSE.fullmatch(clause) for clause in text.split(" and ", MAX_CLAUSES)] if isinstance(text, str) else []
    multiples = {clause[1]: int(clause[2]) for clause in found if clause is not None}
    if not found or None in found or text != aligned_text(multiples):
        raise ValueError(f"`{text!s:.80}` is no precondition of an aligned version")
    return multiples


def multiple_of(name: str, number: int) -> Expr:
    """The condition that a launch value is a multiple of a number."""
    return binary("==", binary("%", sym(name), const(number)), const(0))


def without_aligned(constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants of the general version."""
    return {name: value for name, value in constants.items() if name != ALIGNED}
