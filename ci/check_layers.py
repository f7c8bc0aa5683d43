"""Fail when an import breaks the direction of the data flow.  Run: python ci/check_layers.py [ROOT]

Vocabulary may be imported by everyone; stages import vocabulary only, never each other; drivers import anything in `tilec`.
`engine` sees the runtime, what finds bundles for it, and the vocabulary that describes artifacts; its one file that runs
kernels from their sources sees the frontend and the interpreter too. No files import each other in a circle, not even from
inside a function, which is where one hides, nor for type checkers alone, under `if TYPE_CHECKING`; this holds for
`ci`, tests, kernels and examples too. The runtime, the vocabulary and `tilec/__init__.py` never import a compiler package, so
that a machine without one can run bundles.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

VOCABULARY: Final = (
    "version", "diagnostics.visible", "startup", "untrusted.limits", "untrusted.regular_file", "progress", "diagnostics",
    "language", "untrusted.folder", "target", "toolchain", "ir", "step", "mlir", "atoms", "artifact.bundle_format",
    "untrusted.strict_json", "artifact.signature_format", "untrusted.temporary_files", "untrusted", "artifact", "shipped",
)  # fmt: skip
"""In the order in which they build on each other. A file that stands before its folder is used by what lies between them."""
STAGES: Final = (
    "workers",
    "frontend",
    "interpreter",
    "passes",
    "cost_model",
    "lowering",
    "codegen",
    "assemble",
    "emulator",
    "cache",
    "runtime",
    "ship.registry",
    "graph",
)
PASSES: Final = {"analysis": (), "prover": ("analysis",), "schedule": ("analysis",)}
"""What a folder of `tilec/passes` may use of the others: proofs and schedules know nothing of each other."""
AUDIT: Final = ("audit",)
"""An independent checker: it sees what describes and runs artifacts, nothing that made them. The store keeps its verdicts."""
AUDIT_MAY_USE: Final = ("workers", "cache", "runtime", "emulator", "interpreter", "")
FINDER: Final = ("ship.finder",)
"""Joins what a machine without a compiler has: where bundles lie, registries that have some, the loader that checks them."""
FINDER_MAY_USE: Final = ("cache", "ship.registry", "runtime")
OPS: Final = ("ops",)
"""Kernels as functions: they see what reads kernels, launches them and finds prebuilt ones, and the compiler by name alone."""
OPS_MAY_USE: Final = ("frontend", "runtime", "ship.finder")
LIBRARY: Final = ("kernels",)
"""Kernels as an author writes them, and functions that call them: they see the words, and what makes ops."""
LIBRARY_MAY_USE: Final = ("ops", "runtime", "")
QUALIFY: Final = ("qualify",)
"""Launches a bundle where no compiler is: it sees what loads, times and compares, and the compiler nowhere."""
QUALIFY_MAY_USE: Final = ("runtime", "interpreter", "audit", "tuning", "project.trial", "")
DRIVERS: Final = (
    "diagnostics.internal_errors", "pipeline", "link", "project", "tuning", "ship", "lsp", "cli", "__main__", "__init__",
)  # fmt: skip
KNOWN: Final = frozenset({*VOCABULARY, *STAGES, *AUDIT, *FINDER, *OPS, *LIBRARY, *QUALIFY, *DRIVERS})
ENGINE_MAY_USE: Final = (
    "runtime", "ship.finder", "artifact", "target.dtypes", "ir", "step", "untrusted.output", "untrusted.output_tree",
    "diagnostics.visible", "version",
)  # fmt: skip
RUNS_SOURCES: Final = ("engine", "backends", "interpreter")
SOURCES_NEED: Final = ("frontend", "interpreter", "diagnostics.diagnostic", "shipped")
OTHERS: Final = ("ci", "tests", "kernels_src", "examples")
"""Folders whose files import what they like, but no two each other."""
COMPILER_PACKAGES: Final = frozenset({"torch_mlir", "mlir", "llvmlite", "islpy", "networkx", "platformdirs"})
NO_COMPILER: Final = (
    "__init__", "version", "startup", "progress", "diagnostics", "language", "target", "ir", "step", "untrusted", "artifact",
    "runtime", "ship.registry", "ship.finder", "ops", "kernels", "qualify",
)  # fmt: skip


@functools.cache
def _imports(path: Path) -> tuple[tuple[int, tuple[str, ...], bool], ...]:
    """Every import of a file: its line, dotted names, and whether it runs, which it does not under `if TYPE_CHECKING`."""
    found: list[tuple[int, tuple[str, ...], bool]] = []
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), True)]
    while waiting:
        node, runs = waiting.pop()
        if isinstance(node, ast.Import):
            found.append((node.lineno, tuple(alias.name for alias in node.names), runs))
        elif isinstance(node, ast.ImportFrom):
            names = ["<relative>"] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]
            found.append((node.lineno, tuple(names), runs))
        for inner in () if isinstance(node, ast.expr) else ast.iter_child_nodes(node):
            for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and inner not in node.orelse
            waiting.append((inner, runs and not for_types))
    return tuple(sorted(found))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file as (line, dotted name), function-level ones included."""
    yield from ((line, name) for line, names, _ in _imports(path) for name in names)


def uses(files: Mapping[str, Path], *, types: bool = False) -> dict[str, set[str]]:
    """For each of `files`, by dotted name, the others that it imports while it runs; with `types`, also those that it names
    for type checkers alone."""
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for imported in (one for _, names, runs in _imports(path) if runs or types for one in names):
            while imported and imported not in files:  # a name inside a file, or of another project
                imported = imported.rpartition(".")[0]
            if imported and imported != name:
                found[name].add(imported)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Circles of imports, each as names in the order in which they import each other; none where there is none."""
    left, found = {name: sorted(used) for name, used in sorted(graph.items())}, list[list[str]]()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]  # the sorter names what is imported before what imports it
            found.append(circle)
            left[circle[0]].remove(circle[1])
        else:
            return found


def knotted(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of files in which each reaches each other along imports: strongly connected components of two files and more."""
    import networkx

    found = networkx.strongly_connected_components(networkx.DiGraph([(a, b) for a in graph for b in graph[a]]))
    return sorted((knot for knot in found if len(knot) > 1), key=sorted)


def complaint(importer: Sequence[str], imported: str) -> str:
    """Why the file `importer` (path parts without suffix) may not import `imported`, or an empty string."""
    package, layer_of_importer = importer[0], layer(importer[1:])
    top, _, rest = imported.partition(".")
    layer_of_imported = layer(rest.split("."))
    if imported == "<relative>":
        return "relative imports hide the layer; spell the package out"
    if package == "engine":
        allowed = (*ENGINE_MAY_USE, *SOURCES_NEED) if importer == RUNS_SOURCES else ENGINE_MAY_USE
        if top == "tilec" and not within(rest, allowed):
            return f"{'.'.join(importer)} may import tilec.{{{', '.join(allowed)}}} only"
        return "engine runs without a compiler" if top in COMPILER_PACKAGES else ""
    if top == "engine":
        return "tilec does not know the engine"
    if within(layer_of_importer, NO_COMPILER) and top in COMPILER_PACKAGES:
        return f"{layer_of_importer} must work where {top} is not installed"
    if top == "tilec" and layer_of_importer == layer_of_imported == "passes":
        own_folder, other = importer[2], rest.split(".")[1] if "." in rest else ""
        allowed = PASSES.get(own_folder)
        if allowed is None:
            return (
                ""
                if own_folder == "__init__"
                else f"passes.{own_folder} is in no folder of passes; add it to ci/check_layers.py"
            )
        return "" if other in (own_folder, *allowed) else f"passes.{own_folder} may not import passes.{other}"
    if top != "tilec" or layer_of_importer == layer_of_imported or layer_of_importer in DRIVERS:
        return ""
    if layer_of_importer not in KNOWN:
        return f"{layer_of_importer} is in no layer; add it to ci/check_layers.py"
    if layer_of_importer in VOCABULARY and layer_of_imported in VOCABULARY[: VOCABULARY.index(layer_of_importer)]:
        return ""
    if layer_of_importer in STAGES and layer_of_imported in VOCABULARY:
        return ""
    if layer_of_importer in AUDIT and layer_of_imported in (*VOCABULARY, *AUDIT_MAY_USE):
        return ""
    if layer_of_importer in FINDER and layer_of_imported in (*VOCABULARY, *FINDER_MAY_USE):
        return ""
    if layer_of_importer in OPS and layer_of_imported in (*VOCABULARY, *OPS_MAY_USE):
        return ""
    if layer_of_importer in LIBRARY and layer_of_imported in (*VOCABULARY, *LIBRARY_MAY_USE):
        return ""
    if layer_of_importer in QUALIFY and (
        layer_of_imported in (*VOCABULARY, *QUALIFY_MAY_USE) or within(rest, QUALIFY_MAY_USE[:-1])
    ):
        return ""
    return f"{layer_of_importer} may not import {layer_of_imported}"


def layer(parts: Sequence[str]) -> str:
    """The layer of a module of `tilec`, by the parts of its name: the longest entry that holds it, else its folder."""
    found = [".".join(parts[:length]) for length in (2, 1) if ".".join(parts[:length]) in KNOWN]
    return found[0] if found else parts[0] if parts else "__init__"


def within(name: str, allowed: Sequence[str]) -> bool:
    """Whether a dotted name is one of `allowed` or lies in one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def modules(root: Path, package: str) -> dict[str, Path]:
    """The files of a package by dotted name. A script next to a package of its name has none: an import finds the package."""
    found = {path for path in (root / package).rglob("*.py") if not (path.with_suffix("") / "__init__.py").exists()}
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(found)}


def main(root: Path) -> int:
    """Print every violation below `root`; 1 if there is one."""
    found: list[str] = []
    _imports.cache_clear()
    layered = modules(root, "tilec") | modules(root, "engine")
    for path in layered.values():
        relative = path.relative_to(root)
        for line, name in imports(path):
            reason = complaint(relative.with_suffix("").parts, name)
            if reason:
                found.append(f"{relative}:{line}: imports {name}: {reason}")
    files = layered | {name: path for folder in OTHERS for name, path in modules(root, folder).items()}
    at_run_time = [f"imports in a circle: {' -> '.join(circle)}" for circle in circles(uses(files))]
    for_types = [f"files that name each other's types: {', '.join(sorted(knot))}" for knot in knotted(uses(files, types=True))]
    found += at_run_time or for_types  # those of the former are among the latter
    print("\n".join(found) or "layers ok")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
