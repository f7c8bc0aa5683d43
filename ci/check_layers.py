"""Fail when an import breaks the direction of the data flow.  Run: python ci/check_layers.py [ROOT]

Vocabulary may be imported by everyone; stages import vocabulary only, never each other; drivers import anything in `tilec`.
`engine` sees the runtime and the vocabulary that describes artifacts; its one file that runs kernels from their sources sees
the frontend and the interpreter too. The runtime, the vocabulary and `tilec/__init__.py` never import a compiler package, so
that a machine without one can run bundles.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VOCABULARY: Final = ("diagnostics", "language", "target", "toolchain", "ir", "artifact", "bundle_format")
STAGES: Final = (
    "frontend",
    "interpreter",
    "passes",
    "lowering",
    "codegen",
    "assemble",
    "emulator",
    "cache",
    "runtime",
    "graph",
)
AUDIT: Final = ("audit",)
"""A second opinion: it sees what describes and runs artifacts, and nothing of what made them."""
AUDIT_MAY_USE: Final = ("runtime", "emulator", "interpreter", "")
DRIVERS: Final = ("defects", "pipeline", "build", "bundle", "cli", "__main__", "__init__")
ENGINE_MAY_USE: Final = ("runtime", "artifact", "ir")
RUNS_SOURCES: Final = ("engine", "backends", "interpreter")
SOURCES_NEED: Final = ("frontend", "interpreter", "diagnostics")
COMPILER_PACKAGES: Final = frozenset({"torch_mlir", "mlir", "llvmlite", "islpy", "networkx", "diskcache", "grandalf"})
NO_COMPILER: Final = ("__init__", "diagnostics", "language", "artifact", "bundle_format", "runtime", "target", "ir")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file as (line, dotted name), function-level ones included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "<relative>"
            else:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def complaint(importer: tuple[str, ...], imported: str) -> str:
    """Why the file `importer` (path parts without suffix) may not import `imported`, or an empty string."""
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
    if top != "tilec" or here == there or here in DRIVERS:
        return ""
    known = (*VOCABULARY, *STAGES, *AUDIT, *DRIVERS)
    if here not in known:
        return f"{here} is in no layer; add it to ci/check_layers.py"
    if here in VOCABULARY and there in VOCABULARY[: VOCABULARY.index(here)]:
        return ""
    if here in STAGES and there in VOCABULARY:
        return ""
    if here in AUDIT and there in (*VOCABULARY, *AUDIT_MAY_USE):
        return ""
    return f"{here} may not import {there}"


def main(root: Path) -> int:
    """Print every violation below `root`; 1 if there is one."""
    found: list[str] = []
    for package in ("tilec", "engine"):
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root)
            parts = relative.with_suffix("").parts
            for line, name in imports(path):
                reason = complaint(parts, name)
                if reason:
                    found.append(f"{relative}:{line}: imports {name}: {reason}")
    print("\n".join(found) or "layers ok")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
