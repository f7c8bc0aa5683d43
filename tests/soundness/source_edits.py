"""Edits of a kernel given as source text: inserts one mistake, or shrinks it while a property stays true.

Both work on the syntax tree, so they cover the whole language. The frontend may refuse an edited text.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator

from tests.programs.typed_tiles import INTEGERS

_SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.FloorDiv), ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd, ast.BitXor), ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
_FUNCTION_SWAPS = {
    "minimum": ("maximum",), "maximum": ("minimum",), "min": ("max",), "max": ("min",), "argmax": ("argmin", "max"),
    "argmin": ("argmax",), "sum": ("max",),
}  # fmt: skip
Edit = Callable[[], object]


def kernel_node(tree: ast.Module) -> ast.FunctionDef:
    """The kernel of a file."""
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "random_kernel")


def mutate_source(r: random.Random, text: str) -> str:
    """The text with one mistake of the kind people make."""
    tree = ast.parse(text)
    edits = list(_edits(r, tree))
    if edits:
        r.choice(edits)()
    return _text(tree)


def _text(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _edits(r: random.Random, tree: ast.Module) -> Iterator[Edit]:
    for routine in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        for node in ast.walk(routine):
            yield from _node_edits(r, node)
        for body in _bodies(routine):
            yield from _body_edits(r, body)


def _node_edits(r: random.Random, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield lambda: setattr(node, "value", max(0, node.value + r.choice([-1, 1])))  # pyright: ignore[reportOperatorIssue]
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield lambda: setattr(node, "op", r.choice(_SWAPS[type(node.op)])())
        if isinstance(node.op, ast.Sub | ast.Mod | ast.FloorDiv):
            yield lambda: _swap(node)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield lambda: node.ops.__setitem__(0, r.choice(_SWAPS[type(node.ops[0])])())  # pyright: ignore[reportArgumentType]
    elif isinstance(node, ast.Call):
        yield from _call_edits(r, node)
    elif isinstance(node, ast.Name) and node.id in (*INTEGERS, "u64"):
        yield lambda: setattr(node, "id", r.choice(INTEGERS))


def _swap(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


def _call_edits(r: random.Random, node: ast.Call) -> Iterator[Edit]:
    if node.keywords and node.keywords[0].arg in ("pad", "mask", "distinct", "distinct_in_rows", "sorted"):
        yield node.keywords.clear
    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if isinstance(node.func, ast.Name) and name in ("load", "gather") and not any(k.arg == "pad" for k in node.keywords):
        yield lambda: node.keywords.append(ast.keyword("pad", ast.Constant(0)))
    if isinstance(node.func, ast.Name) and name in _FUNCTION_SWAPS:
        yield lambda: setattr(node.func, "id", r.choice(_FUNCTION_SWAPS[name]))
    if name == "where":
        yield lambda: node.args.append(node.args.pop(1))
    if name in ("load", "store", "gather", "scatter"):
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            if isinstance(argument, ast.Tuple) and len(argument.elts) == 2:
                yield argument.elts.reverse


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for inner in ast.walk(node):
        for name in ("body", "orelse"):
            body = getattr(inner, name, None)
            if isinstance(body, list) and body:
                yield body


def _body_edits(r: random.Random, body: list[ast.stmt]) -> Iterator[Edit]:
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and len(body) > 1:
            yield lambda p=index: body.pop(p)
            yield lambda p=index, s=statement: body.insert(p, copy.deepcopy(s))
            if _called(statement) not in ("grid", "requires", "values"):
                test = ast.parse(r.choice(["b > 0", "b % 2 == 0", "b < num_blocks(0) - 1"]), mode="eval").body
                yield lambda p=index, s=statement, t=test: body.__setitem__(p, ast.If(t, [s], []))


def _called(statement: ast.Expr) -> str:
    call = statement.value
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def shrink_source(text: str, has_property: Callable[[str], bool], tries: int = 400) -> str:
    """The smallest text found with the property by removing one thing at a time; `text` itself must have it."""
    text = _text(ast.parse(text))
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _smaller(text):
            tries -= 1
            if tries <= 0:
                break
            if len(candidate) < len(text) and has_property(candidate):
                text, smaller = candidate, True
                break
    return text


def _smaller(text: str) -> Iterator[str]:
    count = sum(1 for _ in _removals(ast.parse(text)))
    for index in range(count):
        tree = ast.parse(text)
        next(edit for k, edit in enumerate(_removals(tree)) if k == index)()
        candidate = _text(tree)
        yield candidate


def _removals(tree: ast.Module) -> Iterator[Edit]:
    for body in [b for routine in tree.body if isinstance(routine, ast.FunctionDef) for b in _bodies(routine)]:
        for index in reversed(range(len(body))):
            if len(body) > 1:
                yield lambda b=body, p=index: b.pop(p)
            statement = body[index]
            if isinstance(statement, ast.If | ast.For | ast.With):
                yield lambda b=body, p=index, s=statement: b.__setitem__(slice(p, p + 1), s.body)
    routine = kernel_node(tree)
    for index in reversed(range(len(routine.args.args))):
        yield lambda p=index: routine.args.args.pop(p)
    for index in reversed(range(len(tree.body))):
        if isinstance(tree.body[index], ast.ClassDef) or (
            isinstance(tree.body[index], ast.FunctionDef) and tree.body[index] is not routine
        ):
            yield lambda p=index: tree.body.pop(p)
    for node in ast.walk(routine):
        for name, value in ast.iter_fields(node):
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            for key, item in items:
                for inner in _operands(item):
                    yield lambda n=node, a=name, k=key, i=inner: _replace(n, a, k, i)


def _operands(item: object) -> list[ast.expr]:
    if isinstance(item, ast.BinOp):
        return [item.left, item.right]
    if isinstance(item, ast.UnaryOp):
        return [item.operand]
    if isinstance(item, ast.Call):
        inner = [a for a in item.args if isinstance(a, ast.expr)]
        return inner + ([item.func.value] if isinstance(item.func, ast.Attribute) and item.func.attr != "sum" else [])
    return []


def _replace(node: ast.AST, name: str, key: int | None, inner: ast.expr) -> None:
    if key is None:
        setattr(node, name, inner)
    else:
        getattr(node, name)[key] = inner
