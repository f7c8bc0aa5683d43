"""Fail if an import breaks the direction of the data flow.  Run: python ci/check_layers.py [ROOT]

Vocabulary may be imported by everyone; stages import vocabulary only, never each other; drivers import anything in `tilec`.
`engine` may import the runtime, the bundle finder, and the vocabulary that describes artifacts; its one file that runs kernels
from their sources may also import the frontend and the interpreter. There are no import cycles, not even through imports inside
functions; imports under `if TYPE_CHECKING` do not count. The runtime, the vocabulary and `tilec/__init__.py` never import a
compiler package, so that a machine without one can run bundles.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

VOCABULARY: Final = (
    "visible", "startup", "limits", "progress", "diagnostics", "spelling", "language", "target", "toolchain", "ir", "step",
    "mlir", "atoms", "artifact", "manifest_reader", "bundle_format", "strict_json", "regular_file", "signature_format",
    "temporary_files", "folder", "output", "output_tree", "signing_keys", "cubin_image", "schedule", "shipped",
)  # fmt: skip
STAGES: Final = (
    "workers",
    "frontend",
    "interpreter",
    "passes",
    "lowering",
    "codegen",
    "assemble",
    "emulator",
    "cache",
    "runtime",
    "registry",
    "graph",
)
PASSES: Final = {"analysis": (), "prover": ("analysis",), "schedule": ("analysis",)}
"""What a folder of `tilec/passes` may import from the others: prover and schedule are independent of each other."""
AUDIT: Final = ("audit",)
"""An independent checker: it imports what describes and runs artifacts, and nothing that built them. The store caches its
verdicts."""
AUDIT_MAY_USE: Final = ("workers", "cache", "runtime", "emulator", "interpreter", "")
FINDER: Final = ("finder",)
"""Needs no compiler: combines installed bundles, registries, and the loader that verifies bundles."""
FINDER_MAY_USE: Final = ("cache", "registry", "runtime")
OPS: Final = ("ops",)
"""Kernels as functions: imports what parses kernels, launches them and finds prebuilt ones; the compiler only by name."""
OPS_MAY_USE: Final = ("frontend", "runtime", "finder")
DRIVERS: Final = (
    "defects", "terminal", "pipeline", "link", "project", "tuning", "bundle", "lsp", "cli", "__main__", "__init__",
)  # fmt: skip
ENGINE_MAY_USE: Final = ("runtime", "finder", "artifact", "ir", "step", "output", "output_tree", "visible")
RUNS_SOURCES: Final = ("engine", "backends", "interpreter")
SOURCES_NEED: Final = ("frontend", "interpreter", "diagnostics", "shipped")
COMPILER_PACKAGES: Final = frozenset({"torch_mlir", "mlir", "llvmlite", "islpy", "networkx", "platformdirs", "grandalf"})
NO_COMPILER: Final = (
    "__init__", *VOCABULARY[:7], "artifact", "manifest_reader", "bundle_format", "strict_json", "regular_file",
    "signature_format", "temporary_files", "folder", "output", "output_tree", "signing_keys", "cubin_image", "runtime",
    "registry", "finder", "ops", "target", "ir", "step",
)  # fmt: skip


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file as (line, dotted name), including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "<relative>"
            else:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _runs(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except those under `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def uses(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """For each of `files`, by dotted name, the other ones that it imports at run time."""
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in _runs(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for imported in names:
                while imported and imported not in files:  # a name inside a file, or another project's
                    imported = imported.rpartition(".")[0]
                if imported and imported != name:
                    found[name].add(imported)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Import cycles, each as names in import order; empty if there are none."""
    left, found = {name: sorted(used) for name, used in sorted(graph.items())}, list[list[str]]()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]  # the sorter lists the imported before the importer
            found.append(circle)
            left[circle[0]].remove(circle[1])
        else:
            return found


def complaint(importer: Sequence[str], imported: str) -> str:
    """Why the file `importer` (path parts without suffix) must not import `imported`; empty if it may."""
    package, here = importer[0], importer[1] if len(importer) > 1 else "__init__"
    top, _, rest = imported.partition(".")
    there = rest.split(".")[0]
    if imported == "<relative>":
        return "relative imports hide the layer; spell the package out"
    if package == "engine":
        allowed = (*ENGINE_MAY_USE, *SOURCES_NEED) if importer == RUNS_SOURCES else ENGINE_MAY_USE
        if top == "tilec" and there not in allowed:
            return f"{'.'.join(importer)} may import tilec.{{{', '.join(allowed)}}} only"
        return "engine runs without a compiler" if top in COMPILER_PACKAGES else ""
    if top == "engine":
        return "tilec does not know the engine"
    if here in NO_COMPILER and top in COMPILER_PACKAGES:
        return f"{here} must work where {top} is not installed"
    if top == "tilec" and here == there == "passes":
        mine, other = importer[2], rest.split(".")[1] if "." in rest else ""
        allowed = PASSES.get(mine)
        if allowed is None:
            return "" if mine == "__init__" else f"passes.{mine} is in no folder of passes; add it to ci/check_layers.py"
        return "" if other in (mine, *allowed) else f"passes.{mine} may not import passes.{other}"
    if top != "tilec" or here == there or here in DRIVERS:
        return ""
    known = (*VOCABULARY, *STAGES, *AUDIT, *FINDER, *OPS, *DRIVERS)
    if here not in known:
        return f"{here} is in no layer; add it to ci/check_layers.py"
    if here in VOCABULARY and there in VOCABULARY[: VOCABULARY.index(here)]:
        return ""
    if here in STAGES and there in VOCABULARY:
        return ""
    if here in AUDIT and there in (*VOCABULARY, *AUDIT_MAY_USE):
        return ""
    if here in FINDER and there in (*VOCABULARY, *FINDER_MAY_USE):
        return ""
    if here in OPS and there in (*VOCABULARY, *OPS_MAY_USE):
        return ""
    return f"{here} may not import {there}"


def main(root: Path) -> int:
    """Print every violation below `root`; returns 1 if there is one."""
    found: list[str] = []
    files: dict[str, Path] = {}
    for package in ("tilec", "engine"):
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root)
            parts = relative.with_suffix("").parts
            files[".".join(parts).removesuffix(".__init__")] = path
            for line, name in imports(path):
                reason = complaint(parts, name)
                if reason:
                    found.append(f"{relative}:{line}: imports {name}: {reason}")
    found += [f"imports in a circle: {' -> '.join(circle)}" for circle in circles(uses(files))]
    print("\n".join(found) or "layers ok")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
