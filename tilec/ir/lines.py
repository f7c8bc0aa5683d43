"""Which line of its text every operation of a function stands on, and which place in the source that line came from.

In: a function as the frontend made it. Out: line numbers of `print_function`'s text. Lowered code names those lines and never
the source's, so that an edit which changes no tile IR (a comment) changes no code; a table beside the text leads from its
lines to the source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tilec.diagnostics import Span
from tilec.ir.core import Block, Function, Op
from tilec.ir.printer import print_function

TEXT_NAME = "KERNEL.tir"
"""What lowered code calls the text, whatever the kernel and wherever it lies."""
PLAIN: Final = 1
REPLICATED: Final = 2
"""Columns of the places that lowered code names. Threads that a store in the second has write to one place, in no order, bring
the same value, since they hold the same elements; of any other store nobody says so."""


@dataclass(frozen=True, slots=True)
class NumberedSpan(Span):
    """A place in the source, and the line of the text that stands for it (1-based)."""

    text_line: int = 0


def line_numbers(function: Function) -> dict[Op, int]:
    """The line of every operation in `print_function(function)`, 1-based."""
    text = print_function(function).split("\n")
    # The text ends in the body, a closing brace and an empty piece; what is before the body is the head.
    first = len(text) - 2 - sum(_height(op) for op in function.body.ops) + 1
    found: dict[Op, int] = {}
    _number(function.body, first, found)
    return found


def _height(op: Op) -> int:
    """Lines that an operation takes: regions are parted by a line each, and their arguments have one of their own."""
    if not op.regions:
        return 1
    inner = sum(bool(region.arguments) + sum(map(_height, region.ops)) for region in op.regions)
    return 1 + inner + len(op.regions)


def _number(block: Block, line: int, found: dict[Op, int]) -> None:
    for op in block.ops:
        found[op] = line
        inside = line
        for region in op.regions:
            inside += 1 + bool(region.arguments)
            _number(region, inside, found)
            inside += sum(map(_height, region.ops))
        line += _height(op)


def number_lines(function: Function) -> None:
    """Give the span of every operation its line, in place; one that knows no place in the source stands at its line of the
    text. Passes hand spans on, so what they make of an operation keeps it."""
    for op, line in line_numbers(function).items():
        at = op.loc or Span(TEXT_NAME, line, 0, line, 0)
        op.loc = NumberedSpan(at.file, at.line, at.column, at.end_line, at.end_column, line)


def text_line(op: Op) -> int:
    """The line that an operation of a numbered function came from; 0 where it came from none."""
    return op.loc.text_line if isinstance(op.loc, NumberedSpan) else 0


def source_of(spans: bytes, line: int) -> Span | None:
    """Where in the source a line of the text came from, by the table of `tilec.ir.spans` as bytes; None for a line that
    stands for no place."""
    found = json.loads(spans)["lines"].get(str(line))
    return Span(*found) if found else None
