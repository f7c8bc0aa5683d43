"""Digests by name: what a name stands for in the repository goes in, sixteen hexadecimal digits come out.

    source:PATH               the definitions in a file or folder, wherever in it they stand
    sources                   the definitions of all sources that a result rests on, wherever in these they stand
    tir[:PATTERNS]            tile IR of the artifacts of build.toml
    ptx:ARCH[:PATTERNS]       their PTX for an architecture
    cubin:ARCH[:PATTERNS]     their machine code
    version:PACKAGE           the version that requirements.lock has

A definition is a statement at the top of a Python file, as its syntax tree: words, positions, the order of definitions and the
file do not count, and neither does the module that a name is imported from. So a function that moves to another file of what a
result rests on leaves the result as fresh as it was, and one that changes does not. What this cannot see is a name that is
imported from elsewhere than before where both places have one; the tests of the gate stand for that.

PATTERNS choose artifacts by name (`matmul-*,add-*`), so that a result rests on the kernels that it is of and no others.

Making every CUBIN takes minutes, and the gate asks for these digests each time. So `tests/golden/products.json` records the
digests of all products beside one digest of everything that they are made from: the compiler's sources, the kernels, what
build.toml says of them and the versions of the toolchain. Builds are reproducible: where that one digest is the same, so are
the products. Where it differs nothing is known of them until `ci/products.py` has built them again, which the stage cache makes
short; `ci/products.py --check` holds the record against what the store has from the gate's own builds.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ci.evidence.products import Record, read_products

PRODUCTS: Final = "tests/golden/products.json"
COMPILER: Final = (
    "tilec/frontend", "tilec/spelling.py", "tilec/ir", "tilec/language", "tilec/passes", "tilec/schedule.py", "tilec/atoms",
    "tilec/mlir", "tilec/lowering", "tilec/codegen", "tilec/assemble", "tilec/toolchain.py", "tilec/target.py",
    "tilec/artifact.py", "tilec/pipeline.py", "tilec/limits.py",
)  # fmt: skip
"""Sources that decide a product: those that the stages of `tilec.pipeline` name, but for what only words errors and watches
time (`tests/evidence` holds that no other is missing)."""
TOOLCHAIN: Final = (
    "islpy", "numpy", "ml-dtypes", "torch-mlir", "llvmlite", "cuda-bindings", "cuda-pathfinder", "nvidia-nvjitlink",
    "nvidia-cuda-nvcc",
)  # fmt: skip
LENGTH: Final = 16
WORDS: Final = (".md", ".svg", ".pyc")
"""Files that no program reads."""
SOURCES: Final = "sources"
POSITIONS: Final = frozenset({"ctx", "kind", "type_comment", "type_params"})
"""Fields of a syntax tree that say nothing, or that only some versions of Python have."""


class UnknownDigest(Exception):
    """What a name stands for is not there, or not known today; the message says what to do."""


def short(data: bytes) -> str:
    """The digest of some bytes."""
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def tree_text(text: str, *, docstrings: bool = False) -> str:
    """The syntax tree of a Python file without positions and, unless `docstrings`, without texts that stand alone."""
    return repr(_plain(ast.parse(text), docstrings))


def _plain(node: Any, docstrings: bool) -> Any:
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in POSITIONS)
        return (type(node).__name__, *((name, _plain(value, docstrings)) for name, value in fields if value not in (None, [])))
    if isinstance(node, list):
        return [_plain(item, docstrings) for item in node if docstrings or not _stands_alone(item)]  # pyright: ignore
    return node


def definitions(text: str) -> list[str]:
    """The definitions of a Python file: each statement at its top but for imports, `__all__` and what only type checkers read;
    and the names that imports give to what they import, where these are others than its own."""
    tree = ast.parse(text)
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
    """Imports within a function name what they import, not from where."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.ImportFrom):
            inner.module, inner.level = None, 0
    return node


def _stands_alone(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class Digests:
    """The digests of one repository as it is now; each file is read once. `products`: the record of what was built."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[tuple[Path, bool], bytes] = {}
        self._definitions: dict[Path, list[str]] = {}
        self._products: Record | None = None

    def of(self, name: str) -> str:
        """The digest that a name has today; UnknownDigest where it has none."""
        kind, _, rest = name.partition(":")
        if kind == "source":
            return self.definitions([rest])
        if kind == "version":
            return self.version(rest)
        if kind in ("tir", "ptx", "cubin"):
            return self.products(kind, rest)
        raise UnknownDigest(f"`{name}` names nothing that has a digest (ci/evidence/digests.py lists the kinds)")

    def all_of(self, names: Iterable[str]) -> dict[str, str]:
        """Digests by name, and one of all sources among them."""
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
                found = None  # a file that is wrong on purpose counts as it stands
            self._definitions[file] = [self._content(file, False).hex()] if found is None else found
        return self._definitions[file]

    def sources(self, paths: Iterable[str], *, docstrings: bool = False) -> str:
        """One digest of the files and folders of `paths`, their names included."""
        made = hashlib.sha256()
        for path in paths:
            for file in self.files(path):
                made.update(f"{file.relative_to(self.root).as_posix()}\0".encode() + self._content(file, docstrings) + b"\0")
        return made.hexdigest()[:LENGTH]

    def files(self, path: str) -> Iterator[Path]:
        """The files of a path that count, in order; UnknownDigest where there are none."""
        top = self.root / path
        found = [top] if top.is_file() else sorted(top.rglob("*"))
        found = [file for file in found if file.is_file() and file.suffix not in WORDS and "__pycache__" not in file.parts]
        if not found:
            raise UnknownDigest(f"`{path}` has no source")
        return iter(found)

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
                pass  # a file that is wrong on purpose counts as it stands
            self._files[key] = hashlib.sha256(data).digest()
        return self._files[key]

    def version(self, package: str) -> str:
        """The version of a locked package: a text, so that the record can be read."""
        text = (self.root / "requirements.lock").read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
        if found is None:
            raise UnknownDigest(f"requirements.lock has no `{package}`")
        return found[1]

    def made_from(self) -> str:
        """One digest of all that products are made from. Kernels count with their docstrings, which the frontend may read."""
        build = tomllib.loads((self.root / "build.toml").read_text(encoding="utf-8"))
        parts = [json.dumps({name: build.get(name) for name in ("build", "kernel")}, sort_keys=True)]
        kernels = sorted((self.root / build["build"]["kernels"]).glob("*.py"))
        names = [path.relative_to(self.root).as_posix() for path in kernels if not path.name.startswith("reference")]
        parts.append(self.sources(names, docstrings=True))
        parts.append(self.definitions(COMPILER))
        parts += [f"{package} {self.version(package)}" for package in TOOLCHAIN]
        return short("\n".join(parts).encode())

    def products(self, kind: str, rest: str) -> str:
        """One digest of recorded products: `rest` has the architecture (none for tile IR) and patterns of artifacts."""
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
        """Digests of products by artifact, of a kind (`tir`, `ptx:sm_90a`, ...); UnknownDigest where the record is of other
        sources."""
        if self._products is None:
            path = self.root / PRODUCTS
            made_from, record = read_products(path) if path.exists() else ("", {})
            if made_from != self.made_from():
                raise UnknownDigest(f"{PRODUCTS} is of other sources: run `python ci/products.py`")
            self._products = record
        return self._products.get(key, {})


def chosen_by(patterns: str, name: str) -> bool:
    """Whether patterns, with commas between them, choose an artifact; none at all choose every one."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns.split(","))
