"""Loops over what is known at compile time: `static_range(...)` and tuples. The body is built once for each item, in order.

A loop variable is a constant or an item of the tuple, so it may pick out of tuples, decide an `if` and stand where a constant
must. Names that the body sets are carried as in Python: they may change their type, hold tuples, and stay after the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tilec.frontend.bindings import bind
from tilec.frontend.emitter import At, Term, describe
from tilec.frontend.expressions import expression
from tilec.frontend.loop_heads import Head, Passes
from tilec.frontend.module import word_of
from tilec.frontend.scope import Scope

WORD = "static_range"


def items(scope: Scope, node: ast.For) -> Iterable[Term] | None:
    """What a loop runs over, if it is known; None for a loop of the kernel. E0111, E0203."""
    if isinstance(node, Passes):
        return None
    given = node.iter
    if isinstance(given, ast.Call):
        is_word = word_of(scope.module, given.func) == WORD and not _is_hidden(scope, given.func)
        return _numbers(scope, given) if is_word else None
    term = expression(scope, given)
    return term if isinstance(term, tuple) else None


def repeat(scope: Scope, node: ast.For, known: Iterable[Term]) -> None:
    """Build the body for each item; E0111 for claims about passes, E0115 for a `return`, E0511."""
    for one in node.body:
        if isinstance(one, Head):
            hint = "claims are for loops over `range(...)`: leave it out"
            raise scope.at(one).error("E0111", "a claim in a loop that is repeated at compile time", hint=hint)
    for child in (found for one in node.body for found in ast.walk(one)):
        if isinstance(child, ast.Return):
            raise scope.at(child).error("E0115", "`return` inside a loop or `with`", hint="return once, at the end")
    at = scope.at(node)
    for item in known:
        scope.emitter.repeat(at)
        bind(scope, node.target, item)
        scope.builders.body(scope, node.body)


def _is_hidden(scope: Scope, node: ast.expr) -> bool:
    """Whether a name of the kernel stands for something else."""
    return isinstance(node, ast.Name) and (node.id in scope.env or node.id in scope.locals)


def _numbers(scope: Scope, call: ast.Call) -> range:
    at = scope.at(call)
    if call.keywords or not 1 <= len(call.args) <= 3 or any(isinstance(one, ast.Starred) for one in call.args):
        hint = "write `static_range(stop)` or `static_range(start, stop, step)`"
        raise at.error("E0111", f"`{WORD}` takes 1 to 3 integers", hint=hint)
    numbers = [_constant(expression(scope, one), scope.at(one)) for one in call.args]
    if len(numbers) == 3 and numbers[2] == 0:
        raise scope.at(call.args[2]).error("E0111", "the step is 0", hint="use a positive or a negative step")
    return range(*numbers)


def _constant(term: Term, at: At) -> int:
    if not isinstance(term, int) or isinstance(term, bool):
        hint = "use `range(...)`, or make it a `Const`"
        raise at.error("E0203", f"`{WORD}` takes constants, found {describe(term)}", hint=hint)
    return term
