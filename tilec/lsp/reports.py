"""Converts tilec diagnostics to diagnostics of the protocol.

In: a verdict, and the texts of the files in its spans. Out: diagnostics by real path. The message gives the error, the
counterexample and the hint; secondary locations are related information; the code links to its page; `data` is the
machine-readable record.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from lsprotocol import types

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.lsp.positions import Text
from tilec.project.build.fixes import resolved
from tilec.project.build.live import NO_VALUE, ScopedDiagnostic, Verdict
from tilec.project.build.report import diagnostic_json

SOURCE: Final = "tilec"
NAMED: Final = 3
"""Maximum number of specialisations named in a diagnostic that does not apply to all."""


class Files(Protocol):
    """Files by their real paths."""

    def text_of(self, path: str) -> Text:
        """The text of a file; empty if it does not exist."""
        ...

    def uri_of(self, path: str) -> str:
        """The URI of a file as the editor spells it."""
        ...


def diagnostics(verdict: Verdict, path: str, files: Files) -> dict[str, list[types.Diagnostic]]:
    """Diagnostics of a verdict on the file at `path`, by the real path of the file that contains them."""
    found: dict[str, list[types.Diagnostic]] = {path: []}
    for scoped in verdict.reported:
        file, diagnostic = _diagnostic(scoped, verdict, path, files)
        found.setdefault(file, []).append(diagnostic)
    if verdict.complete and not verdict.specialisations and not found[path] and len(found) > 1:
        found[path].append(_elsewhere(found, files.text_of(path), files))
    return found


def _diagnostic(reported: ScopedDiagnostic, verdict: Verdict, path: str, files: Files) -> tuple[str, types.Diagnostic]:
    """A diagnostic, and the real path of its file; `path` if it has no location."""
    item = reported.diagnostic
    file = file_of(verdict.root, item.primary.span) if item.primary is not None else path
    span = item.primary.span if item.primary is not None else Span("", 1, 0, 1, len(files.text_of(file).lines[0]))
    decided = len(verdict.specialisations) if verdict.complete else 0  # 0: not known yet
    return file, types.Diagnostic(
        range=files.text_of(file).range(span), message=_message(reported, decided), severity=_severity(item),
        code=item.code, code_description=_page(item.code), source=SOURCE,
        related_information=[_related(verdict.root, label, files) for label in item.secondary] or None,
        data=_data(reported, verdict.root),
    )  # fmt: skip


def _elsewhere(found: dict[str, list[types.Diagnostic]], text: Text, files: Files) -> types.Diagnostic:
    """A warning for a kernel that cannot be checked because of an error in another file, such as the build file; it names that
    file and error."""
    path, first = next((path, diagnostic) for path, several in found.items() for diagnostic in several[:1])
    related = types.DiagnosticRelatedInformation(types.Location(files.uri_of(path), first.range), first.message)
    return types.Diagnostic(
        text.range(Span("", 1, 0, 1, len(text.lines[0]))), f"nothing is proven: `{os.path.basename(path)}` is refused",
        types.DiagnosticSeverity.Warning, first.code, first.code_description, SOURCE, related_information=[related],
    )  # fmt: skip


def actions(verdict: Verdict, path: str, files: Files) -> list[tuple[types.Diagnostic, types.CodeAction]]:
    """The fixes of a verdict on the file at `path`, each as an edit, with the diagnostic it fixes; certain fixes are
    preferred."""
    found: list[tuple[types.Diagnostic, types.CodeAction]] = []
    for scoped in verdict.reported:
        names = (
            {fix.span.file for fix in scoped.diagnostic.fixes} | {scoped.diagnostic.primary.span.file}
            if scoped.diagnostic.primary
            else set[str]()
        )
        sources = {name: files.text_of(os.path.realpath(verdict.root / name)).text for name in names}
        for fix in resolved(scoped.diagnostic, sources):
            changes: dict[str, list[types.TextEdit]] = {}
            for edit in fix.edits:
                file = file_of(verdict.root, edit.span)
                text = files.text_of(file)
                edit_range = types.Range(
                    text.position(edit.span.line, edit.span.column), text.position(edit.span.end_line, edit.span.end_column)
                )
                changes.setdefault(files.uri_of(file), []).append(types.TextEdit(edit_range, edit.text))
            diagnostic = _diagnostic(scoped, verdict, path, files)[1]
            action = types.CodeAction(
                fix.title, types.CodeActionKind.QuickFix, [diagnostic], fix.certain, edit=types.WorkspaceEdit(changes)
            )
            found.append((diagnostic, action))
    return found


def file_of(root: Path, span: Span) -> str:
    """The real path of the file that a span names."""
    return os.path.realpath(root / span.file)


@functools.cache
def explanation(code: str) -> str:
    """The page of a code, as Markdown; empty for an unknown code."""
    page = importlib.resources.files("tilec") / "diagnostics" / "explain" / f"{code}.md"
    return page.read_text(encoding="utf-8") if code.isalnum() and page.is_file() else ""


def _severity(item: Diagnostic) -> types.DiagnosticSeverity:
    if item.code == NO_VALUE:
        return types.DiagnosticSeverity.Warning
    return types.DiagnosticSeverity.Error if item.level == "error" else types.DiagnosticSeverity.Information


def _message(reported: ScopedDiagnostic, specialisations: int) -> str:
    item = reported.diagnostic
    first = item.message
    if item.primary is not None and item.primary.text:
        first += f": {item.primary.text}"
    lines = [first]
    if item.counterexample is not None:
        lines.append(f"counterexample: {item.counterexample}")
    lines += item.notes
    if 0 < len(reported.names) < specialisations:
        more = f" and {len(reported.names) - NAMED} more" if len(reported.names) > NAMED else ""
        lines.append(f"in {', '.join(reported.names[:NAMED])}{more} of {specialisations} specialisations")
    if item.hint:
        lines.append(f"hint: {item.hint}")
    return "\n".join(lines)


def _page(code: str) -> types.CodeDescription | None:
    page = importlib.resources.files("tilec") / "diagnostics" / "explain" / f"{code}.md"
    return types.CodeDescription(page.absolute().as_uri()) if isinstance(page, Path) and page.is_file() else None


def _related(root: Path, label: Label, files: Files) -> types.DiagnosticRelatedInformation:
    path = file_of(root, label.span)
    location = types.Location(files.uri_of(path), files.text_of(path).range(label.span))
    return types.DiagnosticRelatedInformation(location, label.text or "here")


def _data(reported: ScopedDiagnostic, root: Path) -> dict[str, Any]:
    """The diagnostic as in `tilec check --json`, without the terminal rendering and the fixes, which are code actions."""
    record = diagnostic_json(replace(reported.diagnostic, fixes=()), root)
    del record["rendered"], record["fixes"]
    return record | {"specialisations": list(reported.names)}
