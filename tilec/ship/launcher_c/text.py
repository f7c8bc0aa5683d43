"""Generates C for launch expressions, names and strings of an untrusted manifest, so that they cannot inject other C.

Names become unreserved C identifiers, and texts become string literals. Expressions are evaluated by functions that detect
division by zero and numbers below -2^63 or from 2^64 on (`tilec_sum` and so on, in `prelude`). Of those the C launcher refuses
a launch that the Python launcher, with unbounded integers, might accept.
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
_RESERVED_NAMES: Final = """
    alignas alignof asm auto bool break case char const constexpr continue default do double else enum extern false float for
    goto if inline int long main nullptr register restrict return short signed sizeof static static_assert struct switch
    thread_local true typedef typeof typeof_unqual union unsigned void volatile while
    and and_eq bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl concept const_cast consteval
    constinit decltype delete dynamic_cast explicit export friend mutable namespace new noexcept not not_eq operator or or_eq
    private protected public reinterpret_cast requires static_cast template this throw try typeid typename using virtual wchar_t
    xor xor_eq linux unix NULL INT64_C kernels stream
"""
RESERVED: Final = frozenset(_RESERVED_NAMES.split())
"""Keywords of C23, C++23 and their compilers, macros that the source uses, and parameter names common to all functions."""


def identifier(text: str) -> str:
    """A C identifier for a name: every character other than an ASCII letter, digit or underscore becomes an underscore."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return name if re.match(r"[A-Za-z]", name) else f"k{name}"


def parameter_names(names: Collection[str]) -> dict[str, str]:
    """A distinct C identifier for each of `names`, none of them reserved by C, by this generator or by a library."""
    chosen_names: dict[str, str] = {}
    for name in names:
        chosen = identifier(name)
        while chosen in RESERVED or chosen.startswith(("tilec", "__")) or chosen in chosen_names.values():
            chosen = f"v{chosen}" if chosen.startswith(("tilec", "_")) else f"{chosen}_"
        chosen_names[name] = chosen
    return chosen_names


def literal(text: str) -> str:
    """A C string literal of the text; characters other than printable ASCII become escaped UTF-8 bytes."""
    plain = {34: '\\"', 92: "\\\\", 63: "\\?"}
    return '"' + "".join(plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode("utf-8", "replace")) + '"'


def comment(text: str) -> str:
    """The text, made safe for a C comment."""
    return re.sub(r"[^ -~]|\?", "#", text).replace("*/", "* /").replace("/*", "/ *")


def expression(expr: Expr, names: Mapping[str, str]) -> str:
    """The C expression of `expr` over parameters; KeyError for a symbol that is not a parameter."""
    if expr.op == "const":
        return number(expr.value)
    if expr.op == "sym":
        return f"(tilec_integer){names[expr.name]}"
    left, right = (expression(arg, names) for arg in expr.args)
    if expr.op in FUNCTIONS:
        return f"{FUNCTIONS[expr.op]}(&tilec_at, {left}, {right})"
    return f"(tilec_integer)({left} {INFIX.get(expr.op, expr.op)} {right})"


def number(value: int) -> str:
    """A C constant; ValueError if it does not fit 64 bits."""
    if not -(2**63) < value < 2**64:
        raise ValueError("has a number of more than 64 bits in its contract")
    if value >= 2**63:
        return f"UINT64_C({value})"
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
