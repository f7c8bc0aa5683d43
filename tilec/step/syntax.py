"""The syntax tree of a step as JSON, so that no parser is needed to read the step in a bundle.

`encode` takes a tree and returns lists, `decode` the reverse; each node is the name of its class and its parts in the order of
`PARTS`. Comments, string statements and locations are omitted. Only the node classes that steps use are accepted. `reader`
checks their combinations, whether the tree came from a text or from JSON.
"""

from __future__ import annotations

import ast
from typing import Any, Final, cast

from tilec.step.expressions import StepError

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "Module": ("body",), "Assign": ("targets", "value"), "Pass": (), "If": ("test", "body", "orelse"),
    "For": ("target", "iter", "body", "orelse"), "FunctionDef": ("name", "body"), "Name": ("id",), "Constant": ("value",),
    "Attribute": ("value", "attr"), "Subscript": ("value", "slice"), "Call": ("func", "args", "keywords"),
    "keyword": ("arg", "value"), "List": ("elts",), "Tuple": ("elts",), "Dict": ("keys", "values"),
    "BinOp": ("left", "op", "right"), "UnaryOp": ("op", "operand"), "BoolOp": ("op", "values"),
    "Compare": ("left", "ops", "comparators"), "IfExp": ("test", "body", "orelse"),
    **dict.fromkeys(
        ("Add", "Sub", "Mult", "FloorDiv", "Mod", "Not", "And", "Or", "Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"), ()
    ),
}  # fmt: skip
"""Fields of each node class, in order."""

MAX_DEPTH: Final = 100
MAX_NODES: Final = 1 << 16


def encode(node: Any) -> Any:
    """The JSON of a tree that `reader` has accepted, or of a part of one."""
    if isinstance(node, list):
        items = cast("list[Any]", node)
        return [encode(item) for item in items if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
    if isinstance(node, ast.AST):
        name = type(node).__name__
        return [name, *(encode(getattr(node, part)) for part in PARTS[name])]
    return node


def decode(data: Any) -> ast.Module:
    """The tree of some JSON; StepError if it is invalid."""
    nodes = 0

    def read(item: Any, depth: int) -> Any:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise StepError("a step is too large, or nested too deeply")
        if not isinstance(item, list):
            if item is None or isinstance(item, str | int | float):
                return item
            raise StepError("not the syntax of a step")
        items = cast("list[Any]", item)
        if not items or not isinstance(items[0], str):
            return [read(child, depth + 1) for child in items]
        parts = PARTS.get(items[0])
        if parts is None or len(items) != 1 + len(parts):
            raise StepError(f"`{items[0]:.40}` is no part of a step")
        fields = {name: read(child, depth + 1) for name, child in zip(parts, items[1:], strict=True)}
        if items[0] == "FunctionDef":
            fields["args"] = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        elif items[0] == "Constant":
            fields["kind"] = None
        return getattr(ast, items[0])(**fields)

    tree = read(data, 0)
    if not isinstance(tree, ast.Module) or not _is_well_formed(tree):
        raise StepError("not the syntax of a step")
    return tree


LIST_FIELDS: Final = frozenset(
    {"body", "orelse", "targets", "args", "keywords", "elts", "keys", "values", "ops", "comparators"}
)
NAME_FIELDS: Final = frozenset({"id", "attr", "name", "arg"})


def _is_well_formed(tree: ast.Module) -> bool:
    """Whether every field has its kind: a list of nodes, a name, a constant, or a node."""
    for node in ast.walk(tree):
        name = type(node).__name__
        for part in PARTS.get(name, ()):
            value: Any = getattr(node, part)
            if name == "Constant":
                valid = value is not None and not isinstance(value, ast.AST | list)
            elif part in NAME_FIELDS:
                valid = isinstance(value, str) and value.isidentifier()
            elif part in LIST_FIELDS and name != "IfExp":
                valid = isinstance(value, list) and all(isinstance(item, ast.AST) for item in cast("list[Any]", value))
            else:
                valid = isinstance(value, ast.AST)
            if not valid:
                return False
    return True
