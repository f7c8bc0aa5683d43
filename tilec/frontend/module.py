"""Reads kernel files: imports, `Dim` and `Element` classes, constants, kernels and tile functions; nothing is executed.

A module is a table from names to their meanings. Names that kernels cannot use are kept as `Foreign`, so that the error appears
where a kernel uses them.
"""

from __future__ import annotations

import ast
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tilec import language
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.diagnostics.spelling import did_you_mean, nearest
from tilec.frontend.report import Refused, Source, compile_error
from tilec.ir.types import DTYPES, PACKED
from tilec.untrusted.limits import MAX_IMPORT_DEPTH, MAX_MODULES, MAX_NAME, MAX_SOURCE_BYTES, MAX_SOURCE_LINES, read_file

DIRECTIVES = frozenset({"grid", "ensures", "requires", "resident", "values"})
WORDS = frozenset(language.__all__)
"""Every word of the kernel language."""
NUMBERS: Final = {"inf": math.inf, "nan": math.nan}
"""Words that are numbers."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the kernel language, by its name in `tilec`."""

    name: str


@dataclass(frozen=True, slots=True)
class Package:
    """`tilec` itself or the standard `math` module, whose members are accessed as attributes."""

    name: str


@dataclass(frozen=True, slots=True)
class DimName:
    """A `Dim` class."""

    name: str


@dataclass(frozen=True, slots=True)
class ElementName:
    """An `Element` class."""

    name: str


@dataclass(eq=False, slots=True)
class Routine:
    """A kernel or tile function with the module that defines it."""

    name: str
    node: ast.FunctionDef
    module: Module


@dataclass(eq=False, slots=True)
class ModuleConstant:
    """`NAME = expression` at module level, evaluated where a kernel uses it."""

    node: ast.expr
    module: Module


@dataclass(frozen=True, slots=True)
class Foreign:
    """A name that has no meaning in kernels; `why` completes "`name` is ..."."""

    why: str


Entry = Word | Package | DimName | ElementName | Routine | ModuleConstant | Foreign


@dataclass(eq=False, slots=True)
class Module:
    """One parsed file."""

    path: Path
    source: Source
    names: dict[str, Entry] = field(default_factory=dict[str, Entry])
    kernels: list[Routine] = field(default_factory=list[Routine])
    files: list[Path] = field(default_factory=list[Path])
    absent: list[Path] = field(default_factory=list[Path])
    """Paths that imports of this module, and of modules read with it, tried and did not find: a file that appears there would
    be read."""


NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})


def read_module(path: Path, root: Path | None, texts: Mapping[str, str] = NO_TEXTS) -> Module:
    """Parses a kernel file and, through its imports, the tile functions it can call; CompileError E0101, E0102, E0112.

    `texts` maps real paths to texts that replace the files on disk, such as unsaved editor buffers.
    """
    return _Reader(root, texts).read(path)


class _Reader:
    def __init__(self, root: Path | None, texts: Mapping[str, str]) -> None:
        self.root = root
        self.texts = texts
        self.modules: dict[str, Module] = {}
        self.files: list[Path] = []
        self.depth = 0
        self.absent: list[Path] = []

    def read(self, path: Path) -> Module:
        key = os.path.realpath(path)
        if key in self.modules:
            return self.modules[key]
        text = read_text(path, self.texts.get(key))
        module = Module(path, Source(self._shown(path), text), files=self.files, absent=self.absent)
        self.modules[key] = module
        self.files.append(path)
        problems: list[Diagnostic] = []
        self.depth += 1
        for node in parse(module.source).body:
            try:
                self._statement(module, node)
            except Refused as refused:
                problems.extend([refused.diagnostic] if refused.diagnostic else [])
        self.depth -= 1
        if problems:
            raise compile_error(problems)
        return module

    def _shown(self, path: Path) -> str:
        """Spans name files relative to the project root, so that build products do not depend on its location."""
        if self.root is not None and path.resolve().is_relative_to(self.root.resolve()):
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        return str(path)

    def _statement(self, module: Module, node: ast.stmt) -> None:
        names = module.names
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                known = alias.name in ("tilec", "math")
                names[bound] = Package(alias.name) if known else Foreign(f"the Python module `{alias.name}`")
        elif isinstance(node, ast.ImportFrom):
            self._import_from(module, node)
        elif isinstance(node, ast.ClassDef):
            names[node.name] = class_entry(module, node)
        elif isinstance(node, ast.FunctionDef):
            self._function(module, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    names[target.id] = ModuleConstant(node.value, module)

    def _import_from(self, module: Module, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module in ("tilec", "tilec.language"):
            for alias in node.names:
                if alias.name == "*":
                    raise module.source.error("E0112", "`import *` hides what a kernel uses", node, hint="import words by name")
                if not is_word(alias.name):
                    suggestion = nearest(alias.name, WORDS)
                    fixes = module.source.instead(alias, suggestion) if suggestion and alias.asname is None else ()
                    message, hint = f"`tilec` has no word `{alias.name}`", meant_word(alias.name)
                    raise module.source.error("E0112", message, node, hint=hint, fixes=fixes)
                module.names[alias.asname or alias.name] = Word(alias.name)
            return
        path = self._resolve(module, node)
        if path is not None and os.path.realpath(path) not in self.modules:
            self._check_count(module, node)
        other = self.read(path) if path is not None else None
        for alias in node.names:
            bound = alias.asname or alias.name
            if other is None:
                module_text = "." * node.level + (node.module or "")
                module.names[bound] = Foreign(f"imported from `{module_text}`, which is not a kernel file")
            elif alias.name not in other.names:
                raise module.source.error("E0112", f"`{other.source.file}` defines no `{alias.name}`", node,
                                   hint="import a `@tilec.function`, a `Dim`, an `Element` or a constant")  # fmt: skip
            else:
                module.names[bound] = other.names[alias.name]

    def _check_count(self, module: Module, node: ast.ImportFrom) -> None:
        """E0513 beyond the limit on files or import depth; it ends compilation, because every later import would repeat it."""
        what = hint = ""
        if len(self.modules) >= MAX_MODULES:
            what, hint = f"the kernel depends on more than {MAX_MODULES} files", "keep tile functions in fewer files"
        elif self.depth >= MAX_IMPORT_DEPTH:
            what, hint = f"imports are chained more than {MAX_IMPORT_DEPTH} deep", "import from the file that defines the name"
        if what:
            raise CompileError(Diagnostic("E0513", what, Label(module.source.span(node)), hint=hint))

    def _resolve(self, module: Module, node: ast.ImportFrom) -> Path | None:
        folder = module.path.parent
        for candidate in import_candidates(folder, node, self.root):
            if os.path.isfile(candidate):  # False for an invalid file name
                return candidate
            self.absent.append(candidate)
        parts = (node.module or "").split(".") if node.module else []
        if node.level or (parts and parts[0] == folder.resolve().name):
            raise module.source.error("E0112", f"no file for the import of `{node.module or '.'}`", node,
                               hint="name a kernel file in the same folder")  # fmt: skip
        return None

    def _function(self, module: Module, node: ast.FunctionDef) -> None:
        routine = Routine(node.name, node, module)
        kinds = [kind for kind in (_decoration(module, item) for item in node.decorator_list) if kind]
        if not kinds:
            module.names[node.name] = Foreign("a plain Python function; mark it `@tilec.function` to call it from a kernel")
            return
        if len(node.decorator_list) > 1:
            raise module.source.error("E0107", f"`{node.name}` has more than one decorator", node.decorator_list[1],
                               hint="keep `@tilec.kernel` or `@tilec.function` alone")  # fmt: skip
        if kinds == ["kernel"]:
            module.kernels.append(routine)
            module.names[node.name] = Foreign("a kernel; kernels cannot be called from kernels")
        else:
            module.names[node.name] = routine


def import_candidates(here: Path, node: ast.ImportFrom, root: Path | None) -> list[Path]:
    """Candidate paths for an import in a file of folder `here`, in search order."""
    if not node.module:
        return []
    if node.level:
        starts = [here.joinpath(*[".."] * (node.level - 1))]
    else:
        starts = [here, here.parent] if root is None else [here, root, here.parent]
    return [start.joinpath(*node.module.split(".")).with_suffix(".py") for start in starts]


def is_word(name: str) -> bool:
    """Whether the name is a word of the kernel language."""
    return name in WORDS


def meant_word(name: str) -> str:
    """A hint for a name that is not a word of the language."""
    return did_you_mean(name, WORDS, "`help(tilec)` lists the vocabulary")


def class_entry(module: Module, node: ast.ClassDef) -> Entry:
    """The meaning of a class definition."""
    for base in node.bases:
        word = word_of(module, base)
        if word == "Dim":
            return DimName(node.name)
        if word == "Element":
            return ElementName(node.name)
    return Foreign("a Python class; kernels know classes that derive from `Dim` or `Element`")


def word_of(module: Module, node: ast.expr) -> str | None:
    """The word that a name or `tilec.<word>` refers to."""
    if isinstance(node, ast.Name):
        entry = module.names.get(node.id)
        return entry.name if isinstance(entry, Word) else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        entry = module.names.get(node.value.id)
        if isinstance(entry, Package) and entry.name == "tilec" and is_word(node.attr):
            return node.attr
    return None


def _decoration(module: Module, node: ast.expr) -> str | None:
    word = word_of(module, node)
    if isinstance(node, ast.Call) and word_of(module, node.func) in ("kernel", "function"):
        raise module.source.error("E0107", "the decorator takes no arguments", node, hint="write `@tilec.kernel`")
    return word if word in ("kernel", "function") else None


def dtype_word(word: str | None) -> bool:
    """Whether the word names a dtype."""
    return word in DTYPES or word in PACKED or word == "boolean"


def read_text(path: Path, text: str | None = None) -> str:
    """Text of a kernel file, or `text` if given; CompileError E0102 if it cannot be read as UTF-8, E0513 if it is too long."""
    try:
        data = read_file(path, MAX_SOURCE_BYTES) if text is None else text.encode("utf-8", "surrogatepass")
        return _limited(path, data)
    except OSError as error:
        reason, hint = error.strerror or str(error), "check the path and its permissions"
    except UnicodeDecodeError as error:
        reason, hint = f"byte {error.start} is not UTF-8", "save the file as UTF-8"
    raise CompileError(Diagnostic("E0102", f"cannot read kernel file `{path}`: {reason}", hint=hint))


def _limited(path: Path, data: bytes) -> str:
    text = data.decode("utf-8-sig") if len(data) <= MAX_SOURCE_BYTES else ""
    lines = text.count("\n") + text.count("\r")
    if len(data) > MAX_SOURCE_BYTES or lines > MAX_SOURCE_LINES:
        has, limit = (f"{lines} lines", f"{MAX_SOURCE_LINES} lines") if text else ("more", f"{MAX_SOURCE_BYTES} bytes")
        message = f"kernel file `{path}` has {has}; the limit is {limit}"
        raise CompileError(
            Diagnostic("E0513", message, hint="split it: one kernel per file, with tile functions imported from other files")
        )
    return text


def parse(source: Source) -> ast.Module:
    """Python's syntax tree; CompileError E0101 if Python rejects the text, E0205 for an integer literal too long for Python,
    E0513 for a name that is too long."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.text)
        _check_names(source, tree)
        return tree
    except SyntaxError as error:
        line = max(error.lineno or 1, 1)
        column = max((error.offset or 1) - 1, 0)
        same_line = error.end_lineno == line and (error.end_offset or 0) - 1 > column
        end = (error.end_offset or 0) - 1 if same_line else column + 1
        span = Span(source.file, line, column, line, end)
        if "integer string conversion" in error.msg:  # Python's own limit, `sys.set_int_max_str_digits`
            hint = "integers here have at most 64 bits"
            raise CompileError(Diagnostic("E0205", "an integer of thousands of digits", Label(span), hint=hint)) from None
        message = f"not valid Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        message = "nested too deeply" if not isinstance(error, ValueError) else f"not valid Python: {error}"
        span = Span(source.file, 1, 0, 1, 1)
    hint = "kernel files are plain Python; run `python -m py_compile` on the file"
    raise CompileError(Diagnostic("E0101", message, Label(span), hint=hint))


def _check_names(source: Source, tree: ast.Module) -> None:
    """CompileError E0513 for the first name longer than `MAX_NAME`: names are keys of manifests and parts of file names."""
    for node in ast.walk(tree):
        for key in ("id", "arg", "name", "attr", "asname", "module"):
            name = getattr(node, key, None)
            if isinstance(name, str) and max(map(len, name.split("."))) > MAX_NAME:
                what = f"the name `{name[:40]}...` has {len(name)} characters; the limit is {MAX_NAME}"
                raise CompileError(Diagnostic("E0513", what, Label(source.span(node)), hint="use a shorter name"))
