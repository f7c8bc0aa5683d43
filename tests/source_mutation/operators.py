"""What a mistake in Python source looks like: each operator takes a syntax node and yields texts to replace it.

Only code that decides something is changed: docstrings, messages, assertions, annotations and tables of words are left alone.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
WORDS = {
    "slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "ult": "slt", "ule": "ult", "ugt": "sgt", "uge": "ugt", "eq": "ne",
    "ne": "eq", "lt": "le", "le": "lt", "ge": "gt", "gt": "ge", "sext": "zext", "zext": "sext", "ashr": "lshr", "lshr": "ashr",
    "sdiv": "udiv", "udiv": "sdiv", "smax": "umax", "smin": "umin", "umax": "smax", "umin": "smin", "maxnum": "minnum",
    "minnum": "maxnum", "i64": "i32", "sitofp": "uitofp", "uitofp": "sitofp", "min": "max", "max": "min", "and": "or",
    "or": "and", "add": "sub", "olt": "ogt", "ogt": "olt", "shl": "lshr", "bfly": "down", "wait_group": "commit_group",
}  # fmt: skip
_WORD = re.compile(r"(?<![\w`-])(" + "|".join(WORDS) + r")(?![\w`-])")
ORDERED = {"lt", "le", "ge", "gt", "select", "range", "compared", "cdiv", "implies", "slice"}
"""Functions of two alike arguments whose order matters."""
Change = tuple[str, str, ast.AST, str]
"""Operator, what was done in words, the node whose text is replaced, the new text."""


def changes(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    """All mistakes at one node."""
    for act in _OPERATORS:
        yield from act(node, parent)


def _with(node: ast.AST, edit: Callable[[ast.AST], None]) -> str:
    other = copy.deepcopy(node)
    edit(other)
    text = ast.unparse(ast.fix_missing_locations(other))
    return f"({text})" if isinstance(other, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp) else text


def _compare(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            new = COMPARE.get(type(op))
            if new is not None:
                text = _with(node, lambda n, p=index, t=new: n.ops.__setitem__(p, t()))  # pyright: ignore[reportAttributeAccessIssue]
                yield "flipped comparison", f"{type(op).__name__} -> {new.__name__}", node, text


def _boolean(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        new = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "and/or", f"{type(node.op).__name__} -> {new.__name__}", node, _with(node, lambda n: setattr(n, "op", new()))
        for index in range(len(node.values)):
            if len(node.values) > 1:
                yield "dropped condition", f"without `{ast.unparse(node.values[index])}`", node, _dropped(node, index)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "dropped not", "without `not`", node, f"({ast.unparse(node.operand)})"


def _dropped(node: ast.BoolOp, index: int) -> str:
    rest = [value for k, value in enumerate(node.values) if k != index]
    return f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))})"


def _arithmetic(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if not isinstance(node, ast.BinOp) or type(node.op) not in ARITHMETIC or _texty(node):
        return
    new = ARITHMETIC[type(node.op)]
    yield "wrong operator", f"{type(node.op).__name__} -> {new.__name__}", node, _with(node, lambda n: setattr(n, "op", new()))
    if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod | ast.LShift):
        yield "swapped operands", "operands swapped", node, _with(node, _exchange)


def _texty(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp | ast.Dict) or
               (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in ast.walk(node))  # fmt: skip


def _exchange(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.left, node.right = node.right, node.left


def _number(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) is int and isinstance(parent, ast.BinOp | ast.Compare | ast.Call):
        yield "off by one", f"{node.value} -> {node.value + 1}", node, str(node.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "wrong sign", "without `-`", node, f"({ast.unparse(node.operand)})"


def _guard(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp):
        yield "removed guard", "never taken", node.test, "False"
        yield "removed guard", "always taken", node.test, "True"
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield "removed filter", "nothing is filtered", test, "True"


def _call(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "dropped call", f"without `{ast.unparse(node.value)[:60]}`", node, "pass"
    if isinstance(node, ast.AugAssign):
        yield "dropped step", f"without `{ast.unparse(node)[:60]}`", node, "pass"
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        first = node.args[-2]
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ORDERED and not isinstance(first, ast.Constant | ast.JoinedStr | ast.Lambda):
            yield "swapped arguments", "last two arguments swapped", node, _with(node, _exchange_arguments)


def _exchange_arguments(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    node.args[-2:] = node.args[:-3:-1]


def _word(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.JoinedStr):
        for index, part in enumerate(node.values):
            for other, what in _reworded(part):
                changed = copy.deepcopy(node)
                changed.values[index] = ast.Constant(other)
                yield "wrong word", what, node, ast.unparse(ast.fix_missing_locations(changed))
    elif not isinstance(parent, ast.JoinedStr | ast.Dict):
        for other, what in _reworded(node):
            yield "wrong word", what, node, repr(other)


def _reworded(node: ast.AST) -> Iterator[tuple[str, str]]:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or len(node.value) > 80:
        return
    for found in _WORD.finditer(node.value):
        other = WORDS[found[1]]
        yield node.value[: found.start()] + other + node.value[found.end() :], f"`{found[1]}` -> `{other}`"


def _result(node: ast.AST, parent: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        yield "wrong answer", f"{node.value.value} -> {not node.value.value}", node.value, str(not node.value.value)


_OPERATORS = (_compare, _boolean, _arithmetic, _number, _guard, _call, _word, _result)
