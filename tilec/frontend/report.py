"""Error reporting in the front end: each error has a span and a hint; the errors of a kernel are collected."""

from __future__ import annotations

import ast

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Fix, Label, Span

_COMPOUND = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.If, ast.With, ast.Try)


class Refused(Exception):
    """A statement was rejected. `diagnostic` is None if the cause was already reported (a poisoned name)."""

    def __init__(self, diagnostic: Diagnostic | None) -> None:
        super().__init__(diagnostic.message if diagnostic else "")
        self.diagnostic = diagnostic


class Source:
    """One kernel file: its name in spans, its text, and the conversion of `ast` positions to spans."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        # `ast` counts lines like the tokenizer: only these three sequences end a line.
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def _column(self, line: int, byte: int) -> int:
        """Converts a column from UTF-8 bytes (`ast`) to characters (spans)."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return len(text.encode("utf-8", "replace")[:byte].decode("utf-8", "ignore"))

    def span(self, node: ast.AST) -> Span:
        """The span of a node; for a definition, loop or branch, its first line."""
        line, byte = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line, end_byte = getattr(node, "end_lineno", None) or line, getattr(node, "end_col_offset", None) or byte + 1
        if isinstance(node, _COMPOUND):
            end_line, end_byte = line, len(self._lines[line - 1].encode("utf-8", "replace"))
        return Span(self.file, line, self._column(line, byte), end_line, self._column(end_line, end_byte))

    def whole(self, node: ast.AST) -> Span:
        """The full span of a node, including the body of a definition."""
        line, end_line = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or getattr(node, "lineno", 1)
        column = self._column(line, getattr(node, "col_offset", 0))
        return Span(self.file, line, column, end_line, self._column(end_line, getattr(node, "end_col_offset", None) or 0))

    def line(self, node: ast.AST) -> str:
        """The first line of a node, complete."""
        line = getattr(node, "lineno", 1)
        return self._lines[line - 1] if line <= len(self._lines) else ""

    def text_of(self, span: Span) -> str:
        """The text of a span, limited to its first line."""
        text = self._lines[span.line - 1] if span.line <= len(self._lines) else ""
        return text[span.column : span.end_column] if span.end_line == span.line else text[span.column :]

    def error(
        self, code: str, message: str, node: ast.AST, *, label: str = "", hint: str = "", fixes: tuple[Fix, ...] = ()
    ) -> Refused:
        """A refusal at `node`, to be raised by the caller."""
        return Refused(Diagnostic(code, message, Label(self.span(node), label), hint=hint, fixes=fixes))

    def instead(self, node: ast.AST, text: str) -> tuple[Fix, ...]:
        """The fix that replaces a node by `text`."""
        return (Fix(f"write `{text}`", "replace", text, self.span(node)),)


def compile_error(diagnostics: list[Diagnostic]) -> CompileError:
    """All diagnostics of a kernel, deduplicated, in source order."""
    unique = list(dict.fromkeys((d.code, d.message, d.primary) for d in diagnostics))
    first = {(d.code, d.message, d.primary): d for d in reversed(diagnostics)}
    ordered = sorted(unique, key=lambda key: (key[2].span.file, key[2].span.line, key[2].span.column) if key[2] else ("", 0, 0))
    return CompileError([first[key] for key in ordered])
