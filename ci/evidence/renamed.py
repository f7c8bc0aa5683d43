"""Carries results over a renaming: results that are fresh at a commit stay fresh where nothing but names and places changed.

In: a commit, a table of names and of texts that name files (`renames.toml`), the sources at the commit and now. Out: which
results rest on the same definitions under other names; `ci/renamed_results.py` writes today's digests into their JSON.

Two definitions are the same under a table if their syntax trees are equal after every name of the older one was replaced, and
after the local variables of each function were numbered in both. Parameters, attributes and names of modules count as they
are. So that a table can confuse nothing, a new name must be new: no definition of the commit may use it, and no two names may
become one. Texts are replaced where they are whole constants, such as the path of a file that moved.

A name of few files may become a common word. The table then lists it with a folder or file (`[[below]]`), and the new name must
be new in each definition there that uses the old one. That the folder and its callers still agree on an attribute or a keyword
is not checked here: pyright in strict mode and the tests do that.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ci.evidence.digests import Digests, definitions_of

RENAMES: Final = Path(__file__).with_name("renames.toml")
SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True, eq=False)
class Renames:
    """What was renamed since `before`, a commit: `names` of definitions, attributes, parameters and imported modules; `texts`,
    constants that name files or modules; `below`, names that were replaced in one folder or file alone, as paths at the
    commit."""

    before: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    below: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    def names_in(self, path: str) -> dict[str, str]:
        """Names to replace in a file; those of a longer path win."""
        found = dict(self.names)
        for folder in sorted(self.below, key=len):
            if path == folder or path.startswith(f"{folder}/"):
                found |= self.below[folder]
        return found


UNCHANGED: Final = Renames("")


class Confused(Exception):
    """A table that could make two things one; the message names them."""


def read_renames(path: Path = RENAMES) -> Renames:
    """The table of a file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    below = {entry["path"]: entry["names"] for entry in data.get("below", [])}
    return Renames(data["before"], data.get("names", {}), data.get("texts", {}), below)


def check(renames: Renames, trees: Iterable[tuple[str, ast.Module]]) -> None:
    """Raise Confused if a new name or text is in use in `trees`, the sources at the commit by path, or if two become one."""
    names, texts = set[str](), set[str]()
    for path, tree in trees:
        names |= {*_outer_names(tree)}
        for statement in tree.body:
            _check_definition(renames, path, ast.Module([statement], []))
        texts |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for table, used in ((renames.names, names), (renames.texts, texts)):
        counts = Counter(table.values())
        if twice := sorted(value for value, count in counts.items() if count > 1):
            raise Confused(f"two become one: {', '.join(twice)}")
        if taken := sorted(used & counts.keys()):
            raise Confused(f"in use before: {', '.join(taken)}")


def _check_definition(renames: Renames, path: str, definition: ast.Module) -> None:
    """Raise Confused if two names of a definition become one."""
    replaced, came_from = renames.names_in(path), dict[str, str]()
    for name in dict.fromkeys(_outer_names(definition)):
        new = replaced.get(name, name)
        if came_from.setdefault(new, name) != name:
            raise Confused(f"{path}: `{came_from[new]}` and `{name}` become `{new}` in one definition")


def _outer_names(tree: ast.Module) -> Iterator[str]:
    """Every name of a file but for local variables."""
    for node in ast.walk(_numbered(tree)):
        for name, value in ast.iter_fields(node):
            if name in ("id", "arg", "attr", "name", "asname") and isinstance(value, str):
                yield value


class _Renamed(ast.NodeTransformer):
    """Replaces names and texts."""

    def __init__(self, names: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self.names, self.texts = names, texts

    def visit(self, node: ast.AST) -> ast.AST:
        for name in ("id", "arg", "attr", "name", "asname"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                setattr(node, name, self.names.get(value, value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = self.texts.get(node.value, node.value)
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self.names.get(value, value) for value in node.names]
        return self.generic_visit(node)


def _numbered(tree: ast.Module) -> ast.Module:
    """A copy of a tree whose local variables are numbered in the order in which their functions bind them."""
    copy = ast.parse(ast.unparse(tree))
    for statement in copy.body:
        _number(statement, {})
    return copy


def _number(node: ast.AST, known: Mapping[str, str]) -> None:
    """Number the variables in a node. `known`: labels of the variables of the functions around it."""
    inside = known
    if isinstance(node, SCOPES):
        kept = _parameters(node)
        outer = {name: label for name, label in known.items() if name not in kept}
        inside = outer | {
            name: f"<{len(outer) + index}>" for index, name in enumerate(name for name in _bound(node) if name not in kept)
        }
    around = _evaluated_around(node)
    for child in ast.iter_child_nodes(node):
        labels = known if child in around else inside
        if isinstance(child, ast.Name) and child.id in labels:
            child.id = labels[child.id]
        if isinstance(child, ast.FunctionDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and child.name in labels:
            child.name = labels[str(child.name)]
        _number(child, labels)


def _evaluated_around(node: ast.AST) -> list[ast.AST]:
    """Parts of a function that the scope around it evaluates: decorators, defaults and annotations."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
    if isinstance(node, ast.Lambda):
        return [node.args]
    return []


def _parameters(scope: ast.AST) -> set[str]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    return {argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)}


def _bound(scope: ast.AST) -> list[str]:
    """Names that a scope binds itself, not in a scope inside of it, in the order of the text; none that it declares global."""
    found: dict[str, None] = {}
    outside: set[str] = set()
    waiting: list[ast.AST] = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Global | ast.Nonlocal):
            outside |= {*node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found[node.name] = None
        if isinstance(node, ast.alias):
            outside.add(node.asname or node.name)  # what an import binds is no variable
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            waiting = [*ast.iter_child_nodes(node), *waiting]
    return [name for name in found if name not in outside]


def same(before: Digests, now: Digests, paths_before: Iterable[str], paths_now: Iterable[str], renames: Renames) -> bool:
    """Whether the sources of a result have the same definitions as they had, under the table."""
    return _all(before, paths_before, renames) == _all(now, paths_now, UNCHANGED)


def _all(digests: Digests, paths: Iterable[str], renames: Renames) -> list[str]:
    files = dict.fromkeys(file for path in paths for file in digests.files(path))
    return sorted(text for file in files for text in _definitions(file, file.relative_to(digests.root).as_posix(), renames))


@functools.cache
def _definitions(file: Path, path: str, renames: Renames) -> list[str]:
    """The definitions of a file under other names; a file that is no Python counts as it stands."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8")) if file.suffix == ".py" else None
    except (SyntaxError, ValueError):
        tree = None
    if tree is None:
        return [file.read_bytes().hex()]
    _Renamed(renames.names_in(path), renames.texts).visit(tree)  # in place: nothing replaces a module
    return definitions_of(_numbered(tree))


def trees(digests: Digests, paths: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """The paths and syntax trees of the Python files of paths."""
    for file in dict.fromkeys(file for path in paths for file in digests.files(path)):
        if file.suffix == ".py":
            try:
                yield file.relative_to(digests.root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):
                continue
