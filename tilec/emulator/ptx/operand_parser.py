"""Tokens of one instruction -> operands (PTX ISA, section 6), and the token cursor that the whole parser shares."""

from __future__ import annotations

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.ptx.lexer import Token, number, tokens
from tilec.emulator.ptx.syntax import (
    Address,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)


class OperandParser:
    """A cursor over the tokens of a text; `scopes` and `labels` map names to registers and labels, innermost last."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = tokens(text)
        self.at: int = 0
        self.scopes: list[dict[str, Register]] = []
        self.labels: list[dict[str, str]] = []

    # --- tokens
    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def fail(self, reason: str) -> UnsupportedPtx:
        token = self.here
        end = self.text.find("\n", token.start)
        start = self.text.rfind("\n", 0, token.start) + 1
        return UnsupportedPtx(reason, token.line, self.text[start : None if end < 0 else end].strip())

    def take(self, text: str | None = None, kind: str | None = None) -> str:
        token = self.here
        if (text is not None and token.text != text) or (kind is not None and token.kind != kind):
            raise self.fail(f"expected {text or kind}, found {token.text!r}")
        self.at += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.here.text == text and self.here.kind != "string":
            self.at += 1
            return True
        return False

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        value = number(self.take(kind="number")).value
        if isinstance(value, float):
            raise self.fail("expected an integer")
        return sign * value

    def find(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    # --- operands
    def operand(self) -> Operand:
        item = self.simple()
        if self.accept("|"):
            return Pair(item, self.simple())
        return item

    def simple(self) -> Operand:
        if self.accept("{"):
            return Vector(self.list("}"))
        if self.accept("("):
            return Group(self.list(")"))
        if self.accept("["):
            return self.address()
        if self.accept("!"):
            register = self.find(self.take(kind="word"))
            if register is None:
                raise self.fail("`!` before what is not a register")
            return Negated(register)
        if self.here.kind == "number" or self.here.text in ("-", "+"):
            return self.immediate()
        name = self.take(kind="word")
        register = self.find(name)
        if register is not None:
            return register
        if name == "_":
            return Sink()
        if name.startswith("%"):
            return Special(name)
        for scope in reversed(self.labels):
            if name in scope:
                return Symbol(scope[name])
        offset = self.offset()
        return Symbol(name, offset)

    def immediate(self) -> Immediate:
        negative = self.accept("-")
        if not negative:
            self.accept("+")
        item = number(self.take(kind="number"))
        if not negative:
            return item
        bits = item.bits ^ (1 << (item.width - 1)) if item.width else 0
        return Immediate(-item.value, item.is_float, bits, item.width)

    def list(self, end: str) -> tuple[Operand, ...]:
        items: list[Operand] = []
        while not self.accept(end):
            items.append(self.operand())
            if not self.accept(","):
                self.take(end)
                break
        return tuple(items)

    def offset(self) -> int:
        total = 0
        while self.here.text in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
            total += sign * self.integer()
        return total

    def address(self) -> Address:
        base = self.simple()
        offset = self.offset()
        extra: list[Operand] = []
        while self.accept(","):
            extra.append(self.operand())
        self.take("]")
        if isinstance(base, Symbol):
            return Address(Symbol(base.name), base.offset + offset, tuple(extra))
        return Address(base, offset, tuple(extra))
