"""C source of launch expressions, names and strings: values of a manifest go in, text that cannot be anything else comes out.

Manifests are untrusted, so names become identifiers of C that it does not reserve, and texts become string literals. An
expression is computed in 64 bits by functions that note what does not fit and what divides by zero (`tilec_sum` and so on, in
`c_prelude`); where the Python launcher's integers would go on, the C launcher refuses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from tilec.ir.expr import Expr

FUNCTIONS: Final = {
    "+": "tilec_sum", "-": "tilec_difference", "*": "tilec_product", "//": "tilec_quotient", "%": "tilec_remainder",
    "min": "tilec_min", "max": "tilec_max",
}  # fmt: skip
INFIX: Final = {"and": "&&", "or": "||"}
_WORDS: Final = """
    alignas alignof asm auto bool break case char const constexpr continue default do double else enum extern false float for
    goto if inline int long main nullptr register restrict return short signed sizeof static static_assert struct switch
    thread_local true typedef typeof typeof_unqual union unsigned void volatile while
    and and_eq bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl concept const_cast consteval
    constinit decltype delete dynamic_cast explicit export friend mutable namespace new noexcept not not_eq operator or or_eq
    private protected public reinterpret_cast requires static_cast template this throw try typeid typename using virtual wchar_t
    xor xor_eq linux unix NULL INT64_C kernels stream
"""
RESERVED: Final = frozenset(_WORDS.split())
"""Words of C23 and C++23 and of their compilers, macros that are used, and the names of parameters that every function has."""


def identifier(text: str) -> str:
    """A name as C may spell it: what is no letter, digit or underscore of ASCII becomes an underscore."""
    made = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return made if re.match(r"[A-Za-z]", made) else f"k{made}"


def parameter_names(names: Collection[str]) -> dict[str, str]:
    """What C calls each of `names`: different for each, and none that is reserved, ours or the library's."""
    made: dict[str, str] = {}
    for name in names:
        chosen = identifier(name)
        while chosen in RESERVED or chosen.startswith(("tilec", "__")) or chosen in made.values():
            chosen = f"v{chosen}" if chosen.startswith(("tilec", "_")) else f"{chosen}_"
        made[name] = chosen
    return made


def literal(text: str) -> str:
    """A string literal of these characters; of those that are not printable ASCII, the bytes in UTF-8."""
    plain = {34: '\\"', 92: "\\\\", 63: "\\?"}
    return '"' + "".join(plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode("utf-8", "replace")) + '"'


def comment(text: str) -> str:
    """Text as it may stand in a comment of C."""
    return re.sub(r"[^ -~]|\?", "#", text).replace("*/", "* /").replace("/*", "/ *")


def expression(expr: Expr, names: Mapping[str, str]) -> str:
    """C of an expression over parameters; KeyError for a symbol that is none."""
    if expr.op == "const":
        return number(expr.value)
    if expr.op == "sym":
        return f"(int64_t){names[expr.name]}"
    left, right = (expression(arg, names) for arg in expr.args)
    if expr.op in FUNCTIONS:
        return f"{FUNCTIONS[expr.op]}(&tilec_at, {left}, {right})"
    return f"(int64_t)({left} {INFIX.get(expr.op, expr.op)} {right})"


def number(value: int) -> str:
    """A constant; ValueError where 64 bits do not hold it."""
    if not -(2**63) < value < 2**63:
        raise ValueError("has a number of more than 64 bits in its contract")
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
