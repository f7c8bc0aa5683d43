"""Which test files reach the function of a mistake: the others cannot see the mistake and need not run.

In: a copy of the tree, mistakes, test files. Each function with a mistake gets a probe as its first statement, which appends
the mistake's name to a file. Every test file then runs in a process of its own, so that nothing another file has cached hides
a call, and child processes count as the file that started them. Out: test files by identity of the mistake.

The map is a shortcut and no evidence: a file that it leaves out wrongly can only make a mistake survive that a test would see.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.source_mutation.sites import Mutant

REACHED = ".reached"
"""The file that probes append to, at the root of the tree."""


def insert_probes(root: Path, wanted: Iterable[Mutant]) -> None:
    """Rewrite the files of a tree in place."""
    by_path: dict[str, list[Mutant]] = {}
    for mutant in wanted:
        by_path.setdefault(mutant.path, []).append(mutant)
    for path, mutants in by_path.items():
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        for mutant in mutants:
            function = _function(tree, mutant.function)
            first = 1 if ast.get_docstring(function) is not None else 0
            function.body[first:first] = ast.parse(_probe(mutant.identity, root / REACHED)).body
        (root / path).write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    scope: list[ast.stmt] = tree.body
    found: ast.FunctionDef | None = None
    for part in name.split("."):
        inside = (node for top in scope for node in (top, *ast.walk(top)))
        found = next(node for node in inside if isinstance(node, ast.FunctionDef) and node.name == part)
        scope = found.body
    assert found is not None
    return found


def _probe(identity: str, file: Path) -> str:
    seen = f"_reached_{identity}"
    return f"if {seen!r} not in globals():\n    globals()[{seen!r}] = open({str(file)!r}, 'a').write('{identity}\\n')"


def reached(root: Path) -> set[str]:
    """Identities of the mistakes whose functions ran since the last call."""
    file = root / REACHED
    found = set(file.read_text(encoding="utf-8").split()) if file.exists() else set[str]()
    file.unlink(missing_ok=True)
    return found


def write_map(path: Path, found: Mapping[str, Iterable[str]]) -> None:
    """Write test files by identity: the files once, then their numbers."""
    files = sorted({file for files in found.values() for file in files})
    lines = [f"{json.dumps(identity)}: {json.dumps(sorted(map(files.index, found[identity])))}" for identity in sorted(found)]
    body = ",\n".join(lines)
    path.write_text(f'{{"files": {json.dumps(files, indent=0)},\n"reached": {{\n{body}\n}}}}\n', encoding="utf-8")


def read_map(path: Path) -> dict[str, list[str]]:
    """Test files by identity; none if there is no file."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return {identity: [data["files"][number] for number in numbers] for identity, numbers in data["reached"].items()}
