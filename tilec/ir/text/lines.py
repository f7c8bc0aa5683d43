"""The line of every operation in the text of a function, and the source location that the line came from.

In: a function from the frontend. Out: line numbers of `print_function`'s text. Lowered code refers to those lines, not to
the source, so that an edit that changes no tile IR (a comment) changes no code; a table next to the text maps its lines to
the source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tilec.diagnostics.diagnostic import Span
from tilec.ir.core import Block, Function, Op
from tilec.ir.text.printer import print_function

TEXT_NAME = "KERNEL.tir"
"""File name of the text in lowered code, for every kernel."""
PLAIN: Final = 1
REPLICATED: Final = 2
"""Columns of the locations in lowered code. A store in column `REPLICATED` may be executed by several threads for one address,
in any order, with the same value, because the element is replicated. No other store makes this statement."""


@dataclass(frozen=True, slots=True)
class NumberedSpan(Span):
    """A source location, and the line of the text that represents it (1-based)."""

    text_line: int = 0


def line_numbers(function: Function) -> dict[Op, int]:
    """The line of every operation in `print_function(function)`, 1-based."""
    text = print_function(function).split("\n")
    # The text ends in the body, a closing brace and an empty piece; the head is before the body.
    first = len(text) - 2 - sum(_height(op) for op in function.body.ops) + 1
    found: dict[Op, int] = {}
    _number(function.body, first, found)
    return found


def _height(op: Op) -> int:
    """Lines of an operation: a line separates regions, and each region's arguments have a line of their own."""
    if not op.regions:
        return 1
    inner = sum(bool(region.arguments) + sum(map(_height, region.ops)) for region in op.regions)
    return 1 + inner + len(op.regions)


def _number(block: Block, line: int, found: dict[Op, int]) -> None:
    for op in block.ops:
        found[op] = line
        inner_line = line
        for region in op.regions:
            inner_line += 1 + bool(region.arguments)
            _number(region, inner_line, found)
            inner_line += sum(map(_height, region.ops))
        line += _height(op)


def number_lines(function: Function) -> None:
    """Set the text line in the span of every operation, in place; an operation without a source location gets its line of the
    text. Passes copy spans, so the operations they derive keep the line."""
    for op, line in line_numbers(function).items():
        span = op.loc or Span(TEXT_NAME, line, 0, line, 0)
        op.loc = NumberedSpan(span.file, span.line, span.column, span.end_line, span.end_column, line)


def text_line(op: Op) -> int:
    """The line of an operation of a numbered function; 0 if it has none."""
    return op.loc.text_line if isinstance(op.loc, NumberedSpan) else 0


def source_of(spans: bytes, line: int) -> Span | None:
    """Source location of a line of the text, by the table of `tilec.ir.text.spans` as bytes; None for a line without one."""
    row = json.loads(spans)["lines"].get(str(line))
    return Span(*row) if row else None
