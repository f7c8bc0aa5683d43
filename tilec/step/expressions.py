"""Expressions of a step's text: takes Python's syntax tree, returns a function of named values.

Allowed are numbers, names, `previous.NAME`, extents of tensors (`out[0]`), strings, `+ - * // %`, comparisons, `and or not`,
`a if b else c`, and `cdiv`, `min`, `max`, `rsqrt`: nothing that could run for long or have side effects. Integers are bounded,
because the text is untrusted input.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilec.ir.expr import ARITHMETIC, COMPARISONS
from tilec.step import parsing

Evaluate = Callable[[Mapping[str, Any]], Any]

PREVIOUS: Final = "previous."
"""Begins a name that is asked of the layer before."""

LARGEST: Final = 1 << 62
"""Exclusive bound on the magnitude of integers in an expression."""

MAX_DEPTH: Final = 50
MAX_TEXT: Final = 500

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: ARITHMETIC["+"], ast.Sub: ARITHMETIC["-"], ast.Mult: ARITHMETIC["*"], ast.FloorDiv: ARITHMETIC["//"],
    ast.Mod: ARITHMETIC["%"],
}  # fmt: skip
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: COMPARISONS["=="], ast.NotEq: COMPARISONS["!="], ast.Lt: COMPARISONS["<"], ast.LtE: COMPARISONS["<="],
    ast.Gt: COMPARISONS[">"], ast.GtE: COMPARISONS[">="],
}  # fmt: skip


def _cdiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _rsqrt(a: Any) -> Any:
    return a**-0.5


_FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "cdiv": (2, _cdiv), "min": (2, min), "max": (2, max), "rsqrt": (1, _rsqrt),
}  # fmt: skip


def parse(text: str) -> Expression:
    """The expression in a text of at most `MAX_TEXT` characters; StepError if it is not one."""
    try:
        node = parsing.term(text) if len(text) <= MAX_TEXT else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if node is None:
        raise StepError(f"`{text:.60}` is no expression")
    return expression(node)


class StepError(ValueError):
    """An invalid step text or value; `line` (from 1) and `column` (from 0) locate it in the text, or are 0."""

    def __init__(self, what: str, node: ast.AST | None = None) -> None:
        super().__init__(what)
        self.line = getattr(node, "lineno", 0)
        self.column = getattr(node, "col_offset", 0)
        self.end = getattr(node, "end_col_offset", 0) if getattr(node, "end_lineno", 0) == self.line else self.column + 1


@dataclass(frozen=True, slots=True)
class Expression:
    """A function of the values of `names`; `node` is its location."""

    evaluate: Evaluate
    names: frozenset[str]
    node: ast.expr

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilt from its node in a worker: closures cannot be pickled."""
        return expression, (self.node,)

    def value(self, values: Mapping[str, Any]) -> Any:
        """The value; StepError for an undefined name, a zero divisor, or a number that is too large."""
        try:
            return self.evaluate(values)
        except KeyError as error:
            raise StepError(f"there is no number `{error.args[0]}`", self.node) from None
        except ZeroDivisionError:
            raise StepError(f"divides by zero in `{ast.unparse(self.node)}`", self.node) from None
        except (TypeError, OverflowError):
            raise StepError(f"`{ast.unparse(self.node)}` has no value", self.node) from None


def divisors(node: ast.expr, extent: str) -> frozenset[str] | None:
    """The names by which an extent such as `out[0]` is divided with `cdiv`; None if the extent is also used in another way."""
    found: set[str] = set()
    uses = [child for child in ast.walk(node) if isinstance(child, ast.Subscript) and ast.unparse(child) == extent]
    for child in ast.walk(node):
        match child:
            case ast.Call(func=ast.Name(id="cdiv"), args=[ast.Subscript() as first, ast.Name(id=name)]) if first in uses:
                uses.remove(first)
                found.add(name)
            case _:
                pass
    return frozenset(found) if not uses else None


def expression(node: ast.expr) -> Expression:
    """The expression of a node; StepError if it is not one."""
    names: set[str] = set()
    return Expression(_evaluator(node, names, MAX_DEPTH), frozenset(names), node)


def _evaluator(node: ast.expr, names: set[str], depth: int) -> Evaluate:
    """The evaluation function of a node; adds its names to `names`."""
    if depth == 0:
        raise StepError("an expression is nested too deeply", node)

    def part(child: ast.expr) -> Evaluate:
        return _evaluator(child, names, depth - 1)

    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value) if _bounded(value):
            return lambda _: value
        case ast.Name(id=name):
            names.add(name)
            return lambda values: values[name]
        case ast.Attribute(value=ast.Name(id="previous"), attr=attribute):
            name = f"{PREVIOUS}{attribute}"
            names.add(name)
            return lambda values: values[name]
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as axis)):
            extent = f"{name}[{axis}]"
            names.add(extent)
            return lambda values: values[extent]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            operand_value = part(operand)
            return lambda values: not operand_value(values)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            apply, left, right = _ARITHMETIC[type(op)], part(node.left), part(node.right)
            return lambda values: _number(apply(*_operands(left(values), right(values))))
        case ast.Compare(ops=[op], comparators=[other]) if type(op) in _COMPARISONS:
            compare, left, right = _COMPARISONS[type(op)], part(node.left), part(other)
            return lambda values: compare(left(values), right(values))
        case ast.BoolOp(op=op):
            parts, is_and = [part(item) for item in node.values], isinstance(op, ast.And)
            return lambda values: (all if is_and else any)(item(values) for item in parts)
        case ast.IfExp():
            test, if_true, if_false = part(node.test), part(node.body), part(node.orelse)
            return lambda values: if_true(values) if test(values) else if_false(values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if len(args) == _FUNCTIONS.get(name, (0, None))[0] > 0:
            call, arguments = _FUNCTIONS[name][1], [part(item) for item in args]
            return lambda values: _number(call(*_operands(*(item(values) for item in arguments))))
        case _:
            raise StepError(f"`{_shown(node)}` is no expression over the numbers of a model and its step", node)


def _bounded(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) < LARGEST


def _operands(*values: Any) -> tuple[Any, ...]:
    """The values; TypeError if one is not a number. Python also repeats and formats strings with `*` and `%`, to any length."""
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError
    return values


def _number(value: Any) -> Any:
    """The result itself; OverflowError if it is not a number below `LARGEST`, so that no intermediate value can grow without
    bound."""
    if not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise OverflowError
    return value


def _shown(node: ast.expr) -> str:
    return f"{ast.unparse(node):.60}" if not isinstance(node, ast.Constant) else f"{node.value!r:.60}"
