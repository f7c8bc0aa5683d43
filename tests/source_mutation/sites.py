"""Which mistakes are made: a fixed choice of places spread over the files and functions that decide what is safe.

`chosen(root, count)` gives the same mutants for the same source; their order and identity come from hashes of the text
around them, so an edit elsewhere moves few of them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from ci.evidence.digests import tree_text
from tests.source_mutation.operators import changes

WEIGHTS = {
    "tilec/passes": 1.0, "tilec/lowering": 1.0, "tilec/codegen": 0.6, "tilec/ir/verifier.py": 0.5,
    "tilec/ir/ops/control.py": 0.4, "tilec/ir/ops/memory.py": 0.4, "tilec/ir/ops/values.py": 0.4,
    "tilec/ir/facts/range_facts.py": 1.0,
    "tilec/ir/types.py": 0.6, "tilec/ir/expr.py": 0.8, "tilec/ir/layouts/layout.py": 0.6, "tilec/atoms": 1.0,
    "tilec/ir/layouts/blocked_layouts.py": 0.5, "tilec/frontend/arithmetic.py": 0.6, "tilec/frontend/memory.py": 0.8,
    "tilec/frontend/host.py": 0.8, "tilec/frontend/signature.py": 0.5, "tilec/frontend/emitter.py": 0.5,
    "tilec/frontend/directives.py": 0.4, "tilec/target/dtypes.py": 0.6,
}  # fmt: skip
SAFETY = {
    "tilec/passes/prover/bounds.py": 2, "tilec/passes/prover/races.py": 2, "tilec/passes/prover/coverage.py": 1.5,
    "tilec/passes/prover/order.py": 2, "tilec/passes/prover/wrap.py": 2, "tilec/passes/prover/accesses.py": 2,
    "tilec/passes/prover/index_terms.py": 2, "tilec/passes/analysis/ranges.py": 1.5,
    "tilec/passes/schedule/pipelining/staged_loads.py": 1.5, "tilec/passes/schedule/pipelining/staging.py": 1.5,
    "tilec/passes/schedule/sync/barrier_insertion.py": 2, "tilec/passes/schedule/checks/barrier_check.py": 1.5,
    "tilec/passes/schedule/simplify/versioning.py": 1.5, "tilec/passes/prover/aliasing.py": 2, "tilec/lowering/memory.py": 2,
    "tilec/lowering/arithmetic.py": 2, "tilec/passes/prover/index_graph.py": 0,
    "tilec/passes/schedule/layouts/layout.py": 0.6, "tilec/passes/schedule/pipelining/warpgroups.py": 0.5,
}  # fmt: skip
FIRST_PATHS: dict[str, str] = json.loads(Path(__file__).with_name("first_paths.json").read_text(encoding="utf-8"))
"""Where a file lay when its mistakes were named first: identities and so the choice survive a move."""
MESSAGES = {
    "Diagnostic",
    "Complaint",
    "Label",
    "error",
    "CompileError",
    "complain",
    "VerifyError",
    "ValueError",
    "_require",
    "_failure",
}
SKIPPED_FUNCTIONS = {
    "__str__",
    "__repr__",
    "describe",
    "complain",
    "_hint",
    "_dim_text",
    "_role",
    "_wraps",
    "_complaint",
    "_text",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: the text at `start..end` of a file becomes `new`."""

    path: str
    line: int
    function: str
    operator: str
    what: str
    start: int
    end: int
    old: str
    new: str
    ordinal: int

    @property
    def identity(self) -> str:
        """A short name that survives edits elsewhere."""
        parts = (FIRST_PATHS.get(self.path, self.path), self.function, self.operator, self.what, self.old, str(self.ordinal))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]

    def applied(self, text: str) -> str:
        """The file with the mistake."""
        return text[: self.start] + self.new + text[self.end :]


def function_tree(text: str, function: str) -> str:
    """The syntax of a function of a file, by the name that mutants have it under, without words; empty where it is gone."""
    scope: list[ast.AST] = [*ast.parse(text).body]
    for name in function.split("."):
        found = next((node for node in _within(scope) if isinstance(node, ast.FunctionDef) and node.name == name), None)
        if found is None:
            return ""
        scope = [*found.body]
        text = tree_text(ast.unparse(found))
    return text


def _within(scope: list[ast.AST]) -> Iterator[ast.AST]:
    for node in scope:
        yield node
        yield from ast.walk(node)


def files(root: Path) -> list[tuple[Path, float]]:
    """Source files with their weight."""
    found: dict[Path, float] = {}
    for name, weight in WEIGHTS.items():
        for path in sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / name]:
            relative = path.relative_to(root).as_posix()
            found[path] = weight * SAFETY.get(relative, 1)
    return [(path, weight) for path, weight in found.items() if weight and path.exists() and path.name != "__init__.py"]


def mutants(root: Path, path: Path) -> list[Mutant]:
    """Every mistake of one file; a few may not parse."""
    return list(_mutants(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))


@functools.cache
def _mutants(relative: str, text: str) -> tuple[Mutant, ...]:
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str, str], int] = {}
    for function, node, parent in _nodes(ast.parse(text)):
        for operator, what, target, new in changes(node, parent):
            if not isinstance(target, ast.expr | ast.stmt):
                continue
            start, end = (_offset(text, lines, *at) for at in ((target.lineno, target.col_offset), _end(target)))
            old = text[start:end]
            key = (function, operator, what, old)
            seen[key] = seen.get(key, -1) + 1
            found.append(Mutant(relative, target.lineno, function, operator, what, start, end, old, new, seen[key]))
    return tuple(found)


def _offset(text: str, lines: list[int], line: int, column: int) -> int:
    start = lines[line - 1]
    stop = lines[line] if line < len(lines) else len(text)
    return start + len(text[start:stop].encode()[:column].decode())


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _parses(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST | None]]:
    """Nodes of function bodies that decide something, with the function's name and the parent."""
    stack: list[tuple[str, ast.AST, ast.AST | None]] = [("", node, tree) for node in reversed(tree.body)]
    while stack:
        name, node, parent = stack.pop()
        if isinstance(node, ast.FunctionDef):
            if node.name in SKIPPED_FUNCTIONS:
                continue
            name = f"{name}.{node.name}".lstrip(".")
            children: list[ast.AST] = list(node.body[1:] if ast.get_docstring(node) is not None else node.body)
        elif isinstance(node, ast.ClassDef):
            children = [child for child in node.body if isinstance(child, ast.FunctionDef)]
        elif isinstance(node, ast.Assert | ast.Raise) or _is_message(node):
            continue
        else:
            if name:
                yield name, node, parent
            children = list(ast.iter_child_nodes(node)) if name else []
            if isinstance(node, ast.AnnAssign):
                children = [node.value] if node.value is not None else []
        stack += [(name, child, node) for child in reversed(children)]


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = (
            node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        )
        return name in MESSAGES
    return isinstance(node, ast.keyword) and node.arg in ("hint", "label", "notes")


def rooms(root: Path) -> list[tuple[Path, float]]:
    """All source files of the compiler and of the engine, of the same weight."""
    found = (path for package in ("tilec", "engine") for path in sorted((root / package).rglob("*.py")))
    return [(path, 1.0) for path in found if path.name != "__init__.py"]


def chosen(
    root: Path, count: int, without: Collection[str] = (), among: Sequence[tuple[Path, float]] | None = None
) -> list[Mutant]:
    """`count` mutants: by file in proportion to weight and the root of its size, at most two in a function, operators mixed.
    `among`: the files, with their weight; None: those of `files`. A mutant in `without` (identities) is replaced by the next of
    its file."""
    pools = {path: (mutants(root, path), weight) for path, weight in (files(root) if among is None else among)}
    total = sum(weight * sqrt(len(pool)) for pool, weight in pools.values())
    shares = sorted(
        ((weight * sqrt(len(pool)) * count / total, path) for path, (pool, weight) in pools.items() if pool), reverse=True
    )
    quotas = {path: int(share) for share, path in shares}
    rest = sorted(((share - int(share), path.as_posix(), path) for share, path in shares), reverse=True)
    for _, _, path in rest[: count - sum(quotas.values())]:
        quotas[path] += 1
    found: list[Mutant] = []
    for path, quota in sorted(quotas.items()):
        found += _spread(path.read_text(encoding="utf-8"), pools[path][0], quota, without)
    return found


def _spread(text: str, pool: list[Mutant], quota: int, without: Collection[str]) -> list[Mutant]:
    order = sorted(pool, key=lambda mutant: mutant.identity)
    taken: list[Mutant] = []
    for most in (1, 2, 99):
        for mutant in order:
            same = sum(other.function == mutant.function for other in taken)
            kind = sum(other.operator == mutant.operator for other in taken)
            wanted = len(taken) < quota and mutant not in taken and same < most and kind < max(1, quota // 3) * most
            if wanted and mutant.identity not in without and _parses(mutant.applied(text)):
                taken.append(mutant)
    return taken
