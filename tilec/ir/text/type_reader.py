"""Parser of everything below operations in the tile IR's text form: signs, expressions, types and layouts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

from tilec.ir.expr import COMPARISONS, Expr, const, sym
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.text.tokens import ParseError, Token, tokenize
from tilec.ir.types import (
    DTYPES,
    PACKED,
    DType,
    RingType,
    ScratchType,
    SharedType,
    TensorType,
    TileType,
    TmemSpaceType,
    TmemType,
    Type,
    u8,
)
from tilec.target.families import MemorySpace

PRECEDENCE_LEVELS: Final = (("or",), ("and",), tuple(COMPARISONS), ("+", "-"), ("*", "//", "%"))
"""Binary operators from the loosest to the tightest."""

MAX_DEPTH: Final = 64
"""Deepest nesting of parentheses, brackets or regions that the parser accepts."""

MAX_OPERATORS: Final = 256
"""Most operators in one expression, so that no later walk over the tree recurses too deep."""

_COUNTED: Final = {"scratch": ScratchType, "ring": RingType, "tmem_space": TmemSpaceType}
"""Types that are a number in angle brackets."""

T = TypeVar("T")


class TypeReader:
    """A position in the tokens of a text, with methods that parse signs, expressions, types and layouts from there."""

    def __init__(self, text: str) -> None:
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0
        self.operators = 0

    @property
    def next_token(self) -> Token:
        return self.tokens[self.position]

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """The error to raise at a token, the next one by default."""
        token = token or self.next_token
        return ParseError(message, token.line, token.column)

    def take(self) -> Token:
        """Consume the next token and return it."""
        token = self.next_token
        if token.kind != "end":
            self.position += 1
        return token

    def skip(self, text: str) -> bool:
        """Consume `text` if it is next."""
        if self.next_token.text == text and self.next_token.kind in ("sign", "word"):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Consume `text`, which must be next."""
        token = self.next_token
        if not self.skip(text):
            raise self.error(f"expected `{text}`, found {token.description}")
        return token

    def expect_kind(self, kind: str, expected: str) -> Token:
        """Consume a token of a kind; `expected` names it in the error."""
        if self.next_token.kind != kind:
            raise self.error(f"expected {expected}, found {self.next_token.description}")
        return self.take()

    def expect_end(self) -> None:
        """ParseError unless the text ends here."""
        self.expect_kind("end", "the end of the text")

    def word(self, expected: str) -> str:
        """Consume a word."""
        return self.expect_kind("word", expected).text

    def integer(self, expected: str = "an integer") -> int:
        """Consume an integer and its sign."""
        sign = -1 if self.skip("-") else 1
        return sign * int(self.expect_kind("integer", expected).text)

    def comma_separated(self, item: Callable[[], T], close: str) -> list[T]:
        """Items separated by commas, up to `close`."""
        items: list[T] = []
        while not self.skip(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    @contextmanager
    def nested(self) -> Generator[None]:
        """One level deeper, for recursive syntax."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"this nests more than {MAX_DEPTH} deep")
        yield
        self.depth -= 1

    def expr(self) -> Expr:
        """An expression of at most `MAX_OPERATORS` operators, those in parentheses included."""
        self.operators = 0
        return self.binary_expr(0)

    def binary_expr(self, level: int) -> Expr:
        """Operators of one level, left-associative."""
        if level == len(PRECEDENCE_LEVELS):
            return self.primary()
        left = self.binary_expr(level + 1)
        while self.next_token.text in PRECEDENCE_LEVELS[level] and self.next_token.kind in ("sign", "word"):
            op = self.take().text
            self.operators += 1
            if self.operators > MAX_OPERATORS:
                raise self.error(f"an expression has at most {MAX_OPERATORS} operators")
            left = Expr(op, (left, self.binary_expr(level + 1)))
        return left

    def primary(self) -> Expr:
        if self.next_token.kind == "integer" or self.next_token.text == "-":
            return const(self.integer())
        with self.nested():
            if self.skip("("):
                inner = self.binary_expr(0)
                self.expect(")")
                return inner
            name = self.word("an expression")
            if name in ("min", "max") and self.skip("("):
                left = self.binary_expr(0)
                self.expect(",")
                right = self.binary_expr(0)
                self.expect(")")
                return Expr(name, (left, right))
            return sym(name)

    def exprs(self) -> tuple[Expr, ...]:
        """Expressions in brackets."""
        self.expect("[")
        return tuple(self.comma_separated(self.expr, "]"))

    def type(self) -> Type:
        """Any type."""
        if self.skip("tensor"):
            return self.tensor_type()
        if self.skip("shared"):
            return self.shared_type()
        if self.skip("tmem"):
            return TmemType(*self.buffer_type())
        if self.next_token.text in _COUNTED:
            return _COUNTED[self.take().text](self.bracketed_integer())
        return self.tile_type()

    def dtype(self) -> DType:
        token = self.next_token
        name = self.word("a dtype")
        if name not in DTYPES:
            raise self.error(f"unknown dtype `{name}`", token)
        return DTYPES[name]

    def tile_type(self) -> TileType:
        dtype = self.dtype()
        shape = tuple(self.comma_separated(self.integer, "]")) if self.skip("[") else ()
        return TileType(dtype, shape)

    def tensor_type(self) -> TensorType:
        self.expect("<")
        dtype = self.dtype()
        self.expect(",")
        dims = self.exprs()
        self.expect(",")
        strides = None
        if self.skip("strides"):
            strides = self.exprs()
            self.expect(",")
        self.expect("align")
        align = self.integer()
        packed = self.packed_dtype(dtype) if self.skip(",") else None
        self.expect(">")
        return TensorType(dtype, dims, strides, align, packed)

    def packed_dtype(self, bytes_: DType) -> DType:
        """What the bytes of a tensor have two of."""
        self.expect("packed")
        token = self.next_token
        name = self.word("a packed dtype")
        if name not in PACKED or bytes_ != u8:
            raise self.error(f"{bytes_} has no two elements of `{name}`", token)
        return PACKED[name]

    def shared_type(self) -> SharedType:
        dtype, shape, stages = self.buffer_type(close=False)
        swizzle_atoms = 1
        if self.skip(","):
            self.expect("swizzle_atoms")
            swizzle_atoms = self.integer()
        self.expect(">")
        return SharedType(dtype, shape, stages, swizzle_atoms)

    def buffer_type(self, close: bool = True) -> tuple[DType, tuple[int, int], int]:
        """Dtype, shape and stages of a ring's matrices; `close`: nothing may follow them."""
        self.expect("<")
        dtype = self.dtype()
        self.expect(",")
        self.expect("[")
        rows = self.integer()
        self.expect(",")
        columns = self.integer()
        self.expect("]")
        self.expect(",")
        self.expect("stages")
        stages = self.integer()
        if close:
            self.expect(">")
        return dtype, (rows, columns), stages

    def bracketed_integer(self) -> int:
        """A number in angle brackets."""
        self.expect("<")
        count = self.integer()
        self.expect(">")
        return count

    def type_and_layout(self) -> tuple[Type, Layout | None]:
        """A type and the layout that may follow it."""
        type_ = self.type()
        if not isinstance(type_, TileType) or not self.skip("<"):
            return type_, None
        registers, lanes, warps = self.digits("|"), self.digits("|"), self.digits(">")
        return type_, Layout(type_.rank, registers, lanes, warps, self.memory_space())

    def memory_space(self) -> MemorySpace:
        """The memory space after a layout's digits; none is written for registers."""
        if not self.skip("in"):
            return MemorySpace.REGISTERS
        token = self.take()
        for space in MemorySpace:
            if space.value == token.text and space is not MemorySpace.REGISTERS:
                return space
        raise self.error(f"expected a memory space, found {token.description}", token)

    def digits(self, close: str) -> tuple[Digit, ...]:
        digits: list[Digit] = []
        while not self.skip(close):
            extent = self.integer("a digit of a layout")
            if self.skip("@"):
                axis = self.integer()
                self.expect("*")
                digits.append(Digit(extent, axis, self.integer()))
            else:
                digits.append(Digit(extent))
        return () if digits == [Digit(1)] else tuple(digits)
