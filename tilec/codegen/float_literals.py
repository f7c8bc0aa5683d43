"""Spell float constants as the LLVM of llvmlite 0.50 reads them.

torch-mlir 20261001 prints `f0x` and the bits, `+inf`, `-inf`, `+qnan`, or the shortest decimal that rounds to the value;
llvmlite's parser knows `0x` and a double's bits for `float`, `0xH` for `half`, `0xR` for `bfloat`, and only decimals that are
exact. A line's constants have the first float type that the line names; a call of inline assembly names the type before each
argument, and what stands in quotes is not LLVM's.
"""

from __future__ import annotations

import re
import struct
from typing import Final

_TYPE: Final = re.compile(r"\b(float|bfloat|half|double)\b")
_CONSTANT: Final = re.compile(r"(?<![\w.@%\"+-])(?:f0x([0-9A-Fa-f]+)|([+-]?)(inf|qnan|nan)\b|([+-]?\d+\.\d*e[+-]\d+))")
_QUOTED_OR_TYPED: Final = re.compile(r"\"[^\"]*\"|\b(float|bfloat|half|double)( [^\s,)]+)")
_SPECIAL_BITS: Final = {
    "float": (0x7F800000, 0x7FC00000, 32),
    "bfloat": (0x7F80, 0x7FC0, 16),
    "half": (0x7C00, 0x7E00, 16),
    "double": (0x7FF0000000000000, 0x7FF8000000000000, 64),
}


def older_spelling(llvm_ir: str) -> str:
    """The same module; only float constants in instructions are spelled differently."""
    return "\n".join(_line(line) if _CONSTANT.search(line) else line for line in llvm_ir.split("\n"))


def _line(line: str) -> str:
    if " asm " in line:
        return _QUOTED_OR_TYPED.sub(lambda found: found[1] + _part(found[2], found[1]) if found[1] else found[0], line)
    found = _TYPE.search(line)
    return line if found is None else _part(line, found[1])


def _part(text: str, kind: str) -> str:
    """Every constant in `text`, of type `kind`."""
    infinity, nan, width = _SPECIAL_BITS[kind]

    def spelled(match: re.Match[str]) -> str:
        if match.group(1):
            bits = int(match.group(1), 16)
        elif match.group(4):
            bits = _rounded(float(match.group(4)), kind)
        else:
            bits = infinity if match.group(3) == "inf" else nan
            bits |= (match.group(2) == "-") << (width - 1)
        return _bits(bits, kind)

    return _CONSTANT.sub(spelled, text)


def _rounded(value: float, kind: str) -> int:
    """Bits of the nearest value of a type; the text was printed from one, so no tie is near."""
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
