"""The definitions of a kernel file and their locations, for editors: from the text alone, and for imports from the imported
files.

In: the text of a file, possibly incomplete. Out: an `Outline`, or None if Python cannot parse the text; no errors are reported.
`definition` follows a name to its definition, through imports too.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilec import language
from tilec.diagnostics.diagnostic import CompileError, Span
from tilec.frontend.module import (
    NO_TEXTS,
    DimName,
    ElementName,
    Module,
    Package,
    Word,
    class_entry,
    import_candidates,
    is_word,
    parse,
    read_text,
    word_of,
)
from tilec.frontend.report import Source
from tilec.untrusted.limits import MAX_IMPORT_DEPTH

_MEANT: Final = re.compile(r"^@(?:\w+\s*\.\s*)?(?:kernel|function)\b", re.MULTILINE)
_DEFINITION: Final = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition in a file. `kind` is kernel, function, dim, element, constant or parameter; `span` covers the whole
    definition, `name_span` its name; `text` is its first line and `doc` its docstring."""

    name: str
    kind: str
    span: Span
    name_span: Span
    text: str = ""
    doc: str = ""
    children: tuple[Symbol, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """The definitions of a file, in source order. `words` maps the file's names to words of the language, `packages` are its
    names for `tilec` itself; `imports` maps a name to its import and its original name."""

    path: Path
    symbols: tuple[Symbol, ...]
    words: Mapping[str, str]
    packages: frozenset[str]
    imports: Mapping[str, tuple[ast.ImportFrom, str]]

    @property
    def kernels(self) -> tuple[Symbol, ...]:
        return tuple(symbol for symbol in self.symbols if symbol.kind == "kernel")

    @property
    def holds_kernels(self) -> bool:
        """Whether the file has a kernel or a tile function; files without one do not concern the compiler."""
        return any(symbol.kind in ("kernel", "function") for symbol in self.symbols)

    def around(self, line: int) -> Symbol | None:
        """The top-level symbol whose definition contains a line."""
        return next((symbol for symbol in self.symbols if symbol.span.line <= line <= symbol.span.end_line), None)

    def symbol(self, name: str, line: int | None = None) -> Symbol | None:
        """The symbol that a name refers to at a line. Parameters of the enclosing function take precedence, except over a dim
        or element of the file, whose value a constant of that name sets."""
        at_top = next((symbol for symbol in reversed(self.symbols) if symbol.name == name), None)
        around = self.around(line) if line is not None else None
        if around is not None and (at_top is None or at_top.kind not in ("dim", "element")) and name not in self.imports:
            return next((child for child in around.children if child.name == name), at_top)
        return at_top


def meant_for_compiler(text: str) -> bool:
    """Whether a text that Python cannot parse, possibly incomplete, appears to contain kernels or tile functions."""
    return "tilec" in text and _MEANT.search(text) is not None


def outline(path: Path, text: str) -> Outline | None:
    """The outline of a file with this text; None if it does not parse."""
    try:
        source = Source(str(path), read_text(path, text))
        body = parse(source).body
    except CompileError:
        return None
    module = Module(path, source)
    symbols: list[Symbol] = []
    imports: dict[str, tuple[ast.ImportFrom, str]] = {}
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "tilec":
                    module.names[alias.asname or "tilec"] = Package("tilec")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound = alias.asname or alias.name
                if node.level == 0 and node.module in ("tilec", "tilec.language") and is_word(alias.name):
                    module.names[bound] = Word(alias.name)
                else:
                    imports[bound] = (node, alias.name)
        else:
            symbols += _symbols(module, node)
    words = {name: entry.name for name, entry in module.names.items() if isinstance(entry, Word)}
    packages = frozenset(name for name, entry in module.names.items() if isinstance(entry, Package))
    return Outline(path, tuple(symbols), words, packages, imports)


def definition(
    found: Outline, name: str, line: int | None, root: Path | None, texts: Mapping[str, str] = NO_TEXTS
) -> Symbol | None:  # fmt: skip
    """The definition of a name used at a line: in this file, or in a file it is imported from. `root` and `texts` as in
    `read_module`."""
    for _ in range(MAX_IMPORT_DEPTH):
        symbol = found.symbol(name, line)
        if symbol is not None or name not in found.imports:
            return symbol
        node, name = found.imports[name]
        line = None
        path = next((path for path in import_candidates(found.path.parent, node, root) if os.path.isfile(path)), None)
        if path is None:
            return None
        try:
            following = outline(path, read_text(path, texts.get(os.path.realpath(path))))
        except CompileError:
            return None
        if following is None:
            return None
        found = following
    return None


def word_doc(word: str) -> tuple[str, str] | None:
    """The signature and docstring of a word of the language; None for other names."""
    if not is_word(word):
        return None
    thing: object = getattr(language, word, None)
    doc = inspect.getdoc(thing) or ""
    if inspect.isfunction(thing):
        return f"{word}{inspect.signature(thing)}".replace("'", ""), doc  # annotations are strings
    if inspect.isclass(thing):
        return word, doc
    return word, doc if type(thing).__module__.startswith("tilec.") else ""


def _symbols(module: Module, node: ast.stmt) -> Iterator[Symbol]:
    source = module.source
    if isinstance(node, ast.ClassDef):
        entry = class_entry(module, node)
        if isinstance(entry, DimName | ElementName):
            kind = "dim" if isinstance(entry, DimName) else "element"
            yield Symbol(
                node.name, kind, source.whole(node), _name_span(source, node, node.name), source.line(node),
                ast.get_docstring(node) or "",
            )  # fmt: skip
    elif isinstance(node, ast.FunctionDef):
        words = [word_of(module, item) for item in node.decorator_list]
        kind = next((word for word in words if word in ("kernel", "function")), None)
        if kind is not None:
            parameters = tuple(_parameters(source, node.args))
            doc = ast.get_docstring(node) or ""
            span = source.whole(node)
            yield Symbol(node.name, kind, span, _name_span(source, node, node.name), source.line(node), doc, parameters)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield Symbol(target.id, "constant", source.whole(node), source.whole(target), source.line(node))


def _parameters(source: Source, arguments: ast.arguments) -> Iterator[Symbol]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        name = ast.copy_location(ast.Name(argument.arg), argument)
        name.end_lineno, name.end_col_offset = argument.lineno, argument.col_offset + len(argument.arg.encode())
        whole = source.whole(argument)
        yield Symbol(argument.arg, "parameter", whole, source.whole(name), source.text_of(whole))


def _name_span(source: Source, node: ast.FunctionDef | ast.ClassDef, name: str) -> Span:
    """The span of the name after `def` or `class`; the definition's first line if a line continuation separates them."""
    span = source.span(node)
    found = _DEFINITION.match(source.line(node))
    if found is None or not source.line(node).startswith(name, found.end()):
        return span
    return Span(span.file, span.line, found.end(), span.line, found.end() + len(name))
