"""Digests by name: sixteen hexadecimal digits for a named part of the repository.

    source:PATH               the definitions in a file or folder, wherever in it they are
    sources                   the definitions of all sources that a result rests on, wherever they are
    tir[:PATTERNS]            tile IR of the artifacts of build.toml
    ptx:ARCH[:PATTERNS]       their PTX for an architecture
    cubin:ARCH[:PATTERNS]     their machine code
    version:PACKAGE           the version in requirements.lock

A definition is the syntax tree of a top-level statement; docstrings, positions, order, the file, and the modules of imports do
not count. So moving a function keeps a result fresh, and changing it does not. An import of the same name from another module
is not detected; the gate's tests cover that. The programs of ci/bench and what their cases share are no part of a result: they
read options and write files (`results.toml`). PATTERNS select artifacts by name, but not those after a `!`: `add-*,!*E=f16*`.

Building all CUBINs takes minutes, so `tests/golden/products.json` records their digests with one digest of all inputs. Builds
are reproducible: the same inputs give the same products. After a change `ci/products.py` must rebuild the record.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from ci.evidence.products import Record, read_products

PRODUCTS: Final = "tests/golden/products.json"
COMPILER: Final = (
    "tilec/frontend", "tilec/diagnostics/spelling.py", "tilec/ir", "tilec/language", "tilec/passes", "tilec/target",
    "tilec/atoms", "tilec/mlir", "tilec/lowering", "tilec/codegen", "tilec/assemble", "tilec/toolchain.py",
    "tilec/artifact/records.py", "tilec/pipeline.py", "tilec/untrusted/limits.py",
)  # fmt: skip
"""Sources that determine a product: those named by the stages of `tilec.pipeline`, except those that only affect error messages
and time limits (`tests/evidence` checks that no other is missing)."""
TOOLCHAIN: Final = (
    "islpy", "numpy", "ml-dtypes", "torch-mlir", "llvmlite", "cuda-bindings", "cuda-pathfinder", "nvidia-nvjitlink",
    "nvidia-cuda-nvcc",
)  # fmt: skip
LENGTH: Final = 16
WORDS: Final = (".md", ".svg", ".pyc")
"""Suffixes of files that do not affect any program."""
SOURCES: Final = "sources"
POSITIONS: Final = frozenset({"ctx", "kind", "type_comment", "type_params"})
"""Fields of a syntax tree without meaning, or that only some versions of Python have."""


class UnknownDigest(Exception):
    """A name without a digest, or whose digest is currently unknown; the message suggests what to do."""


def short(data: bytes) -> str:
    """The digest of some bytes."""
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def tree_text(text: str, *, docstrings: bool = False) -> str:
    """The syntax tree of a Python file without positions and, unless `docstrings`, without string statements."""
    return repr(_plain(ast.parse(text), docstrings))


def _plain(node: Any, docstrings: bool) -> Any:
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in POSITIONS)
        return (type(node).__name__, *((name, _plain(value, docstrings)) for name, value in fields if value not in (None, [])))
    if isinstance(node, list):
        return [_plain(item, docstrings) for item in node if docstrings or not _stands_alone(item)]  # pyright: ignore
    return node


def definitions(text: str) -> list[str]:
    """The definitions of a Python file: each top-level statement except imports, `__all__` and `if TYPE_CHECKING`; plus the
    renamed imports (`name as other`)."""
    return definitions_of(ast.parse(text))


def definitions_of(tree: ast.Module) -> list[str]:
    """The definitions of a syntax tree."""
    found = {f"{name.name} as {name.asname}" for node in ast.walk(tree) for name in _renamed(node)}
    statements = [node for node in tree.body if not _stands_alone(node) and not _is_wiring(node)]
    return sorted([*found, *(repr(_plain(_unplaced(node), docstrings=False)) for node in statements)])


def _renamed(node: ast.AST) -> list[ast.alias]:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    return [name for name in node.names if name.asname not in (None, name.name)]


def _is_wiring(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return isinstance(target, ast.Name) and target.id == "__all__"
    return isinstance(node, ast.Import | ast.ImportFrom)


def _unplaced(node: ast.stmt) -> ast.stmt:
    """Remove the module from imports inside functions; only the imported names count."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.ImportFrom):
            inner.module, inner.level = None, 0
    return node


def _stands_alone(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class Digests:
    """The current digests of a repository; each file is read once. `products`: digests from the record of builds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[tuple[Path, bool], bytes] = {}
        self._definitions: dict[Path, list[str]] = {}
        self._products: Record | None = None

    def of(self, name: str) -> str:
        """The current digest of a name; UnknownDigest if it has none."""
        kind, _, rest = name.partition(":")
        if kind == "source":
            return self.definitions([rest])
        if kind == "version":
            return self.version(rest)
        if kind in ("tir", "ptx", "cubin"):
            return self.products(kind, rest)
        raise UnknownDigest(f"`{name}` names nothing that has a digest (ci/evidence/digests.py lists the kinds)")

    def all_of(self, names: Iterable[str]) -> dict[str, str]:
        """Digests by name, plus one of all sources among them."""
        found = {name: self.of(name) for name in names}
        sources = [name.partition(":")[2] for name in found if name.startswith("source:")]
        return found | ({SOURCES: self.definitions(sources)} if sources else {})

    def definitions(self, paths: Iterable[str]) -> str:
        """One digest of the definitions in files and folders; a file counts once."""
        files = dict.fromkeys(file for path in paths for file in self.files(path))
        return short("\n".join(sorted(text for file in files for text in self._definitions_of(file))).encode())

    def _definitions_of(self, file: Path) -> list[str]:
        if file not in self._definitions:
            try:
                found = definitions(file.read_text(encoding="utf-8")) if file.suffix == ".py" else None
            except (SyntaxError, ValueError):
                found = None  # a deliberately invalid file counts by its content
            self._definitions[file] = [self._content(file, False).hex()] if found is None else found
        return self._definitions[file]

    def sources(self, paths: Iterable[str], *, docstrings: bool = False) -> str:
        """One digest of the files and folders of `paths`, including their names."""
        digest = hashlib.sha256()
        for path in paths:
            for file in self.files(path):
                digest.update(f"{file.relative_to(self.root).as_posix()}\0".encode() + self._content(file, docstrings) + b"\0")
        return digest.hexdigest()[:LENGTH]

    def files(self, path: str) -> Iterator[Path]:
        """The relevant files of a path, sorted; UnknownDigest if there are none."""
        top = self.root / path
        found = [top] if top.is_file() else sorted(top.rglob("*"))
        found = [file for file in found if file.is_file() and file.suffix not in WORDS and not self._is_ignored(file)]
        if not found:
            raise UnknownDigest(f"`{path}` has no source")
        return iter(found)

    def _is_ignored(self, file: Path) -> bool:
        return "__pycache__" in file.parts or not self._ignored.isdisjoint([file, *file.parents])

    @cached_property
    def _ignored(self) -> frozenset[Path]:
        """Files and folders that git ignores, such as built artifacts. In an unpacked archive, on a machine that may lack git,
        these are the folders that `.gitignore` names from the root on."""
        if not (self.root / ".git").exists():
            path = self.root / ".gitignore"
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            return frozenset(self.root / line.strip("/") for line in lines if line.startswith("/") and line.endswith("/"))
        command = ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return frozenset(self.root / name for name in done.stdout.split("\0") if name)

    def _content(self, file: Path, docstrings: bool) -> bytes:
        key = file, docstrings
        if key not in self._files:
            data = file.read_bytes()
            try:
                if file.suffix == ".py":
                    data = tree_text(data.decode(), docstrings=docstrings).encode()
                elif file.suffix == ".toml":
                    data = json.dumps(tomllib.loads(data.decode()), sort_keys=True, default=str).encode()
            except (SyntaxError, ValueError):
                pass  # a deliberately invalid file counts by its content
            self._files[key] = hashlib.sha256(data).digest()
        return self._files[key]

    def version(self, package: str) -> str:
        """The version of a locked package, as plain text, so that the record is readable."""
        text = (self.root / "requirements.lock").read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
        if found is None:
            raise UnknownDigest(f"requirements.lock has no `{package}`")
        return found[1]

    def made_from(self) -> str:
        """One digest of all inputs of the products. Kernels count with their docstrings, which the frontend may read."""
        build = tomllib.loads((self.root / "build.toml").read_text(encoding="utf-8"))
        parts = [json.dumps({name: build.get(name) for name in ("build", "kernel")}, sort_keys=True)]
        kernels = sorted((self.root / build["build"]["kernels"]).glob("*.py"))
        names = [path.relative_to(self.root).as_posix() for path in kernels if not path.name.startswith("reference")]
        parts.append(self.sources(names, docstrings=True))
        parts.append(self.definitions(COMPILER))
        parts += [f"{package} {self.version(package)}" for package in TOOLCHAIN]
        return short("\n".join(parts).encode())

    def products(self, kind: str, rest: str) -> str:
        """One digest of recorded products; `rest` is the architecture (none for tile IR) and patterns of artifacts."""
        if kind == "tir":
            arch, patterns = "", rest
        else:
            arch, _, patterns = rest.partition(":")
        key = f"{kind}:{arch}" if arch else kind
        chosen = {name: digest for name, digest in self.recorded(key).items() if chosen_by(patterns, name)}
        if not chosen:
            raise UnknownDigest(f"{PRODUCTS} has no {key} of `{patterns or '*'}`")
        return short("\n".join(f"{name} {digest}" for name, digest in sorted(chosen.items())).encode())

    def recorded(self, key: str) -> dict[str, str]:
        """Digests of products by artifact, of a kind (`tir`, `ptx:sm_90a`, ...); UnknownDigest if the record is of other
        sources."""
        if self._products is None:
            path = self.root / PRODUCTS
            made_from, record = read_products(path) if path.exists() else ("", {})
            if made_from != self.made_from():
                raise UnknownDigest(f"{PRODUCTS} is of other sources: run `python ci/products.py`")
            self._products = record
        return self._products.get(key, {})


def chosen_by(patterns: str, name: str) -> bool:
    """Whether comma-separated patterns match an artifact, and none of those after a `!` does; without others, all match."""
    every = patterns.split(",") if patterns else []
    wanted = [pattern for pattern in every if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in every if pattern.startswith("!")]
    matches = partial(fnmatchcase, name)
    return (not wanted or any(map(matches, wanted))) and not any(map(matches, unwanted))
