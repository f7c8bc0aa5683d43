"""Rewrites float constants in LLVM IR to the syntax that LLVM in llvmlite 0.50 parses.

torch-mlir 20261001 prints `f0x` and the bits, `+inf`, `-inf`, `+qnan`, or the shortest decimal that rounds to the value.
llvmlite's parser accepts `0x` and the bits of a double for `float`, `0xH` for `half`, `0xR` for `bfloat`, and only exact
decimals. A constant has the last float type named before it on its line. Quoted text, such as inline PTX, is unchanged.
"""

from __future__ import annotations

import re
import struct
from typing import Final

_CONSTANT: Final = re.compile(r"(?<![\w.@%\"+-])(?:f0x([0-9A-Fa-f]+)|([+-]?)(inf|qnan|nan)\b|([+-]?\d+\.\d*e[+-]\d+))")
_TYPE_OR_CONSTANT: Final = re.compile(rf"\b(float|bfloat|half|double)\b|{_CONSTANT.pattern}")
_SPECIAL_BITS: Final = {
    "float": (0x7F800000, 0x7FC00000, 32),
    "bfloat": (0x7F80, 0x7FC0, 16),
    "half": (0x7C00, 0x7E00, 16),
    "double": (0x7FF0000000000000, 0x7FF8000000000000, 64),
}


def older_spelling(llvm_ir: str) -> str:
    """The same module; only float constants in instructions are spelled differently."""
    return "\n".join([_line(line) if _may_hold(line) and _CONSTANT.search(line) else line for line in llvm_ir.split("\n")])


def _may_hold(line: str) -> bool:
    """A quick test for the characters that every constant to rewrite contains: few other lines contain them, and the test is
    much faster than the regular expression."""
    return "e+" in line or "e-" in line or "f0x" in line or "inf" in line or "nan" in line


def _line(line: str) -> str:
    pieces, kind = line.split('"'), ""
    for position in range(0, len(pieces), 2):  # text outside quotes
        pieces[position], kind = _part(pieces[position], kind)
    return '"'.join(pieces)


def _part(text: str, kind: str) -> tuple[str, str]:
    """The text with its constants rewritten, and the last float type it names; `kind` is the type named before it."""

    def rewritten(match: re.Match[str]) -> str:
        nonlocal kind
        if match.group(1):
            kind = match.group(1)
        return match.group() if match.group(1) or not kind else _constant(match, kind)

    return _TYPE_OR_CONSTANT.sub(rewritten, text), kind


def _constant(match: re.Match[str], kind: str) -> str:
    hexadecimal, sign, name, decimal = match.groups()[1:]
    if hexadecimal:
        return _bits(int(hexadecimal, 16), kind)
    if decimal:
        return _bits(_rounded(float(decimal), kind), kind)
    infinity, nan, width = _SPECIAL_BITS[kind]
    bits = infinity if name == "inf" else nan
    return _bits(bits | (sign == "-") << (width - 1), kind)


def _rounded(value: float, kind: str) -> int:
    """Bits of the nearest value of a type. The text was printed from such a value, so no tie can occur."""
    if kind == "bfloat":
        (wide,) = struct.unpack("<I", struct.pack("<f", value))
        return (wide + 0x8000) >> 16
    letters = {"half": "<e", "float": "<f", "double": "<d"}[kind]
    return int.from_bytes(struct.pack(letters, value), "little")


def _bits(bits: int, kind: str) -> str:
    if kind == "float":
        bits = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
    prefix = {"half": "0xH", "bfloat": "0xR"}.get(kind, "0x")
    return f"{prefix}{bits:0{4 if kind in ('half', 'bfloat') else 16}X}"
