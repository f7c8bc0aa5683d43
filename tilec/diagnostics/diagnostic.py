"""Source spans, and the diagnostics of all stages.

A stage that rejects its input raises `CompileError` with one `Diagnostic` per problem. A diagnostic states the error (primary
label), its reasons (secondary labels, in source order), a concrete failing launch (counterexample) and the fix (hint; also
`fixes` if a program can apply one). `render` formats it as text in the style of rustc: code, message, caret-marked source
lines, notes, hint.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tilec.diagnostics.visible import visible

Paint = Callable[[str, str], str]
"""Takes the role of a part of a rendered diagnostic (a key of `terminal.STYLES`) and its text, returns the text to print."""


def unpainted(role: str, text: str) -> str:
    """A `Paint` that returns the text unchanged."""
    return text


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of source text; lines are 1-based, columns are 0-based character offsets."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


@dataclass(frozen=True, slots=True)
class Label:
    """A span and a short text to print under its carets (may be empty)."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """One concrete launch that violates an obligation; every entry is a value that the kernel author can try.

    `dims` maps symbolic dims and integer scalars to values, `blocks` contains one block index tuple (two for a race),
    `iterations` one mapping of loop variable to value per block, `element` the index of the tensor element at fault.
    """

    dims: dict[str, int] = field(default_factory=dict[str, int])
    blocks: tuple[tuple[int, ...], ...] = ()
    iterations: tuple[dict[str, int], ...] = ()
    tensor: str = ""
    element: tuple[int, ...] = ()
    values: dict[str, int] = field(default_factory=dict[str, int])
    note: str = ""

    def __str__(self) -> str:
        parts = [f"{name} = {value}" for name, value in (*self.dims.items(), *self.values.items())]
        for position, block in enumerate(self.blocks):
            block_text = f"block ({', '.join(map(str, block))})"
            loops = self.iterations[position] if position < len(self.iterations) else {}
            if loops:
                block_text += " at " + ", ".join(f"{name} = {value}" for name, value in loops.items())
            parts.append(block_text)
        if self.tensor:
            parts.append(f"element `{self.tensor}[{', '.join(map(str, self.element))}]`")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Fix:
    """A source change that fixes a diagnostic, in a form independent of the source text.

    `change` determines the use of `text`: an `argument` is added to the call at `span`; a `statement` is added after the grid
    of the kernel that contains `span`; a word to `import` comes from `tilec`; with `replace` it replaces the text of `span`. A
    `certain` fix does not change any launch that was correct before: a program may apply it without confirmation.
    """

    title: str
    change: Literal["argument", "statement", "import", "replace"]
    text: str
    span: Span
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error, or a note about a possible improvement. `code` is E or N followed by four digits and has a page in
    `tilec/diagnostics/explain/`."""

    code: str
    message: str
    primary: Label | None = None
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    hint: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def level(self) -> str:
        """`error` or `note`; also a role of `tilec.diagnostics.terminal.STYLES`."""
        return "note" if self.code.startswith("N") else "error"


class CompileError(Exception):
    """The input was rejected; carries every diagnostic found, in source order."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = found
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in found))

    def __reduce__(self) -> tuple[type[CompileError], tuple[tuple[Diagnostic, ...]]]:
        return (CompileError, (self.diagnostics,))


def display_width(text: str) -> int:
    """Number of terminal columns of `text` (east-asian wide characters have two)."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _source_lines(file: str, sources: dict[str, str]) -> list[str]:
    if file not in sources:
        try:
            sources[file] = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            sources[file] = ""
    return sources[file].split("\n")


def render(diagnostic: Diagnostic, sources: dict[str, str] | None = None, paint: Paint = unpainted) -> str:
    """Text of one diagnostic. `sources` maps file names to their text; files not in it are read from disk. `paint` colours the
    text."""
    sources = {} if sources is None else dict(sources)
    lines = [
        paint(diagnostic.level, f"{diagnostic.level}[{diagnostic.code}]") + paint("message", f": {visible(diagnostic.message)}")
    ]
    labels = [*diagnostic.secondary] + ([diagnostic.primary] if diagnostic.primary else [])
    gutter = max((len(str(label.span.line)) for label in labels), default=1)
    margin = " " * gutter
    if diagnostic.primary is not None:
        bar = f"{margin} {paint('frame', '|')}"
        lines.append(f"{margin}{paint('frame', '-->')} {visible(str(diagnostic.primary.span))}")
        lines.extend((bar, *_snippets(diagnostic, labels, gutter, sources, paint), bar))
    equals = f"{margin} {paint('frame', '=')}"
    if diagnostic.counterexample is not None:
        lines.append(f"{equals} {paint('counterexample', 'counterexample')}: {visible(str(diagnostic.counterexample))}")
    lines.extend(f"{equals} {visible(note)}" for note in diagnostic.notes)
    if diagnostic.hint:
        lines.extend(("", f"{paint('hint', 'hint')}: {visible(diagnostic.hint)}"))
    return "\n".join(lines)


def _snippets(
    diagnostic: Diagnostic, labels: list[Label], gutter: int, sources: dict[str, str], paint: Paint
) -> Iterable[str]:  # fmt: skip
    primary = diagnostic.primary
    assert primary is not None
    ordered = sorted(labels, key=lambda label: (label.span.file != primary.span.file, label.span.file, label.span.line))
    shown: tuple[str, int] | None = None
    for label in ordered:
        span = label.span
        text_lines = _source_lines(span.file, sources)
        text = text_lines[span.line - 1] if span.line <= len(text_lines) else ""
        if shown is not None and shown[0] != span.file:
            yield f"{' ' * gutter} {paint('frame', ':::')} {visible(str(span))}"
        if shown != (span.file, span.line):
            if shown is not None and shown[0] == span.file and span.line > shown[1] + 1:
                yield "..."
            yield f"{paint('frame', f'{span.line:>{gutter}} |')} {visible(text)}"
        shown = (span.file, span.line)
        end = span.end_column if span.end_line == span.line else len(text)
        pad = " " * display_width(visible(text[: span.column]))
        underline = ("^" if label is primary else "-") * max(1, display_width(visible(text[span.column : end])))
        role = "primary" if label is primary else "secondary"
        yield f"{' ' * gutter} {paint('frame', '|')} {pad}{paint(role, f'{underline} {visible(label.text)}'.rstrip())}"


def render_all(diagnostics: Iterable[Diagnostic], sources: dict[str, str] | None = None, paint: Paint = unpainted) -> str:
    """Text of several diagnostics, separated by blank lines."""
    return "\n\n".join(render(diagnostic, sources, paint) for diagnostic in diagnostics)
