"""Host expressions: the arguments of `grid`, `requires` and `values`, evaluated at launch.

They may use dims, constants, integer scalar parameters, and names that the kernel computes from those alone.
"""

from __future__ import annotations

import ast
from typing import Final

from tilec.frontend.arithmetic import COMPARE
from tilec.frontend.emitter import At
from tilec.frontend.expressions import expression
from tilec.frontend.module import DimName, word_of
from tilec.frontend.scope import Scope
from tilec.ir.core import Block, Value
from tilec.ir.expr import COMPARISONS, Expr, binary, cdiv, const, sym
from tilec.untrusted.limits import MAX_HOST_DEPTH, MAX_HOST_SIZE

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_SYMBOL: Final[dict[str, str]] = dict(zip(("eq", "ne", "lt", "le", "gt", "ge"), COMPARISONS, strict=True))
_INVERSE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_CALLS: Final = {"min": "min", "max": "max", "minimum": "min", "maximum": "max"}


def host_expr(scope: Scope, node: ast.expr) -> Expr:
    """An integer expression over launch values; E0215."""
    at = scope.at(node)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = host_expr(scope, node.left), host_expr(scope, node.right)
        symbol = _ARITHMETIC[type(node.op)]
        if symbol in ("//", "%") and right.constant == 0:
            raise at.error("E0205", "division by zero", hint="the divisor is 0 for these constants")
        return _bounded(binary(symbol, left, right), at)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _bounded(binary("-", const(0), host_expr(scope, node.operand)), at)
    if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 2:
        name = _called(scope, node.func)
        if name == "cdiv":
            divisor = host_expr(scope, node.args[1])
            if divisor.constant is not None and divisor.constant < 1:
                raise at.error("E0205", f"`cdiv` by {divisor.constant}", hint="the divisor is positive")
            return _bounded(cdiv(host_expr(scope, node.args[0]), divisor), at)
        if name in _CALLS:
            return _bounded(binary(_CALLS[name], host_expr(scope, node.args[0]), host_expr(scope, node.args[1])), at)
    dim = scope.module.names.get(node.id) if isinstance(node, ast.Name) and node.id not in scope.locals else None
    if isinstance(dim, DimName) and isinstance(node, ast.Name) and node.id not in scope.env:
        symbolic = dim.name in scope.signature.dims
        return sym(dim.name) if symbolic else scope.emitter.host(scope.dim(dim.name, at)) or const(0)
    # Everything else is a name or a constant expression; the operations it emits are discarded.
    with scope.emitter.into(Block()):
        term = expression(scope, node)
    known = scope.emitter.host(term)
    if isinstance(term, Value) and not term.tile.rank and term.tile.dtype.is_float:
        raise at.error("E0215", f"the host computes with integers, and this is {term.tile.dtype.name}",
                hint="check it in the caller, or handle it in the kernel")  # fmt: skip
    if known is None:
        raise at.error("E0215", "the host does not know this value at launch",
                hint="use dims, constants and integer parameters with `+ - * // % min max cdiv`")  # fmt: skip
    return known


def _bounded(expr: Expr, at: At) -> Expr:
    """The expression itself if manifests and the launcher accept its size; E0512."""
    if expr.depth <= MAX_HOST_DEPTH and expr.size <= MAX_HOST_SIZE:
        return expr
    message = f"a launch expression is nested {expr.depth} deep and has {expr.size} parts"
    hint = f"at most {MAX_HOST_DEPTH} deep and {MAX_HOST_SIZE} parts: state conditions in several `requires(...)`"
    raise at.error("E0512", message, hint=hint)


def predicate(scope: Scope, node: ast.expr) -> Expr:
    """A predicate over launch values; E0215."""
    if isinstance(node, ast.BoolOp):
        name = "and" if isinstance(node.op, ast.And) else "or"
        result = predicate(scope, node.values[0])
        for value in node.values[1:]:
            result = _bounded(binary(name, result, predicate(scope, value)), scope.at(value))
        return result
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _inverted(predicate(scope, node.operand))
    if isinstance(node, ast.Compare) and all(type(op) in COMPARE for op in node.ops):
        operands = [host_expr(scope, operand) for operand in (node.left, *node.comparators)]
        parts = [binary(_SYMBOL[COMPARE[type(op)]], operands[i], operands[i + 1]) for i, op in enumerate(node.ops)]
        result = parts[0]
        for part in parts[1:]:
            result = _bounded(binary("and", result, part), scope.at(node))
        return result
    term = expression(scope, node) if isinstance(node, ast.Name | ast.Constant) else None
    if isinstance(term, bool):
        return const(int(term))
    raise scope.at(node).error("E0215", "the condition is not a predicate over launch values",
                        hint="compare integers, such as `N % 8 == 0`; join with `and`, `or`")  # fmt: skip


def _inverted(condition: Expr) -> Expr:
    if condition.constant is not None:
        return const(int(not condition.constant))
    if condition.op in _INVERSE:
        return binary(_INVERSE[condition.op], *condition.args)
    return binary("or" if condition.op == "and" else "and", *(_inverted(arg) for arg in condition.args))


def _called(scope: Scope, node: ast.expr) -> str:
    """Name of the word or builtin that a call refers to, without its module."""
    if isinstance(node, ast.Name) and node.id in scope.env:
        return ""
    word = word_of(scope.module, node)
    if word is None and isinstance(node, ast.Name) and node.id in ("min", "max") and node.id not in scope.module.names:
        return node.id
    return word or ""
