"""Statements: assignments, loops, branches and returns."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from tilec.diagnostics.diagnostic import Diagnostic, Label
from tilec.frontend import arithmetic
from tilec.frontend.bindings import bind
from tilec.frontend.directives import directive
from tilec.frontend.emitter import At, Poison, Term, describe, refuse_codes, usable
from tilec.frontend.expressions import expression, fits, join, joined_type
from tilec.frontend.liveness import assigned
from tilec.frontend.loop_claims import Invariants, measure, number_of_passes, refused_while
from tilec.frontend.loop_heads import Head, Measure, Passes
from tilec.frontend.module import DIRECTIVES, word_of
from tilec.frontend.report import Refused
from tilec.frontend.scope import Returned, Scope
from tilec.frontend.static_loops import items, repeat
from tilec.ir import ops
from tilec.ir.core import Block, UnsafeBlock, Value
from tilec.ir.packed import Codes
from tilec.ir.types import TileType, i32


def run(scope: Scope, body: list[ast.stmt]) -> Returned | None:
    """Builds statements in order and stops at a `return`, whose value it gives. A rejected statement is recorded and
    skipped."""
    for position, node in enumerate(body):
        rest = body[position + 1 :]
        try:
            if isinstance(node, ast.Return):
                return _return(scope, node)
            if isinstance(node, ast.If) and any(isinstance(n, ast.Return) for n in ast.walk(node)):
                return _returning_if(scope, node, rest)
            statement(scope, node)
        except Refused as refused:
            scope.problems.extend([refused.diagnostic] if refused.diagnostic else [])
            scope.poison(assigned([node]))
    return None


def statement(scope: Scope, node: ast.stmt) -> None:
    """Builds one statement; E0105 for valid Python that kernels do not support."""
    build = _BUILD.get(type(node))
    if build is None:
        words, hint = _UNSUPPORTED.get(type(node), ("this statement", "kernels are assignments, calls, `if`, `for` and `with`"))
        raise scope.at(node).error("E0105", f"{words} cannot be used in a kernel", hint=hint)
    build(scope, node)


def _return(scope: Scope, node: ast.Return) -> Returned:
    at = scope.at(node)
    if scope.depth and not scope.is_kernel:
        raise at.error("E0115", "`return` inside a loop or `with`", hint="return once, at the end")
    if scope.is_kernel and node.value is not None:
        raise at.error("E0115", "a kernel returns nothing", hint="write results with `store(...)`")
    if scope.is_kernel and scope.depth:
        hint = "leave a loop with `break`; end the kernel with `if condition: return` at its top level"
        raise at.error("E0115", "`return` inside a loop or `with`", hint=hint)
    return Returned(expression(scope, node.value) if node.value is not None else None)


def _always_returns(body: list[ast.stmt]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, ast.Return)


def _returning_if(scope: Scope, node: ast.If, rest: list[ast.stmt]) -> Returned | None:
    """Builds `if c: return a` followed by more statements as `if c: return a; else: more`."""
    if scope.depth:
        _return(scope, next(one for one in ast.walk(node) if isinstance(one, ast.Return)))
    test = expression(scope, node.test)
    if isinstance(test, bool | int | float):
        chosen = node.body if test else node.orelse
        return run(scope, chosen if _always_returns(chosen) else [*chosen, *rest])
    at = scope.at(node.test)
    condition = arithmetic.condition(scope.emitter, test, at)
    first, second = _always_returns(node.body), _always_returns(node.orelse)
    if not first and not second:
        raise at.error("E0115", "`return` on only some paths of both branches", hint="end one branch with `return`")
    outer = scope.env
    sides: list[tuple[Block, Returned | None]] = []
    for branch, returns in ((node.body, first), (node.orelse, second)):
        block = Block()
        scope.env = dict(outer)
        with scope.emitter.into(block):
            sides.append((block, run(scope, branch if returns else [*branch, *rest])))
    scope.env = outer
    left, right = (Returned(None) if side is None else side for _, side in sides)
    branch_op = ops.If(operands=[condition], regions=[block for block, _ in sides])
    return Returned(_joined(scope, branch_op, left.value, right.value, scope.at(node)))


def _joined(scope: Scope, branch: ops.If, left: Term, right: Term, at: At) -> Term:
    """Closes an `if` whose branches return."""
    if left is None and right is None:
        join(scope, branch, [], at)
        return None
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        return tuple(join(scope, branch, list(zip(left, right, strict=True)), at))
    return join(scope, branch, [(left, right)], at)[0]


def _expression(scope: Scope, node: ast.Expr) -> None:
    call = node.value
    if isinstance(call, ast.Constant):
        return
    if isinstance(call, ast.Call):
        word = word_of(scope.module, call.func)
        if word in DIRECTIVES and not (isinstance(call.func, ast.Name) and call.func.id in scope.env):
            directive(scope, call, word or "")
            return
    expression(scope, call)


def _assign(scope: Scope, node: ast.Assign) -> None:
    term = expression(scope, node.value)
    for target in node.targets:
        bind(scope, target, term)


def _annotated(scope: Scope, node: ast.AnnAssign) -> None:
    if node.value is None:
        raise scope.at(node).error("E0105", "a declaration without a value", hint="assign a value")
    bind(scope, node.target, expression(scope, node.value))


def _augmented(scope: Scope, node: ast.AugAssign) -> None:
    if not isinstance(node.target, ast.Name):
        bind(scope, node.target, None)
        return
    name = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
    value = ast.copy_location(ast.BinOp(name, node.op, node.value), node)
    bind(scope, node.target, expression(scope, value))


def _if(scope: Scope, node: ast.If) -> None:
    test = expression(scope, node.test)
    if isinstance(test, bool | int | float):
        run(scope, node.body if test else node.orelse)  # as if it stood here: launch facts may
        return
    condition = arithmetic.condition(scope.emitter, test, scope.at(node.test))
    before = scope.env
    environments: list[dict[str, Term]] = []
    regions: list[Block] = []
    for branch in (node.body, node.orelse):
        block = Block()
        scope.env = dict(before)
        with scope.emitter.into(block):
            _nested(scope, branch)
        environments.append(scope.env)
        regions.append(block)
    scope.env = before
    names = [name for name in assigned([*node.body, *node.orelse]) if name in scope.liveness.after.get(node, frozenset())]
    merged = {name: (environments[0].get(name, _unset(scope, node, name)), environments[1].get(name, _unset(scope, node, name)))
              for name in names}  # fmt: skip
    dynamic = [name for name in names if not _settled(scope, name, merged[name], scope.at(node))]
    branch_op = ops.If(operands=[condition], regions=regions)
    results = join(scope, branch_op, [merged[name] for name in dynamic], scope.at(node))
    for name, result in zip(dynamic, results, strict=True):
        assert isinstance(result, Value)
        result.name = name
        scope.env[name] = result


def _settled(scope: Scope, name: str, pair: tuple[Term, Term], at: At) -> bool:
    """Binds names that need no merge at run time: equal terms, and names that are unusable after one branch."""
    left, right = pair
    if left is right or (type(left) is type(right) and not isinstance(left, Value | tuple) and left == right):
        scope.env[name] = left
        return True
    for term in pair:
        if isinstance(term, Poison):
            scope.env[name] = term
            return True
    try:
        joined_type(pair, at)
    except Refused as refused:
        diagnostic = refused.diagnostic
        packed = next((term for term in pair if isinstance(term, Codes)), None)
        if diagnostic is not None and packed is not None:
            message = f"`{name}` is {describe(packed)} after a branch, which can only be converted or stored there"
            diagnostic = Diagnostic("E0201", message, diagnostic.primary, hint=diagnostic.hint)
        elif diagnostic is not None:
            first, second = describe(left), describe(right)
            message = f"`{name}` is {first} after one branch and {second} after the other"
            diagnostic = Diagnostic("E0209", message, diagnostic.primary, hint=diagnostic.hint)
        scope.env[name] = Poison(diagnostic)
        return True
    return False


def _unset(scope: Scope, node: ast.If | ast.For, name: str) -> Poison:
    where = "only one branch sets it" if isinstance(node, ast.If) else "only the loop sets it, which may run zero times"
    label = Label(scope.at(node).span, where)
    return Poison(Diagnostic("E0209", f"`{name}` may be unset after this", label, hint=f"set `{name}` before"))


def _nested(scope: Scope, body: list[ast.stmt]) -> None:
    scope.depth += 1
    try:
        run(scope, body)
    finally:
        scope.depth -= 1


def _for(scope: Scope, node: ast.For) -> None:
    if node.orelse:
        raise scope.at(node.orelse[0]).error("E0111", "`else` after a loop", hint="put the statements after the loop")
    if (known := items(scope, node)) is not None:
        repeat(scope, node, known)
        return
    if not isinstance(node.target, ast.Name):
        raise scope.at(node.target).error("E0111", "a loop has one variable", hint="write `for i in range(n):`")
    heads = [one for one in node.body if isinstance(one, Head)]
    invariants = Invariants(scope, heads)
    bounds = _passes(scope, node.iter) if isinstance(node, Passes) else _range(scope, node.iter)
    header, at = scope.liveness.header.get(node, frozenset()), scope.at(node)
    variable = node.target.id
    changed = [name for name in assigned(node.body) if name != variable]
    carried = [name for name in changed if name in header and not isinstance(scope.env.get(name, Poison(None)), Poison)]
    initial = [_initial(scope, name, at) for name in carried]
    invariants.emit("entry", {variable: bounds[0], **dict(zip(carried, initial, strict=True))})
    block = Block()
    outer = scope.env
    scope.env = dict(outer)
    scope.env[variable] = block.add_argument(TileType(i32), variable)
    scope.emitter.stands_for(scope.at(node.target), scope.env[variable])
    scope.emitter.counted[block.arguments[0]] = (bounds[0], bounds[1])
    scope.emitter.steps[block.arguments[0]] = bounds[2]
    for name, value in zip(carried, initial, strict=True):
        scope.env[name] = block.add_argument(value.type, name)
    with scope.emitter.into(block):
        invariants.emit("head", {})
        _nested(scope, node.body[len(heads) :])
        yielded = [_next(scope, name, value, node) for name, value in zip(carried, initial, strict=True)]
        following: dict[str, Term] = dict(zip(carried, yielded, strict=True))
        if invariants.mentions(variable):
            following[variable] = scope.emitter.binary_op("add", block.arguments[0], bounds[2], at)
        invariants.emit("end", {**outer, **following})
        scope.emitter.emit(ops.Yield(operands=yielded), at)
    broken = [name for name in carried if isinstance(scope.env[name], Poison)]
    scope.env = outer
    loop = ops.For(variable=variable, operands=[*bounds, *initial], regions=[block])
    results = scope.emitter.emit(loop, at, *(value.tile for value in initial))
    for name, result in zip(carried, results, strict=True):
        result.name = name
        scope.env[name] = result
    step = bounds[2].owner
    if invariants.mentions(variable) and isinstance(step, ops.Constant) and step.value == 1:
        last = scope.emitter.binary_op("max", bounds[0], bounds[1], at)
        invariants.emit("after", {variable: last})
    else:
        invariants.emit("after", {}, without=variable)
    for name in (variable, *changed):
        if name not in carried:
            scope.env[name] = _unset(scope, node, name)
    scope.poison(broken)


def _initial(scope: Scope, name: str, at: At) -> Value:
    term = usable(scope.env[name])
    if isinstance(term, bool | int | float) or (isinstance(term, Value) and isinstance(term.type, TileType)):
        return scope.emitter.value(term, at)
    refuse_codes(term, at)
    raise at.error(
        "E0208", f"the loop changes `{name}`, which is {describe(term)}", hint="a loop carries tiles and scalars only"
    )


def _next(scope: Scope, name: str, initial: Value, node: ast.For) -> Value:
    """The value of a carried name at the end of an iteration, which must have its initial type; E0208."""
    term, at = scope.env[name], scope.at(node)
    if isinstance(term, Poison):
        # Its cause was reported where it arose, or is reported when the name is used.
        if term.diagnostic is not None:
            scope.problems.append(term.diagnostic)
        return initial
    refuse_codes(term, at)
    if isinstance(term, Value) and term.type == initial.type:
        return term
    if isinstance(term, bool | int | float) and fits(term, initial):
        return scope.emitter.constant(term, initial.tile, at)
    became = tile_hint(term)
    hint = f"start with `{became}` before the loop, or use another name in the loop"
    message = f"the loop changes the type of `{name}` from {describe(initial)} to {describe(term)}"
    scope.problems.append(Diagnostic("E0208", message, Label(at.span), hint=hint))
    scope.poison([name])
    return initial


def tile_hint(term: Term) -> str:
    """An initial value of the type of `term`."""
    if isinstance(term, Value) and isinstance(term.type, TileType):
        if term.tile.shape:
            return f"zeros({term.tile.shape}, {term.tile.dtype})"
        return f"{term.tile.dtype}(0)"
    return "0.0" if isinstance(term, float) else "0"


def _range(scope: Scope, node: ast.expr) -> list[Value]:
    at = scope.at(node)
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if not isinstance(node, ast.Call) or name != "range" or name in scope.env or name in scope.module.names:
        raise at.error("E0111", "a loop runs over `range(...)`", hint="write `for i in range(n):`, or loop over a tuple")
    if node.keywords or not 1 <= len(node.args) <= 3 or any(isinstance(a, ast.Starred) for a in node.args):
        raise at.error("E0111", "`range` takes 1 to 3 integers", hint="write `range(stop)` or `range(start, stop, step)`")
    terms = [expression(scope, argument) for argument in node.args]
    locations = [scope.at(argument) for argument in node.args]
    if len(terms) == 1:
        terms, locations = [0, *terms], [at, *locations]
    if len(terms) == 2:
        terms, locations = [*terms, 1], [*locations, at]
    step = terms[2]
    if isinstance(step, int | float) and step <= 0:
        raise locations[2].error("E0111", f"the step is {step}", hint="loops count up: use a positive step")
    values: list[Value] = []
    for term, location in zip(terms, locations, strict=True):
        value = arithmetic.integer_scalar(scope.emitter, term, location, "a loop bound")
        if value.tile.dtype != i32:
            raise location.error("E0111", f"a loop bound is i32, found {value.tile.dtype}", hint="convert with `i32(...)`")
        values.append(value)
    return values


def _passes(scope: Scope, node: ast.expr) -> list[Value]:
    """The bounds of a loop that was a `while` with this number, whose last pass only finds the condition false."""
    emitter, at = scope.emitter, scope.at(node)
    first, zero, one = (emitter.constant(number, TileType(i32), at) for number in (-1, 0, 1))
    return [first, emitter.binary_op("max", number_of_passes(scope, node), zero, at), one]


def _with(scope: Scope, node: ast.With) -> None:
    at = scope.at(node)
    item = node.items[0]
    call = item.context_expr
    if len(node.items) != 1 or item.optional_vars is not None or not isinstance(call, ast.Call) or (
        word_of(scope.module, call.func) != "unsafe"
    ):  # fmt: skip
        raise at.error("E0105", "`with` takes only `unsafe(...)`", hint='write `with unsafe("reason"):`')
    reason = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(reason, ast.Constant) or not isinstance(reason.value, str) or not reason.value.strip():
        raise at.error("E0113", "`unsafe` takes its reason as a string", hint='write `with unsafe("reason"):`')
    outer = scope.emitter.unsafe
    scope.emitter.unsafe = len(scope.function.unsafe)
    scope.function.unsafe += (UnsafeBlock(reason.value, at.span),)
    try:
        _nested(scope, node.body)
    finally:
        scope.emitter.unsafe = outer


def _assert(scope: Scope, node: ast.Assert) -> None:
    term = expression(scope, node.test)
    at = scope.at(node)
    if not isinstance(term, bool | int | float):
        raise at.error("E0216", "an assertion must be decided by the constants", hint="state launch facts with `requires(...)`")
    if not term:
        note = node.msg.value if isinstance(node.msg, ast.Constant) and isinstance(node.msg.value, str) else ""
        raise at.error("E0216", f"the assertion is false for the given constants{': ' + note if note else ''}",
                hint="change the constants in build.toml")  # fmt: skip


def _pass(scope: Scope, node: ast.Pass) -> None:
    del scope, node


_BUILD: Final[dict[type[ast.stmt], Callable[[Scope, Any], None]]] = {
    ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented, ast.If: _if,
    ast.For: _for, Passes: _for, Measure: measure, ast.While: refused_while, ast.With: _with, ast.Assert: _assert,
    ast.Pass: _pass,
}  # fmt: skip
_UNSUPPORTED: Final[dict[type[ast.stmt], tuple[str, str]]] = {
    ast.Try: ("`try`", "tile operations raise nothing"),
    ast.Break: ("`break` outside of a loop", "to end the kernel early, write `if condition: return` at its top level"),
    ast.Continue: ("`continue` outside of a loop", "guard the rest with `if`"),
    ast.FunctionDef: ("a nested function", "define a `@tilec.function` at module level"),
    ast.ClassDef: ("a class", "define dims at module level"),
    ast.Import: ("an import", "import at module level"), ast.ImportFrom: ("an import", "import at module level"),
    ast.Delete: ("`del`", "names end with their function"), ast.Global: ("`global`", "return values instead"),
    ast.Nonlocal: ("`nonlocal`", "return values instead"), ast.Raise: ("`raise`", "state what must hold with `requires(...)`"),
    ast.Match: ("`match`", "write `if` and `elif`"), ast.AsyncFor: ("`async`", "write `for i in range(...)`"),
    ast.AsyncWith: ("`async`", "kernels are sequential"),
}  # fmt: skip
