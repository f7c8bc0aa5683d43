"""What an extent of a signature may name: integers of the module, and the dims that extents determine at launch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tilec.frontend.module import ModuleConstant
from tilec.ir.expr import Expr

_DEPTH: Final = 32
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_LARGEST: Final = 1 << 64


def module_integer(constant: ModuleConstant) -> int | None:
    """The value of `NAME = expression` if it is an integer of 64 bits, from literals and other such names; else None."""
    known: dict[ast.expr, int | None] = {}  # without it, `A = B + B`, `B = C + C`, ... would take exponential time

    def value(node: ast.expr, depth: int) -> int | None:
        if node not in known:
            known[node] = computed(node, depth)
        return known[node]

    def computed(node: ast.expr, depth: int) -> int | None:
        if isinstance(node, ast.Constant):
            return _limited(node.value) if isinstance(node.value, int) and not isinstance(node.value, bool) else None
        if isinstance(node, ast.Name) and depth < _DEPTH:
            other = constant.module.names.get(node.id)
            return value(other.node, depth + 1) if isinstance(other, ModuleConstant) else None
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = value(node.left, depth), value(node.right, depth)
            if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv | ast.Mod)):
                return None
            return _limited(_ARITHMETIC[type(node.op)](left, right))
        return None

    return value(constant.node, 0)


def _limited(number: int) -> int | None:
    return number if abs(number) < _LARGEST else None


def determined(extents: Iterable[Expr], given: Collection[str]) -> set[str]:
    """Symbols whose values a launch can find from `given` scalars and the values of `extents`: as `tilec.runtime.dims` does, by
    inverting `+`, `-` and `*` with one unknown."""
    known, pending = set(given), list(extents)
    while True:
        found = {name for expr in pending if (name := _unknown(expr, known)) is not None}
        if not found:
            return known
        known |= found


def _unknown(expr: Expr, known: set[str]) -> str | None:
    """The only unknown symbol of an expression that can be inverted for it; None if there is none, or several."""
    if expr.op == "sym":
        return expr.name if expr.name not in known else None
    if expr.op not in ("+", "-", "*"):
        return None
    left, right = (all(name in known for name in arg.symbols()) for arg in expr.args)
    return None if left == right else _unknown(expr.args[1 if left else 0], known)
