"""Source spans and names of values, which the text of a function omits, for messages.

In: a function from the frontend. Out: a JSON table stored next to its text. `attach` restores it on the function that
`tilec.ir.text.parser` reads from the text. Nothing in the table affects a proof or the generated code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from tilec.diagnostics.diagnostic import Span
from tilec.ir.core import Function, Op, Precondition, Promise, Resident, UnsafeBlock, ValueFact
from tilec.ir.text.lines import line_numbers

Row = list[int | str] | None
Part = TypeVar("Part", Precondition, ValueFact, Promise, Resident, UnsafeBlock)


def spans_json(function: Function) -> dict[str, Any]:
    """`lines`: line of the text -> file, line, column, end line, end column (columns 0-based); `names`: line -> names of the
    operation's results, then of each region's arguments; spans of the head's parts in their order."""
    numbered = line_numbers(function)
    names = {str(line): _names(op) for op, line in numbered.items()}
    return {
        "lines": {str(line): _row(op.loc) for op, line in numbered.items() if op.loc is not None},
        "names": {line: found for line, found in names.items() if any(any(group) for group in found)},
        "function": _row(function.loc),
        "parameters": [_row(parameter.loc) for parameter in function.parameters],
        "requires": [_row(condition.loc) for condition in function.requires],
        "values": [_row(fact.loc) for fact in function.values],
        "promises": [_row(one.loc) for one in function.promises],
        "residents": [_row(one.loc) for one in function.residents],
        "unsafe": [_row(block.loc) for block in function.unsafe],
    }


def attach(function: Function, spans: dict[str, Any]) -> Function:
    """Set names and spans of a function that was read from its text, in place."""
    for op, line in line_numbers(function).items():
        op.loc = _span(spans["lines"].get(str(line)))
        groups = [op.results, *(region.arguments for region in op.regions)]
        for values, names in zip(groups, spans["names"].get(str(line), ()), strict=False):
            for value, name in zip(values, names, strict=True):
                value.name = name
    function.loc = _span(spans["function"])
    for parameter, row in zip(function.parameters, spans["parameters"], strict=True):
        parameter.loc = _span(row)
    function.requires = _with_spans(function.requires, spans["requires"])
    function.values = _with_spans(function.values, spans["values"])
    function.promises = _with_spans(function.promises, spans["promises"])
    function.residents = _with_spans(function.residents, spans["residents"])
    function.unsafe = _with_spans(function.unsafe, spans["unsafe"])
    return function


def _names(op: Op) -> list[list[str]]:
    return [[value.name for value in group] for group in (op.results, *(region.arguments for region in op.regions))]


def _with_spans(parts: tuple[Part, ...], rows: Sequence[Row]) -> tuple[Part, ...]:
    return tuple(dataclasses.replace(part, loc=_span(row)) for part, row in zip(parts, rows, strict=True))


def _row(span: Span | None) -> Row:
    return None if span is None else [span.file, span.line, span.column, span.end_line, span.end_column]


def _span(row: Row) -> Span | None:
    return None if row is None else Span(*row)  # pyright: ignore[reportArgumentType]
