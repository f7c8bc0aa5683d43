"""`break` and `continue` as carried conditions: a rewrite of Python's syntax tree before it is built.

`break` sets a flag that the loop carries, and the body of each iteration is executed if the flag is set:

    for i in range(n):              going = True
        work(i)                     for i in range(n):
        if done(i):         ->          if going:
            break                           work(i)
        more(i)                             if done(i):
                                                going = False
                                            else:
                                                more(i)

What follows a statement with an exit goes into the branch that does not leave; if each branch may do either, it is guarded by
a flag of the iteration. So whatever reasons about kernels sees loops and branches only: an access after a possible exit is
conditional, and after the loop nothing is known about how it ended. Lowering leaves a loop whose iterations do nothing any
more (`tilec.ir.facts.loop_exits`). Claims at the start of a body stay there, for all iterations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tilec.frontend.loop_heads import Head, Measure, Passes, with_heads
from tilec.frontend.module import Module, word_of
from tilec.ir.ops.loop_claims import FLAG

_EXITS: Final = (ast.Break, ast.Continue)


@dataclass(slots=True)
class _Flags:
    """Names of a loop's flag, which `break` clears, and of an iteration's, which both exits clear; "" if it has none."""

    loop: str
    iteration: str


def plain_loops(node: ast.FunctionDef, module: Module) -> list[ast.stmt]:
    """The statements of a function, with `while`, `break` and `continue` rewritten."""
    arguments = node.args
    parameters = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return without_exits(with_heads(node.body, parameters, partial(word_of, module)))


def without_exits(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function, with `break` and `continue` rewritten; the same nodes where there is none."""
    if not any(isinstance(node, _EXITS) for statement in body for node in ast.walk(statement)):
        return body
    taken = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return _Rewriter(taken).statements(body)


class _Rewriter:
    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements outside of the loop whose exits are rewritten, with the loops in them."""
        return [one for statement in body for one in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(node, ast.For) and not node.orelse:
            yield from self._loop(node)
        elif isinstance(node, ast.If):
            yield _like(ast.If(node.test, self.statements(node.body), self.statements(node.orelse)), node)
        elif isinstance(node, ast.With):
            yield _like(ast.With(node.items, self.statements(node.body)), node)
        else:
            yield node

    def _loop(self, node: ast.For) -> Iterator[ast.stmt]:
        heads = [one for one in node.body if isinstance(one, Head)]
        inner = node.body[len(heads) :]
        exits = list(_exits(inner))
        broken = any(isinstance(one, ast.Break) for one in exits)
        flags = _Flags(self._name("going" + FLAG) if broken else "", self._name("here" + FLAG) if _needs_flag(inner) else "")
        body = self._leaving(inner, flags) if exits else self.statements(inner)
        if flags.iteration:
            body = [_assign(flags.iteration, True, node), *body]
        if broken:
            yield _assign(flags.loop, True, node)
            body = [_if(flags.loop, body, node)]
        if isinstance(node, Passes):  # left by a `break`
            end = ast.copy_location(Measure(node.iter), node.iter)
            end.point = "end"
            body.append(_if(flags.loop, [end], node))
        made = Passes if isinstance(node, Passes) else ast.For
        yield _like(made(node.target, node.iter, [*heads, *body] or [_like(ast.Pass(), node)], []), node)

    def _leaving(self, body: list[ast.stmt], flags: _Flags) -> list[ast.stmt]:
        """The body of a loop up to its end or an exit, without the exits."""
        found: list[ast.stmt] = []
        for position, node in enumerate(body):
            rest = body[position + 1 :]
            if isinstance(node, _EXITS):
                found += [_assign(flags.iteration, False, node)] if flags.iteration else []
                return [*found, _assign(flags.loop, False, node)] if isinstance(node, ast.Break) else found
            if not list(_exits([node])):
                found += self._statement(node)
                continue
            if isinstance(node, ast.If) and (_leaves(node.body) or _leaves(node.orelse)):
                first = node.body if _leaves(node.body) else [*node.body, *rest]
                second = node.orelse if _leaves(node.orelse) else [*node.orelse, *rest]
                kept = self._leaving(first, flags) or [_like(ast.Pass(), node)]
                return [*found, _like(ast.If(node.test, kept, self._leaving(second, flags)), node)]
            if isinstance(node, ast.If):
                kept = self._leaving(node.body, flags) or [_like(ast.Pass(), node)]
                found.append(_like(ast.If(node.test, kept, self._leaving(node.orelse, flags)), node))
            else:
                assert isinstance(node, ast.With)
                kept = self._leaving(node.body, flags) or [_like(ast.Pass(), node)]
                found.append(_like(ast.With(node.items, kept), node))
            after = self._leaving(rest, flags)
            return [*found, _if(flags.iteration, after, node)] if after else found
        return found

    def _name(self, base: str) -> str:
        """A name that no other loop has, and no kernel uses."""
        name = next(one for k in range(len(self.taken) + 1) if (one := f"{base}_{k}" if k else base) not in self.taken)
        self.taken.add(name)
        return name


def _exits(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """`break` and `continue` of the loop with this body: those of loops in it are theirs."""
    for node in body:
        if isinstance(node, _EXITS):
            yield node
        elif isinstance(node, ast.If):
            yield from _exits([*node.body, *node.orelse])
        elif isinstance(node, ast.With):
            yield from _exits(node.body)


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether every path through the statements ends in an exit."""
    for node in body:
        if isinstance(node, _EXITS) or (isinstance(node, ast.If) and _leaves(node.body) and _leaves(node.orelse)):
            return True
        if isinstance(node, ast.With) and _leaves(node.body):
            return True
    return False


def _needs_flag(body: list[ast.stmt]) -> bool:
    """Whether statements follow one that may leave, or may not, on the same path."""
    for position, node in enumerate(body):
        if isinstance(node, ast.If | ast.With) and list(_exits([node])):
            arms = [node.body, node.orelse] if isinstance(node, ast.If) else [node.body]
            rest = body[position + 1 :]
            if isinstance(node, ast.If) and any(map(_leaves, arms)):
                return any(_needs_flag(arm if _leaves(arm) else [*arm, *rest]) for arm in arms)
            return bool(rest) or any(map(_needs_flag, arms))
    return False


def _assign(name: str, value: bool, node: ast.stmt) -> ast.stmt:
    return _like(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), node)


def _if(name: str, body: list[ast.stmt], node: ast.stmt) -> ast.stmt:
    return _like(ast.If(ast.Name(name, ast.Load()), body or [_like(ast.Pass(), node)], []), node)


def _like(made: ast.stmt, node: ast.stmt) -> ast.stmt:
    """A statement at the location of another one; nodes of the kernel that it takes over keep their own."""
    ast.copy_location(made, node)
    for child in ast.walk(made):
        if not hasattr(child, "lineno"):
            ast.copy_location(child, node)
    return made
