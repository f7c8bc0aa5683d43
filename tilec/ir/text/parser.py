"""Parser of the text form of the tile IR: `.tir` text in, a `Function` out, which prints as the same text.

The text has neither names of values nor source locations; both come out empty. The parser checks only syntax, value names
and attributes; `tilec.ir.verifier` checks the function. `ParseError` gives line and column.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from tilec.ir import ops
from tilec.ir.core import (
    OPS,
    Access,
    Block,
    Function,
    Op,
    Parameter,
    Precondition,
    Promise,
    Resident,
    UnsafeBlock,
    Value,
    ValueFact,
)
from tilec.ir.expr import Expr
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import (
    butterfly_ops,
    launch_ops,
    overlapping_ops,
    pair_ops,
    private_ops,
    reduction_ops,
    signal_ops,
    staging_ops,
    store_ops,
    sync_ops,
    take_ops,
    tmem_chain_ops,
    tmem_ops,
)
from tilec.ir.text.tokens import ParseError, Token
from tilec.ir.text.type_reader import TypeReader
from tilec.ir.types import Type

__all__ = ["ParseError", "parse_expr", "parse_function"]

_OP_MODULES: Final = (
    ops, butterfly_ops, launch_ops, overlapping_ops, pair_ops, private_ops, reduction_ops, signal_ops, staging_ops, store_ops,
    sync_ops, take_ops, tmem_chain_ops, tmem_ops,
)  # fmt: skip
"""Importing them fills `OPS`."""
_LITERALS: Final = {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan}


def parse_function(text: str) -> Function:
    """The function that `text` prints."""
    reader = _Reader(text)
    function = reader.function()
    reader.expect_end()
    return function


def parse_expr(text: str) -> Expr:
    """The expression that `text` prints."""
    reader = _Reader(text)
    expr = reader.expr()
    reader.expect_end()
    return expr


class _Reader(TypeReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values: dict[str, Value] = {}

    def function(self) -> Function:
        self.expect("kernel")
        self.expect("@")
        name = self.word("the kernel's name")
        self.expect("(")
        body = Block()
        parameters = self.comma_separated(lambda: self.parameter(body), ")")
        self.expect("{")
        function = Function(name, parameters, body)
        self.header(function)
        body.ops = self.block()
        self.expect("}")
        return function

    def parameter(self, body: Block) -> Parameter:
        token = self.expect_kind("value", "a parameter")
        self.expect(":")
        access = next((member for member in Access if self.skip(member.value)), None)
        type_ = self.type()
        value = body.add_argument(type_, token.text[1:])
        self.name(token, value)
        return Parameter(token.text[1:], value, access)

    def header(self, function: Function) -> None:
        self.expect("constants")
        self.expect("{")
        function.constants = dict(self.comma_separated(self.attribute, "}"))
        self.expect("dims")
        self.expect("[")
        function.dims = tuple(self.comma_separated(lambda: self.word("a dim"), "]"))
        self.expect("strides")
        self.expect("[")
        function.strides = tuple(self.comma_separated(lambda: self.word("a stride"), "]"))
        self.expect("grid")
        function.grid = self.exprs()
        if self.skip("warps"):
            function.num_warps = self.integer()
        if self.skip("cluster"):
            function.cluster = self.integer()
        while self.skip("requires"):
            function.requires = (*function.requires, Precondition(self.expr()))
        while self.skip("values"):
            function.values = (*function.values, self.fact())
        while self.skip("ensures"):
            function.promises = (*function.promises, self.promise())
        while self.skip("resident"):
            tensor = self.expect_kind("value", "a tensor").text[1:]
            function.residents = (*function.residents, Resident(tensor))
        while self.skip("unsafe"):
            reason = self.expect_kind("text", "a reason").text
            function.unsafe = (*function.unsafe, UnsafeBlock(reason))

    def fact(self) -> ValueFact:
        tensor = self.expect_kind("value", "a tensor").text[1:]
        low = self.expr()
        self.expect("..")
        high = self.expr()
        distinct, in_rows, in_order, ends = (self.skip(word) for word in ("distinct", "distinct_in_rows", "sorted", "ends"))
        return ValueFact(tensor, low, high, distinct, sorted=in_order, ends=ends, distinct_in_rows=in_rows)

    def promise(self) -> Promise:
        tensor = self.expect_kind("value", "a tensor").text[1:]
        low = self.expr()
        self.expect("..")
        high = self.expr()
        above: list[str] = []
        if self.skip("above"):
            above.append(self.expect_kind("value", "a tensor").text[1:])
            while self.skip(","):
                above.append(self.expect_kind("value", "a tensor").text[1:])
        distinct, in_rows, in_order = (self.skip(word) for word in ("distinct", "distinct_in_rows", "sorted"))
        return Promise(tensor, low, high, tuple(above), distinct, in_order, distinct_in_rows=in_rows)

    def block(self) -> list[Op]:
        """Operations up to a closing brace."""
        found: list[Op] = []
        while not (self.next_token.text == "}" and self.next_token.kind == "sign") and self.next_token.kind != "end":
            found.append(self.op())
        return found

    def op(self) -> Op:
        results: list[Token] = []
        if self.next_token.kind == "value":
            results.append(self.take())
            while self.skip(","):
                results.append(self.expect_kind("value", "a result"))
            self.expect("=")
        token = self.next_token
        opcode = self.word("an operation")
        if opcode not in OPS:
            raise self.error(f"unknown operation `{opcode}`", token)
        operands = self.operands(token.line)
        attributes = self.attributes(OPS[opcode], token)
        op = OPS[opcode](operands=operands, **attributes)
        types = self.result_types(len(results), token)
        if self.next_token.text == "{" and self.next_token.line == self.tokens[self.position - 1].line:
            op.regions = self.regions()
        for name, (type_, layout) in zip(results, types, strict=True):
            value = Value(type_, "", op, layout)
            op.results.append(value)
            self.name(name, value)
        return op

    def operands(self, line: int) -> list[Value]:
        """Values on the line of the opcode; results may begin the next line."""
        found: list[Value] = []
        while self.next_token.kind == "value" and self.next_token.line == line:
            token = self.take()
            if token.text not in self.values:
                raise self.error(f"`{token.text}` is used before it is defined", token)
            found.append(self.values[token.text])
            if not self.skip(","):
                break
        return found

    def attributes(self, op_class: type[Op], at: Token) -> dict[str, Any]:
        following = self.tokens[self.position + 1 : self.position + 3]
        found: dict[str, Any] = {}
        if (
            self.next_token.text == "{"
            and [t.kind for t in following[:1]] == ["word"]
            and [t.text for t in following[1:]] == ["="]
        ):
            self.take()
            found = dict(self.comma_separated(self.attribute, "}"))
        types = _attribute_types(op_class)
        for name, value in found.items():
            if name not in types:
                raise self.error(f"`{op_class.opcode}` has no attribute `{name}`", at)
            if not _fits(value, types[name]):
                raise self.error(f"attribute `{name}` cannot be {value!r}", at)
        missing = sorted(_required(op_class) - found.keys())
        if missing:
            raise self.error(f"`{op_class.opcode}` lacks the attribute `{missing[0]}`", at)
        return found

    def attribute(self) -> tuple[str, Any]:
        name = self.word("an attribute")
        self.expect("=")
        return name, self.attribute_value()

    def attribute_value(self) -> Any:
        token = self.take()
        if token.kind == "text":
            return token.text
        if token.kind == "float":
            try:
                return float.fromhex(token.text)
            except OverflowError:
                raise self.error("no float is that large", token) from None
        if token.text == "-":
            following = self.next_token
            value = None if following.text in ("-", "[") else self.attribute_value()
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.error(f"expected a number, found {following.description}", following)
            return -value
        if token.kind == "integer":
            return int(token.text)
        if token.text == "[":
            with self.nested():
                return tuple(self.comma_separated(self.attribute_value, "]"))
        if token.kind == "word" and token.text in _LITERALS:
            return _LITERALS[token.text]
        raise self.error(f"expected an attribute's value, found {token.description}", token)

    def result_types(self, count: int, at: Token) -> list[tuple[Type, Layout | None]]:
        if not count:
            return []
        self.expect(":")
        types = [self.type_and_layout()]
        while self.skip(","):
            types.append(self.type_and_layout())
        if len(types) != count:
            raise self.error(f"{count} results have {len(types)} types", at)
        return types

    def regions(self) -> list[Block]:
        self.expect("{")
        with self.nested():
            found = [self.region()]
            while self.skip("{"):
                found.append(self.region())
        return found

    def region(self) -> Block:
        """A region including its closing brace; names defined inside go out of scope."""
        outer_count = len(self.values)
        block = Block()
        if self.skip("^"):
            self.expect("(")
            self.comma_separated(lambda: self.argument(block), ")")
        block.ops = self.block()
        self.expect("}")
        while len(self.values) > outer_count:  # names are only ever added, so the last ones are the region's
            self.values.popitem()
        return block

    def argument(self, block: Block) -> None:
        token = self.expect_kind("value", "an argument")
        self.expect(":")
        type_, layout = self.type_and_layout()
        value = block.add_argument(type_)
        value.layout = layout
        self.name(token, value)

    def name(self, token: Token, value: Value) -> None:
        if token.text in self.values:
            raise self.error(f"`{token.text}` is defined twice", token)
        self.values[token.text] = value


@cache
def _attribute_types(op_class: type[Op]) -> dict[str, tuple[Any, ...]]:
    """Attributes of an operation, each with its allowed types."""
    structure = {f.name for f in fields(Op)}
    hints = get_type_hints(op_class)
    names = [f.name for f in fields(op_class) if f.name not in structure]
    return {name: get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],) for name in names}


@cache
def _required(op_class: type[Op]) -> frozenset[str]:
    """Attributes without a default."""
    return frozenset(f.name for f in fields(op_class) if f.default is MISSING and f.default_factory is MISSING)


def _fits(value: Any, options: tuple[Any, ...]) -> bool:
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return any(tuple[kind, ...] in options and all(type(item) is kind for item in items) for kind in (int, str, bool))
    return type(value) in options or (type(value) is int and float in options)
