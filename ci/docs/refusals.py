"""Lists the errors of each word of the language, from the frontend's source and the refused kernels of the tests.

In: `tilec/frontend/*.py`, where the function under `@word("load")`, and the functions it calls, contain every
`error("E0206", message)` that a call of `load` can raise; `tests/ui`, where a diagnostic of the prover points at the call it is
about. Out: by word, codes with their messages, with `...` for parts that depend on the call.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

FRONTEND: Final = (
    "words",
    "reductions",
    "joins",
    "scans",
    "sorts",
    "takes",
    "loop_claims",
    "memory",
    "printing",
    "directives",
    "arithmetic",
    "expressions",
    "arguments",
    "statements",
    "host",
)
_WORD: Final = ("call.word", "self.word", "kind")
_SHOWN: Final = {"tensor.name": "x", "parameter.name": "x"}
"""Replacements in messages for expressions that depend on the call; all others become `...`."""
_WHAT: Final = {"dims": "a shape", "check_integer_scalar": "an index"}
"""The meaning of `what` in the messages of some functions."""
_REFUSED: Final = re.compile(r"^error\[(E0[34]\d\d)\]: (.*)\n +--> (\S+):(\d+):(\d+)$", re.MULTILINE)
_TOO_DEEP: Final = 3
_GENERAL: Final = ("bind", "bind_optional", "binary", "unify", "integer_scalar")
"""Functions called by many words, with errors common to every call or every operator."""
WORDS_OF_DIRECTIVES: Final = ("grid", "requires", "resident", "values", "ensures")

Refusal = tuple[str, str]
"""Code and message."""


def refusals(root: Path) -> dict[str, list[Refusal]]:
    """By word: the errors of the frontend, and those of the prover."""
    known = _functions(root)
    found: dict[str, list[Refusal]] = {}
    for (module, name), node in known.items():
        words = _words(node)
        if module == "directives" and name.removeprefix("_") in WORDS_OF_DIRECTIVES:
            words = [name.removeprefix("_")]
        for word in words:
            found.setdefault(word, []).extend(_errors(module, name, known, word, 0))
    for word, code, message in _of_prover(root):
        if code not in {one for one, _ in found.setdefault(word, [])}:
            found[word].append((code, message))
    return {word: sorted(set(some)) for word, some in found.items()}


Known = dict[tuple[str, str], ast.FunctionDef]


def _functions(root: Path) -> Known:
    """Every function and method of the frontend by module and name."""
    found: Known = {}
    for module in FRONTEND:
        tree = ast.parse((root / f"tilec/frontend/{module}.py").read_text(encoding="utf-8"))
        found |= {(module, node.name): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return found


def _words(node: ast.FunctionDef) -> list[str]:
    """The words of `@word("load")`; builtins of Python are not words of the language."""
    given = [one for one in node.decorator_list if isinstance(one, ast.Call) and ast.unparse(one.func) == "word"]
    names = [item for one in given for item in one.args]
    if any(isinstance(item, ast.Starred) for item in names):
        from tilec.frontend.arithmetic import FUNCTIONS

        return ["abs", *FUNCTIONS]
    found = [str(item.value) for item in names if isinstance(item, ast.Constant)]
    return [word for word in found if "." not in word]


def _errors(module: str, name: str, known: Known, word: str, depth: int) -> Iterator[Refusal]:
    node = known.get((module, name))
    if node is None or depth > _TOO_DEEP:
        return
    for call in _calls(node, word):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "error" and len(call.args) > 1:
            code = call.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield code.value, _message(call.args[1], name, word)
        target = _target(module, call.func)
        if target is not None and target[1] not in _GENERAL:
            yield from _errors(*target, known, word, depth + 1)


def _calls(node: ast.AST, word: str) -> Iterator[ast.Call]:
    """Calls in a function, except those under a condition that is false for the word."""
    if isinstance(node, ast.Call):
        yield node
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and _is_false(node.test, word):
        parts = iter(node.orelse)
    for part in parts:
        yield from _calls(part, word)


def _is_false(test: ast.expr, word: str) -> bool:
    """Whether a condition, or one of its conjuncts, is certainly false for the word."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_false(part, word) for part in test.values)
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    of_call = {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "call"}
    if not names or not names <= {"call", "kind"} or not of_call <= {"word"}:
        return False
    return not eval(compile(ast.Expression(test), "condition", "eval"), {"call": SimpleNamespace(word=word), "kind": word})


def _target(module: str, function: ast.expr) -> tuple[str, str] | None:
    """The function of the frontend that a call refers to."""
    if isinstance(function, ast.Name):
        return ("expressions", function.id) if function.id in ("matmul", "permute") else (module, function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = {"call": "arguments", "self": module, "arithmetic": "arithmetic"}.get(function.value.id)
        return (owner, function.attr) if owner else None
    return None


def _message(node: ast.expr, function: str, word: str) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        shown = _SHOWN | dict.fromkeys(_WORD, word) | {"what": _WHAT.get(function, "...")}
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else shown.get(ast.unparse(part.value), "...")
            for part in node.values if isinstance(part, ast.Constant | ast.FormattedValue)
        )  # fmt: skip
        return "".join(parts)
    return "..."


def _of_prover(root: Path) -> Iterator[tuple[str, str, str]]:
    """Word, code and message of the refused kernels of `tests/ui`."""
    for path in sorted((root / "tests/ui").glob("*/*.stderr")):
        for code, message, file, line, column in _REFUSED.findall(path.read_text(encoding="utf-8")):
            word = _call_at(path.parent / file, int(line), int(column) - 1)
            if word is not None:
                yield word, code, message


def _call_at(path: Path, line: int, column: int) -> str | None:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset) == (line, column) and isinstance(node.func, ast.Name):
            return node.func.id
    return None


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
