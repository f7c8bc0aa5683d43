"""PTX text -> tokens and literals (PTX ISA, section 4.2 to 4.5). UnsupportedPtx names the line of an invalid token."""

from __future__ import annotations

import re
import struct
from typing import Final

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.ptx.syntax import Immediate

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    |(?P<word>\.?[%$A-Za-z_][\w$]*(?:(?:\.|::)[\w$]+)*)
    |(?P<mark>[{}\[\]()<>,;:+\-@!|=])""",
    re.VERBOSE | re.DOTALL,
)


_MULTILINE: Final = ("space", "comment", "string")


class Token:
    """A token: its kind (a group of the pattern above), text, line (from 1) and start offset."""

    __slots__ = ("kind", "line", "start", "text")

    def __init__(self, kind: str, text: str, line: int, start: int) -> None:
        self.kind, self.text, self.line, self.start = kind, text, line, start


def tokens(text: str) -> list[Token]:
    """Every token except blanks and comments, then one of kind `end`."""
    found: list[Token] = []
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if start != at:
            break
        kind, token_text = match.lastgroup, match[0]
        if kind != "space" and kind != "comment":
            found.append(Token(str(kind), token_text, line, at))
        if kind in _MULTILINE:
            line += token_text.count("\n")
        at = end
    if at < len(text):
        raise UnsupportedPtx("not a PTX token", line, text[at : at + 20].split("\n")[0])
    found.append(Token("end", "", line, at))
    return found


def number(text: str) -> Immediate:
    """A literal of the PTX ISA, section 4.5."""
    if text[:2] in ("0f", "0F"):
        bits = int(text[2:], 16)
        return Immediate(struct.unpack(">f", bits.to_bytes(4, "big"))[0], True, bits, 32)
    if text[:2] in ("0d", "0D"):
        bits = int(text[2:], 16)
        return Immediate(struct.unpack(">d", bits.to_bytes(8, "big"))[0], True, bits, 64)
    if re.fullmatch(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+", text):
        return Immediate(float(text), True)
    text = text.rstrip("U")
    if re.fullmatch(r"0[0-7]+", text):
        return Immediate(int(text, 8))
    return Immediate(int(text, 0))


def pack(type_name: str, item: Immediate, width: int) -> bytes:
    """The bytes of a variable of that type initialised with a literal."""
    if type_name in ("f32", "f64"):
        if item.width == 8 * width:
            return item.bits.to_bytes(width, "little")
        return struct.pack("<f" if width == 4 else "<d", item.value)
    if isinstance(item.value, float):
        raise UnsupportedPtx(f"a float literal for a variable of type .{type_name}")
    return (item.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
