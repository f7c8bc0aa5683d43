"""`while`, and what the start of a loop's body claims: a rewrite of Python's syntax tree before exits are.

`invariant(...)` at the start of a body becomes a `Head`, which stays outside of what an exit guards. A `while` becomes a loop
with as many iterations as its number `decreases(e)` allows, one of which only finds the condition false:

    while condition:                for pass in range(-1, max(e, 0)):
        decreases(e)        ->          if not condition:
        work()                              break
                                        (e is positive here)
                                        work()
                                    (and smaller here than it was)

So the loop ends in the way of a `while` if both claims hold, which the prover shows. Without `decreases`, `e` is the
difference of the two sides of the first comparison in the condition.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tilec.frontend.liveness import assigned
from tilec.ir.ops.loop_claims import PASS

WordOf = Callable[[ast.expr], str | None]
"""The word that a callee is."""


class Head(ast.Expr):
    """A call of `invariant` or `decreases` at the start of a loop's body."""


class Measure(ast.Expr):
    """The number of a `while` where a pass starts or ends."""

    point: str = "start"


class Passes(ast.For):
    """A loop that was a `while`; `iter` is its number."""


def with_heads(body: list[ast.stmt], parameters: list[str], word_of: WordOf) -> list[ast.stmt]:
    """The statements of a function in which each `while` is a loop of passes; the same nodes where none is, and no head."""
    taken = {*parameters, *assigned(body)}

    def claim(node: ast.stmt) -> str:
        """The word of a claim; "" for any other statement."""
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return ""
        named = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        if isinstance(named, ast.Name) and named.id in taken:
            return ""
        word = word_of(call.func)
        return word if word in ("invariant", "decreases") else ""

    def is_concerned(node: ast.AST) -> bool:
        return isinstance(node, ast.While) or (isinstance(node, ast.stmt) and bool(claim(node)))

    if not any(is_concerned(node) for statement in body for node in ast.walk(statement)):
        return body
    return [*_statements(body, claim)]


def _statements(body: list[ast.stmt], claim: Callable[[ast.stmt], str]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            yield _like(ast.If(node.test, [*_statements(node.body, claim)], [*_statements(node.orelse, claim)]), node)
        elif isinstance(node, ast.With):
            yield _like(ast.With(node.items, [*_statements(node.body, claim)]), node)
        elif isinstance(node, ast.For):
            heads, rest = _split(node.body, claim)
            inner: list[ast.stmt] = [*heads, *_statements(rest, claim)]
            yield _like(ast.For(node.target, node.iter, inner, node.orelse), node)
        elif isinstance(node, ast.While):
            yield _passes(node, claim)
        else:
            yield node


def _split(body: list[ast.stmt], claim: Callable[[ast.stmt], str]) -> tuple[list[Head], list[ast.stmt]]:
    """The claims at the start of a body, and the rest."""
    heads: list[Head] = []
    for node in body:
        if not claim(node):
            break
        assert isinstance(node, ast.Expr)
        heads.append(ast.copy_location(Head(node.value), node))
    return heads, body[len(heads) :]


def _passes(node: ast.While, claim: Callable[[ast.stmt], str]) -> ast.stmt:
    heads, rest = _split(node.body, claim)
    stated = [head for head in heads if claim(ast.Expr(head.value)) == "decreases"]
    others: list[ast.stmt] = [head for head in heads if head not in stated]
    call = stated[0].value if stated else None
    is_one = isinstance(call, ast.Call) and len(stated) == 1 and len(call.args) == 1 and not call.keywords
    number = call.args[0] if is_one and isinstance(call, ast.Call) else None if stated else _difference(node.test)
    if number is None:  # refused where the loop is built
        return _like(ast.While(node.test, [*stated], node.orelse), node)
    leave = _like(ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], []), node.test)
    start = ast.copy_location(Measure(number), number)
    body = [*others, leave, start, *_statements(rest, claim)]
    return _like(Passes(ast.Name(PASS, ast.Store()), number, body, node.orelse), node)


def _difference(test: ast.expr) -> ast.expr | None:
    """A number that is positive where a condition is true: of the first comparison of names and numbers in it; None if there is
    none."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return next((number for one in test.values if (number := _difference(one)) is not None), None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or any(isinstance(node, ast.Call) for node in ast.walk(test)):
        return None
    left, right, one = test.left, test.comparators[0], ast.Constant(1)
    match test.ops[0]:
        case ast.Lt():
            found: ast.expr = ast.BinOp(right, ast.Sub(), left)
        case ast.Gt():
            found = ast.BinOp(left, ast.Sub(), right)
        case ast.LtE():
            found = ast.BinOp(ast.BinOp(right, ast.Sub(), left), ast.Add(), one)
        case ast.GtE():
            found = ast.BinOp(ast.BinOp(left, ast.Sub(), right), ast.Add(), one)
        case _:
            return None
    if isinstance(right, ast.Constant) and right.value == 0 and isinstance(test.ops[0], ast.Gt):
        found = left
    return _located(found, test)


def _located(made: ast.expr, node: ast.expr) -> ast.expr:
    for child in ast.walk(made):
        if isinstance(child, ast.expr) and not hasattr(child, "lineno"):
            ast.copy_location(child, node)
    return made


def _like(made: ast.stmt, node: ast.stmt | ast.expr) -> ast.stmt:
    """A statement at the location of another one; nodes of the kernel that it takes over keep their own."""
    ast.copy_location(made, node)
    for child in ast.walk(made):
        if not hasattr(child, "lineno"):
            ast.copy_location(child, node)
    return made
