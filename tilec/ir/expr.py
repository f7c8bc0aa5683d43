"""Integer expressions and predicates over launch values (symbolic dims, strides and integer scalars).

They describe what the host knows at launch: tensor dims, the grid, preconditions and launch checks. The compiler reasons
about them, the manifest stores them as nested JSON lists, and the launcher evaluates them, so of the project this module
imports only `tilec.untrusted.limits`. Division and modulo round toward minus infinity, as in Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.untrusted.limits import MAX_NAME

ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,  # pyright: ignore[reportUnknownMemberType]
    "%": operator.mod,
    "min": min,
    "max": max,
}
COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CONNECTIVES: Final[dict[str, Callable[[int, int], bool]]] = {
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
}
OPERATORS: Final = ARITHMETIC | COMPARISONS | CONNECTIVES
_PRECEDENCE: Final = {"or": 1, "and": 2} | dict.fromkeys(COMPARISONS, 3) | {"+": 4, "-": 4, "*": 5, "//": 5, "%": 5}


@dataclass(frozen=True, slots=True)
class Expr:
    """A tree: `op` is "const" (with `value`), "sym" (with `name`) or a key of `OPERATORS` (with two `args`)."""

    op: str
    args: tuple[Expr, ...] = ()
    value: int = 0
    name: str = ""
    size: int = field(default=1, init=False, compare=False, repr=False)
    """Number of nodes of the tree."""
    depth: int = field(default=0, init=False, compare=False, repr=False)
    """Operators from the root to the deepest leaf."""

    def __post_init__(self) -> None:
        if self.args:
            object.__setattr__(self, "size", 1 + sum(arg.size for arg in self.args))
            object.__setattr__(self, "depth", 1 + max(arg.depth for arg in self.args))

    @property
    def constant(self) -> int | None:
        """The value of a constant, else None."""
        return self.value if self.op == "const" else None

    def __str__(self) -> str:
        return _text(self, 0)

    def symbols(self) -> Iterator[str]:
        """Names used, left to right, repeats included."""
        if self.op == "sym":
            yield self.name
        for arg in self.args:
            yield from arg.symbols()

    def evaluate(self, env: Mapping[str, int]) -> int:
        """Value under `env`; KeyError names a missing symbol, ZeroDivisionError a zero divisor."""
        if self.op == "sym":
            return env[self.name]
        if self.op == "const":
            return self.value
        left, right = self.args
        if self.op == "and":
            return int(bool(left.evaluate(env)) and bool(right.evaluate(env)))
        if self.op == "or":
            return int(bool(left.evaluate(env)) or bool(right.evaluate(env)))
        a = env[left.name] if left.op == "sym" else left.evaluate(env) if left.args else left.value
        b = env[right.name] if right.op == "sym" else right.evaluate(env) if right.args else right.value
        return int(OPERATORS[self.op](a, b))

    def to_json(self) -> Any:
        """An int, a string (symbol) or a list `[op, left, right]`."""
        if self.op == "const":
            return self.value
        if self.op == "sym":
            return self.name
        return [self.op, *(arg.to_json() for arg in self.args)]


def const(value: int) -> Expr:
    """A constant."""
    return Expr("const", value=value)


def sym(name: str) -> Expr:
    """A symbolic dim, stride or integer scalar by name."""
    return Expr("sym", name=name)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """`left op right`, folded if both are constants or one is the neutral element."""
    if op not in OPERATORS:
        raise ValueError(f"unknown operator {op!r}")
    a, b = left.constant, right.constant
    if a is not None and b is not None and not (op in ("//", "%") and b == 0):
        return const(int(OPERATORS[op](a, b)))
    if (op, b) in (("+", 0), ("-", 0), ("*", 1), ("//", 1)):
        return left
    if (op, a) in (("+", 0), ("*", 1)):
        return right
    return Expr(op, (left, right))


def cdiv(left: Expr, right: Expr) -> Expr:
    """`ceil(left / right)` for a positive divisor."""
    return binary("//", binary("+", left, binary("-", right, const(1))), right)


MAX_DEPTH: Final = 64
MAX_NODES: Final = 4096
"""Limit for one expression that is parsed: with symbols of 64 bits, its value then has at most about ten thousand digits."""


def from_json(data: Any) -> Expr:
    """Inverse of `to_json`; ValueError on anything else (manifests are untrusted, so depth and size are bounded too)."""
    nodes = 0

    def read(item: Any, depth: int) -> Expr:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"expression is nested deeper than {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise ValueError(f"expression has more than {MAX_NODES} operators and operands")
        if isinstance(item, int) and not isinstance(item, bool):
            return const(item)
        if isinstance(item, str) and len(item) <= MAX_NAME and item.isidentifier():
            return sym(item)
        if isinstance(item, list):
            items: list[Any] = item  # pyright: ignore[reportUnknownVariableType]
            if len(items) == 3 and isinstance(items[0], str) and items[0] in OPERATORS:
                return Expr(items[0], (read(items[1], depth + 1), read(items[2], depth + 1)))
            raise ValueError(f"not an expression: a list of {len(items)} items")
        shown = repr(item)[:80] if isinstance(item, (str, float, bool)) else type(item).__name__
        raise ValueError(f"not an expression: {shown}")

    return read(data, 0)


def _text(expr: Expr, parent: int) -> str:
    if expr.op == "const":
        return str(expr.value)
    if expr.op == "sym":
        return expr.name
    left, right = expr.args
    if expr.op in ("min", "max"):
        return f"{expr.op}({left}, {right})"
    level = _PRECEDENCE[expr.op]
    text = f"{_text(left, level)} {expr.op} {_text(right, level + 1)}"
    return f"({text})" if level < parent else text
