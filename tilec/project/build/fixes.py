"""Fixes as edits of the source, which a program can apply without knowledge of the language.

In: a diagnostic, and the texts of the files that it names. Out: its fixes, each with a title, a flag for certain fixes, and
edits (spans with their replacements). The edits of a fix are in one file, do not overlap, and leave valid Python. A fix that
cannot satisfy this is dropped, for example if a call is not found or the file has changed. Words used by edits are imported,
or written as attributes of `tilec` in a file that imports none by name.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.diagnostics.diagnostic import Diagnostic, Fix, Span
from tilec.language import __all__ as WORDS

LANGUAGE = ("tilec", "tilec.language")


@dataclass(frozen=True, slots=True)
class Edit:
    """The replacement of a span; an empty span is an insertion."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A fix as edits of the source."""

    title: str
    certain: bool
    edits: tuple[Edit, ...]


def resolved(diagnostic: Diagnostic, sources: Mapping[str, str]) -> list[Resolved]:
    """The fixes of a diagnostic, the likeliest first."""
    given = list(diagnostic.fixes)
    if diagnostic.code == "E0403" and diagnostic.primary is not None:
        given += _rounded_up_grids(sources.get(diagnostic.primary.span.file, ""), diagnostic.primary.span)
    found: list[Resolved] = []
    for fix in given:
        text = sources.get(fix.span.file, "")
        edits = _Text(fix.span.file, text).edits(fix)
        if edits and _is_python(applied(text, edits)):
            found.append(Resolved(fix.title, fix.certain, tuple(edits)))
    return found


def applied(text: str, edits: Sequence[Edit]) -> str:
    """The text of a file after edits, which must not overlap."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda one: (one.span.line, one.span.column), reverse=True):
        begin, end = starts[edit.span.line - 1] + edit.span.column, starts[edit.span.end_line - 1] + edit.span.end_column
        text = text[:begin] + edit.text + text[end:]
    return text


def _is_python(text: str) -> bool:
    return _parsed(text) is not None


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Text:
    """The text and syntax tree of a kernel file, and the edits for it."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text, self.tree = file, text, _parsed(text)
        self.lines = text.split("\n")

    def edits(self, fix: Fix) -> list[Edit]:
        """The edits of a fix; none if they cannot be made."""
        if self.tree is None or "\r" in self.text or self.text.startswith("\ufeff"):  # positions differ in such texts
            return []
        package = self._package()
        if package and fix.change == "import":
            return [self._insert(fix.span.line, fix.span.column, f"{package}.")] if self._has(fix.span) else []
        if package:
            fix = replace(fix, text=self._qualified(fix.text, package))
        match fix.change:
            case "replace":
                found = Edit(fix.span, fix.text) if self._has(fix.span) else None
            case "import":
                return self._imports(fix.text, added=True)
            case "argument":
                found = self._argument(fix)
            case "statement":
                found = self._statement(fix)
        return [found, *self._imports(fix.text)] if found is not None else []

    def _has(self, span: Span) -> bool:
        lines = self.lines
        ends = ((span.line, span.column), (span.end_line, span.end_column))
        return all(line <= len(lines) and column <= len(lines[line - 1]) for line, column in ends)

    def _argument(self, fix: Fix) -> Edit | None:
        """Insert a keyword argument before the closing parenthesis of a call. Each separator is tried until the call has
        exactly one more keyword."""
        call = self._at(fix.span, ast.Call)
        name = fix.text.partition("=")[0]
        if not isinstance(call, ast.Call) or name in [one.arg for one in call.keywords]:
            return None
        for text in (f", {fix.text}", f" {fix.text}", fix.text):
            edit = self._insert(fix.span.end_line, fix.span.end_column - 1, text)
            tree = _parsed(applied(self.text, [edit]))
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
            if any(_same_start(node, call) and _sizes(node) == (len(call.args), len(call.keywords) + 1) for node in calls):
                return edit
        return None

    def _statement(self, fix: Fix) -> Edit | None:
        """Insert a statement on a new line after the kernel's `grid` call."""
        for function in ast.walk(self.tree) if self.tree is not None else ():
            if isinstance(function, ast.FunctionDef) and function.lineno <= fix.span.line <= (function.end_lineno or 0):
                for node in function.body:
                    if isinstance(node, ast.Expr) and _called(node.value) == "grid":
                        span = self.span(node)
                        return self._insert(span.end_line, span.end_column, f"\n{' ' * span.column}{fix.text}")
        return None

    def _package(self) -> str:
        """The file's name for `tilec`, if it imports no word by name; else empty."""
        body = self.tree.body if self.tree is not None else []
        if any(isinstance(node, ast.ImportFrom) and node.module in LANGUAGE and not node.level for node in body):
            return ""
        aliases = [alias for node in body if isinstance(node, ast.Import) for alias in node.names if alias.name == "tilec"]
        return aliases[0].asname or "tilec" if aliases else ""

    def _qualified(self, text: str, package: str) -> str:
        """A fix's text with the words that the file lacks as attributes of `package`."""
        missing = "|".join(self._missing(text, added=False))
        return re.sub(rf"(?<![\w.])({missing})\b(?!\s*=[^=])", rf"{package}.\1", text) if missing else text

    def _missing(self, text: str, *, added: bool) -> list[str]:
        """The words of the language in `text` that the module lacks, sorted. One that is also a Python builtin counts only if
        `added`."""
        names = {node.id for node in ast.walk(_parsed(f"f({text})") or ast.Module([], [])) if isinstance(node, ast.Name)}
        names |= {node.id for node in ast.walk(_parsed(text) or ast.Module([], [])) if isinstance(node, ast.Name)}
        body = self.tree.body if self.tree is not None else []
        imports = [node for node in body if isinstance(node, ast.ImportFrom | ast.Import)]
        bound = {alias.asname or alias.name for node in imports for alias in node.names}
        bound |= {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        return sorted(name for name in names & set(WORDS) if name not in bound and (added or not hasattr(builtins, name)))

    def _imports(self, text: str, *, added: bool = False) -> list[Edit]:
        """Import the words in `text` that the module lacks, as `_missing` counts them."""
        tree = self.tree
        assert tree is not None
        missing = self._missing(text, added=added)
        if not missing:
            return []
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module in LANGUAGE and not node.level:
                span = self.span(node.names[-1])
                return [self._insert(span.end_line, span.end_column, "".join(f", {name}" for name in missing))]
        for node in tree.body:
            if isinstance(node, ast.Import):
                span = self.span(node)
                text = f"\nfrom tilec import {', '.join(missing)}"
                return [self._insert(span.end_line, span.end_column, text)]
        return []

    def _insert(self, line: int, column: int, text: str) -> Edit:
        return Edit(Span(self.file, line, column, line, column), text)

    def span(self, node: ast.AST) -> Span:
        """The span of a node, with columns in characters; `ast` counts columns in bytes."""
        line, byte = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line, end_byte = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", byte)
        return Span(self.file, line, self._column(line, byte), end_line, self._column(end_line, end_byte))

    def _column(self, line: int, byte: int) -> int:
        return len(self.lines[line - 1].encode()[:byte].decode(errors="ignore"))

    def _at(self, span: Span, kind: type[ast.AST]) -> ast.AST | None:
        """The node of a kind with exactly this span."""
        nodes = ast.walk(self.tree) if self.tree is not None else ()
        return next((node for node in nodes if isinstance(node, kind) and self.span(node) == span), None)


def _sizes(call: ast.Call) -> tuple[int, int]:
    return len(call.args), len(call.keywords)


def _same_start(left: ast.AST, right: ast.AST) -> bool:
    return all(getattr(left, name) == getattr(right, name) for name in ("lineno", "col_offset"))


def _called(node: ast.AST) -> str:
    """The name of the called function without its module; empty if `node` is not a call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _is_rounded_up(node: ast.BinOp) -> bool:
    """Whether a quotient is an explicit `cdiv`: `(N + BLOCK - 1) // BLOCK`, or the same with integer constants."""
    one, divisor = node.left, node.right
    if not (isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add | ast.Sub)):
        return False
    if isinstance(one.op, ast.Add):
        numbers = [node.value if isinstance(node, ast.Constant) else None for node in (divisor, one.right)]
        return isinstance(numbers[0], int) and isinstance(numbers[1], int) and numbers[0] - 1 == numbers[1]
    return ast.unparse(one).endswith(f" + {ast.unparse(divisor)} - 1")


def _rounded_up_grids(text: str, kernel_span: Span) -> Iterator[Fix]:
    """Fixes that replace `N // BLOCK` by `cdiv(N, BLOCK)` in the grid of the kernel at `kernel_span`. Full tiles keep their
    blocks, and a partial last tile gets a block too."""
    source = _Text(kernel_span.file, text)
    for function in ast.walk(source.tree) if source.tree is not None else ():
        inside = isinstance(function, ast.FunctionDef) and function.lineno <= kernel_span.line <= (function.end_lineno or 0)
        for call in ast.walk(function) if inside else ():
            if isinstance(call, ast.Call) and _called(call) == "grid":
                for node in (one for argument in call.args for one in ast.walk(argument)):
                    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and not _is_rounded_up(node):
                        replacement = f"cdiv({ast.unparse(node.left)}, {ast.unparse(node.right)})"
                        yield Fix(f"write `{replacement}`", "replace", replacement, source.span(node), certain=True)
