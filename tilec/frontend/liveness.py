"""Liveness of names after each loop and branch: determines which names a loop carries and branches merge.

A name that a loop body assigns before it reads it, and that nothing reads after the loop, is local to an iteration. It may
change its type between iterations; a carried name must not.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(slots=True)
class Liveness:
    """`after[stmt]`: names read after an `if` or `for`; `header[loop]`: names live at the start of an iteration."""

    after: dict[ast.stmt, frozenset[str]] = field(default_factory=dict[ast.stmt, frozenset[str]])
    header: dict[ast.stmt, frozenset[str]] = field(default_factory=dict[ast.stmt, frozenset[str]])


def analyse(body: list[ast.stmt]) -> Liveness:
    """Liveness of a function body."""
    found = Liveness()
    _block(body, frozenset(), found)
    return found


def assigned(body: list[ast.stmt]) -> list[str]:
    """Names that statements assign, in order of first appearance."""
    names: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)


def _reads(node: ast.AST | None) -> frozenset[str]:
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _block(body: list[ast.stmt], after: frozenset[str], found: Liveness) -> frozenset[str]:
    for statement in reversed(body):
        after = _statement(statement, after, found)
    return after


def _statement(node: ast.stmt, after: frozenset[str], found: Liveness) -> frozenset[str]:
    if isinstance(node, ast.If):
        found.after[node] = after
        branches = _block(node.body, after, found) | _block(node.orelse, after, found)
        return branches | _reads(node.test)
    if isinstance(node, ast.For):
        found.after[node] = after
        targets = frozenset(assigned([ast.Expr(node.target)]))
        header = after
        while True:
            grown = header | (_block(node.body, header, found) - targets)
            if grown == header:
                break
            header = grown
        found.header[node] = header
        return header | _reads(node.iter)
    if isinstance(node, ast.With):
        return _block(node.body, after, found).union(*(_reads(item.context_expr) for item in node.items))
    if isinstance(node, ast.Assign):
        return (after - frozenset(assigned([node]))) | _reads(node)
    if isinstance(node, ast.AnnAssign):
        return (after - frozenset(assigned([node]))) | _reads(node.value)
    if isinstance(node, ast.AugAssign):
        return after | _reads(node.value) | frozenset(assigned([node]))
    if isinstance(node, ast.Return):
        return _reads(node)
    return after | _reads(node)
