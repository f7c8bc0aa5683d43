"""Builders of what a loop claims: invariants, evaluated wherever they must be true, and the number of a `while`.

A claim is arithmetic of scalars: it is evaluated several times, and not at all in machine code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, describe
from tilec.frontend.expressions import expression
from tilec.frontend.loop_heads import Head, Measure
from tilec.frontend.module import word_of
from tilec.frontend.scope import Scope
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Block, Effect, Value
from tilec.ir.types import TileType, i32


@word("invariant", "decreases")
def misplaced(call: Call) -> Term:
    """A claim that stands elsewhere; E0111."""
    loop = "a loop" if call.word == "invariant" else "`while`"
    hint = "write it before the other statements of the body, on a line of its own"
    raise call.at.error("E0111", f"`{call.word}` stands at the start of the body of {loop}", hint=hint)


class Invariants:
    """The invariants at the start of a loop's body, each with its number."""

    def __init__(self, scope: Scope, heads: list[Head]) -> None:
        self.scope = scope
        self.conditions: list[tuple[int, ast.expr]] = []
        for head in heads:
            call = head.value
            assert isinstance(call, ast.Call)
            at = scope.at(head)
            if word_of(scope.module, call.func) == "decreases":
                raise at.error("E0111", "a `for` loop ends by itself", hint="`decreases` is a claim of `while`; remove it")
            if not call.args or call.keywords or any(isinstance(one, ast.Starred) for one in call.args):
                raise at.error("E0113", "`invariant` takes conditions by position", hint="write `invariant(0 <= n, n <= N)`")
            for condition in call.args:
                self.conditions.append((scope.emitter.next_claim(), condition))

    def mentions(self, name: str) -> bool:
        """Whether a condition mentions a name."""
        return any(_mentions(condition, name) for _, condition in self.conditions)

    def emit(self, point: str, names: Mapping[str, Term], without: str = "") -> None:
        """Evaluates the conditions at a place with the names' terms there, but those that mention `without`."""
        scope, outer = self.scope, self.scope.env
        scope.env = {**outer, **names}
        try:
            for number, condition in self.conditions:
                if not without or not _mentions(condition, without):
                    self._emit(point, number, condition)
        finally:
            scope.env = outer

    def _emit(self, point: str, number: int, node: ast.expr) -> None:
        scope, block = self.scope, Block()
        at = scope.at(node)
        with scope.emitter.into(block):
            condition = arithmetic.condition(scope.emitter, expression(scope, node), at)
        _check_pure(scope, block, node, "an invariant")
        scope.emitter.block.ops += block.ops
        scope.emitter.emit(ops.Invariant(point=point, number=number, operands=[condition]), at)


def _mentions(node: ast.expr, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def measure(scope: Scope, node: Measure) -> None:
    """The number of a `while`, where a pass starts or ends."""
    value = number_of_passes(scope, node.value)
    if node.point == "start":
        scope.emitter.measures[id(node.value)] = scope.emitter.next_claim()
    number = scope.emitter.measures.get(id(node.value))
    if number is not None:  # the condition may be constant, so that no pass starts
        scope.emitter.emit(ops.Decreases(point=node.point, number=number, operands=[value]), scope.at(node))


def number_of_passes(scope: Scope, node: ast.expr) -> Value:
    """The number of a `while` at this point; E0111."""
    at, block = scope.at(node), Block()
    with scope.emitter.into(block):
        term = expression(scope, node)
        is_number = isinstance(term, int) and not isinstance(term, bool)
        if not is_number and not (isinstance(term, Value) and term.type == TileType(i32)):
            hint = "state one with `decreases(...)` at the start of the body, and convert it with `i32(...)`"
            raise at.error("E0111", f"the number of a `while` is an i32 scalar, found {describe(term)}", hint=hint)
        value = scope.emitter.value(term, at)
    _check_pure(scope, block, node, "the number of a `while`")
    scope.emitter.block.ops += block.ops
    return value


def _check_pure(scope: Scope, block: Block, node: ast.expr, what: str) -> None:
    if any(op.regions or op.effect is not Effect.NONE for op in block.walk()):
        hint = "read what it needs into a name before"
        raise scope.at(node).error("E0111", f"{what} is arithmetic of scalars, and reads no tensor", hint=hint)


def refused_while(scope: Scope, node: ast.While) -> None:
    """A `while` without a number; E0111, E0113."""
    at = scope.at(node.test)
    if node.orelse:
        raise scope.at(node.orelse[0]).error("E0111", "`else` after a loop", hint="put the statements after the loop")
    if node.body:
        raise scope.at(node.body[0]).error("E0113", "`decreases` takes one number", hint="write `decreases(n - i)`")
    hint = "state one that falls in each pass, at the start of the body: `decreases(n - i)`"
    raise at.error("E0111", "a `while` needs a number of the passes that are left", hint=hint)
