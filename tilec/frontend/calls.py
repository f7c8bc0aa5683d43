"""Calls: finding the callee, binding arguments, inlining tile functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from tilec.diagnostics.spelling import ask_first
from tilec.frontend import arithmetic, composed, joins, memory, printing, ranks, reductions, scans, sorts, takes, words
from tilec.frontend.arguments import TAKE_FUNCTION, Call
from tilec.frontend.emitter import At, Term, describe, number_of, usable
from tilec.frontend.expressions import expression, package_of
from tilec.frontend.liveness import analyse, assigned
from tilec.frontend.loop_exits import plain_loops
from tilec.frontend.module import DIRECTIVES, Package, Routine, Word, dtype_word, is_word, meant_word, word_of
from tilec.frontend.report import Refused
from tilec.frontend.scope import Scope
from tilec.frontend.signature import dtype_named
from tilec.frontend.vocabulary import METHODS, WORDS
from tilec.ir.types import DType

MAX_CALL_DEPTH = 32
_MEANINGS: Final = (
    composed, joins, memory, printing, ranks, reductions, scans, sorts, takes, words,
)  # importing them fills `WORDS`  # fmt: skip


def call(scope: Scope, node: ast.Call) -> Term:
    """Evaluate a call."""
    at = scope.at(node)
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            raise scope.at(argument).error("E0113", "arguments cannot be unpacked with `*`", hint="pass them one by one")
    for keyword in node.keywords:
        if keyword.arg is None:
            raise scope.at(keyword.value).error("E0113", "arguments cannot be unpacked with `**`", hint="pass them one by one")
    if isinstance(node.func, ast.Attribute) and package_of(scope, node.func.value) is None:
        return _method(scope, node, node.func)
    callee = _callee(scope, node.func)
    if isinstance(callee, Routine):
        return _inline(scope, callee, at, lambda: _bind(scope, callee, node))
    function, first = (_function(scope, node, callee), 1) if callee in TAKE_FUNCTION else (None, 0)
    given = Call(scope, node, "", [expression(scope, a) for a in node.args[first:]],
                 {str(k.arg): expression(scope, k.value) for k in node.keywords}, function)  # fmt: skip
    if isinstance(callee, DType):
        given.word = callee.name
        (value,) = given.bind("value")
        given.dtype(callee)
        return scope.emitter.cast(value, callee, at)
    given.word = callee
    build = WORDS.get(callee)
    if build is None:
        if callee in DIRECTIVES:
            raise at.error(
                "E0109", f"`{callee}` has no value", hint="call it on a line of its own, at the top level of the kernel"
            )
        raise at.error("E0106", f"`{callee.removeprefix('builtins.')}` cannot be called here",
                hint="loops run over `range(...)`; kernels call words of `tilec` and tile functions")  # fmt: skip
    return build(given)


def _callee(scope: Scope, node: ast.expr) -> str | Routine | DType:
    """The callee: a word (by name), a tile function or a dtype."""
    at = scope.at(node)
    if isinstance(node, ast.Name):
        entry = scope.name(node)
        if isinstance(entry, Word):
            return entry.name
        if isinstance(entry, Routine | DType):
            return entry
        raise at.error("E0106", f"`{node.id}` cannot be called", hint="kernels call words of `tilec` and tile functions")
    if isinstance(node, ast.Attribute):
        package = package_of(scope, node.value)
        if isinstance(package, Package) and package.name == "math":
            return f"math.{node.attr}"
        name = word_of(scope.module, node)
        if name is not None:
            return dtype_named(name) if dtype_word(name) else name
        hint = meant_word(node.attr) if not is_word(node.attr) else "check the spelling"
        raise at.error("E0108", f"`{ast.unparse(node)}` is not defined", hint=hint)
    raise at.error("E0106", "this cannot be called", hint="kernels call words of `tilec` and tile functions")


def _method(scope: Scope, node: ast.Call, func: ast.Attribute) -> Term:
    receiver = expression(scope, func.value)
    if func.attr not in METHODS:
        hint = ask_first(func.attr, METHODS, "tiles have " + ", ".join(f"`{name}`" for name in METHODS))
        raise scope.at(func).error("E0106", f"{describe(receiver)} has no method `{func.attr}`", hint=hint)
    arguments = [expression(scope, a) for a in node.args]
    if func.attr != "astype" and len(arguments) != 1:
        # `x.reshape(2, 3)` is `x.reshape((2, 3))`.
        arguments = [tuple(arguments)]
    keywords = {str(k.arg): expression(scope, k.value) for k in node.keywords}
    return WORDS[func.attr](Call(scope, node, func.attr, [receiver, *arguments], keywords))


def _function(scope: Scope, node: ast.Call, word: object) -> Callable[[Term, Term], Term]:
    """What applies the tile function that is a call's first argument; E0106, E0113."""
    hint = "its first argument is the name of a tile function of two arguments"
    if not node.args:
        raise scope.at(node).error("E0113", f"`{word}` needs a function", hint=hint)
    first = node.args[0]
    routine = scope.name(first) if isinstance(first, ast.Name) else None
    if not isinstance(routine, Routine):
        raise scope.at(first).error("E0106", f"`{word}` takes a tile function", hint=hint)

    def apply(left: Term, right: Term) -> Term:
        at = scope.at(first)
        return _inline(scope, routine, at, lambda: _bind_two(scope, routine, left, right, at))

    return apply


def _bind_two(scope: Scope, routine: Routine, left: Term, right: Term, at: At) -> dict[str, Term]:
    """Two terms by parameter name; E0114."""
    names = [parameter.arg for parameter in _positional(routine, at)]
    if len(names) < 2:
        raise at.error("E0114", f"`{routine.name}` takes {len(names)} arguments, 2 given", hint="it combines two values")
    return _completed(scope, routine, {names[0]: left, names[1]: right}, at)


def _inline(scope: Scope, routine: Routine, at: At, bind: Callable[[], dict[str, Term]]) -> Term:
    if len(scope.callers) > MAX_CALL_DEPTH:
        message = f"calls of tile functions are nested more than {MAX_CALL_DEPTH} deep at `{routine.name}`"
        raise at.error("E0512", message, hint="call fewer functions from functions, or write a loop")
    if routine in scope.callers:
        raise at.error("E0114", f"tile function `{routine.name}` calls itself", hint="write a loop")
    scope.emitter.inline(at)
    problems = len(scope.problems)
    env = bind()
    body = plain_loops(routine.node, routine.module)
    inner = Scope(routine.module, scope.function, scope.signature, scope.emitter, env,
                  frozenset(assigned(body)) | frozenset(env), analyse(body), scope.problems,
                  scope.builders, (*scope.callers, routine), grid_axes=scope.grid_axes)  # fmt: skip
    returned = scope.builders.body(inner, body)
    if len(scope.problems) > problems:
        raise Refused(None)
    return returned.value if returned is not None else None


def _bind(scope: Scope, routine: Routine, node: ast.Call) -> dict[str, Term]:
    """Arguments by parameter name; E0114."""
    at, parameters = scope.at(node), routine.node.args
    positional = _positional(routine, at)
    if len(node.args) > len(positional):
        raise at.error(
            "E0114", f"`{routine.name}` takes {len(positional)} arguments, {len(node.args)} given", hint="check its definition"
        )
    env = {parameter.arg: usable(expression(scope, a)) for parameter, a in zip(positional, node.args, strict=False)}
    names = {parameter.arg for parameter in (*parameters.args, *parameters.kwonlyargs)}
    for keyword in node.keywords:
        name = str(keyword.arg)
        if name not in names or name in env:
            wrong = "is given twice" if name in env else "is not a parameter"
            hint = ask_first(name, names - env.keys(), "check its definition")
            raise scope.at(keyword.value).error("E0114", f"`{name}` {wrong} of `{routine.name}`", hint=hint)
        env[name] = usable(expression(scope, keyword.value))
    return _completed(scope, routine, env, at)


def _positional(routine: Routine, at: At) -> list[ast.arg]:
    parameters = routine.node.args
    if parameters.vararg is not None or parameters.kwarg is not None:
        raise at.error("E0114", f"`{routine.name}` takes `*` or `**` arguments", hint="give it a fixed list of parameters")
    return [*parameters.posonlyargs, *parameters.args]


def _completed(scope: Scope, routine: Routine, env: dict[str, Term], at: At) -> dict[str, Term]:
    """The arguments with the defaults of those that are not given; E0114, E0203."""
    positional, parameters = _positional(routine, at), routine.node.args
    defaults = dict(zip([p.arg for p in positional[len(positional) - len(parameters.defaults) :]], parameters.defaults,
                        strict=True))  # fmt: skip
    defaults |= {p.arg: d for p, d in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if d is not None}
    for parameter in (*positional, *parameters.kwonlyargs):
        name = parameter.arg
        if name not in env:
            if name not in defaults:
                raise at.error("E0114", f"`{routine.name}` needs an argument for `{name}`", hint="pass it by position or name")
            default = defaults[name]
            if not isinstance(default, ast.Constant):
                raise at.error("E0114", f"the default of `{name}` is not a literal", hint="pass the argument")
            env[name] = number_of(expression(scope, default), at)
        if word_of(routine.module, parameter.annotation or ast.Constant(None)) == "Const" and not (
            arithmetic.is_number(env[name]) or isinstance(env[name], DType)
        ):
            raise at.error(
                "E0203",
                f"`{name}` of `{routine.name}` is a constant, found {describe(env[name])}",
                hint="pass a literal or a `Const`",
            )
    return env
