"""Diagnostics of tilec as diagnostics of the protocol.

In: a verdict, and the texts of the files that its spans name. Out: diagnostics by real path: the message says what, when (the
counterexample) and how to mend it, the places that say why are related information, the code leads to its page, and what a
program reads is in `data`.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lsprotocol import types

from tilec.diagnostics import Diagnostic, Label, Span
from tilec.lsp.positions import Text
from tilec.project.live import NO_VALUE, Told, Verdict
from tilec.project.report import diagnostic_json

SOURCE: Final = "tilec"
NAMED: Final = 3
"""Specialisations that a diagnostic names where it is not of all."""
TextOf = Callable[[str], Text]
"""The text of a file by its real path, empty where there is none."""


def diagnostics(verdict: Verdict, path: str, text_of: TextOf) -> dict[str, list[types.Diagnostic]]:
    """Diagnostics of a verdict on the file at `path`, by the real path of the file that each stands in."""
    found: dict[str, list[types.Diagnostic]] = {path: []}
    for told in verdict.told:
        item = told.diagnostic
        file = file_of(verdict.root, item.primary.span) if item.primary is not None else path
        span = item.primary.span if item.primary is not None else Span("", 1, 0, 1, len(text_of(file).lines[0]))
        found.setdefault(file, []).append(
            types.Diagnostic(
                range=text_of(file).range(span), message=_message(told, len(verdict.specialisations)), severity=_severity(item),
                code=item.code, code_description=_page(item.code), source=SOURCE,
                related_information=[_related(verdict.root, label, text_of) for label in item.secondary] or None,
                data=_data(told, verdict.root),
            )
        )  # fmt: skip
    if verdict.complete and not verdict.specialisations and not found[path] and len(found) > 1:
        found[path].append(_elsewhere(found, text_of(path)))
    return found


def _elsewhere(found: dict[str, list[types.Diagnostic]], text: Text) -> types.Diagnostic:
    """In a kernel that cannot be judged for what is wrong with another file, such as the build file: where, and what."""
    path, first = next((path, one) for path, several in found.items() for one in several[:1])
    where = types.DiagnosticRelatedInformation(types.Location(uri_of(path), first.range), first.message)
    return types.Diagnostic(
        text.range(Span("", 1, 0, 1, len(text.lines[0]))), f"nothing is proven: `{os.path.basename(path)}` is refused",
        types.DiagnosticSeverity.Warning, first.code, first.code_description, SOURCE, related_information=[where],
    )  # fmt: skip


def file_of(root: Path, span: Span) -> str:
    """The real path of the file that a span names."""
    return os.path.realpath(root / span.file)


def uri_of(path: str) -> str:
    """The URI of a file."""
    return Path(path).as_uri()


@functools.cache
def explanation(code: str) -> str:
    """The page of a code, as Markdown; empty for what is no code."""
    page = importlib.resources.files("tilec") / "explain" / f"{code}.md"
    return page.read_text(encoding="utf-8") if code.isalnum() and page.is_file() else ""


def _severity(item: Diagnostic) -> types.DiagnosticSeverity:
    if item.code == NO_VALUE:
        return types.DiagnosticSeverity.Warning
    return types.DiagnosticSeverity.Error if item.level == "error" else types.DiagnosticSeverity.Information


def _message(told: Told, specialisations: int) -> str:
    item = told.diagnostic
    first = item.message
    if item.primary is not None and item.primary.text:
        first += f": {item.primary.text}"
    lines = [first]
    if item.counterexample is not None:
        lines.append(f"counterexample: {item.counterexample}")
    lines += item.notes
    if 0 < len(told.names) < specialisations:
        more = f" and {len(told.names) - NAMED} more" if len(told.names) > NAMED else ""
        lines.append(f"in {', '.join(told.names[:NAMED])}{more} of {specialisations} specialisations")
    if item.hint:
        lines.append(f"hint: {item.hint}")
    return "\n".join(lines)


def _page(code: str) -> types.CodeDescription | None:
    page = importlib.resources.files("tilec") / "explain" / f"{code}.md"
    return types.CodeDescription(page.absolute().as_uri()) if isinstance(page, Path) and page.is_file() else None


def _related(root: Path, label: Label, text_of: TextOf) -> types.DiagnosticRelatedInformation:
    path = file_of(root, label.span)
    where = types.Location(uri_of(path), text_of(path).range(label.span))
    return types.DiagnosticRelatedInformation(where, label.text or "here")


def _data(told: Told, root: Path) -> dict[str, Any]:
    """The diagnostic as `tilec check --json` has it, without what the terminal shows."""
    record = diagnostic_json(told.diagnostic, root)
    del record["rendered"]
    return record | {"specialisations": list(told.names)}
