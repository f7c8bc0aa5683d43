"""The server: takes messages of an editor, returns responses and diagnostics, on one event loop that never blocks on a proof.

Invariants: a result for outdated texts is dropped. Unsaved texts take precedence over files on disk. Files without a kernel or
tile function get no diagnostics. Positions use the encoding that client and server agreed on. Each change carries the whole
text: pygls applies partial changes by the line ends of Python's `splitlines`, which include a form feed, and editors count
lines differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from tilec import __version__
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import Outline, Symbol, definition, outline
from tilec.frontend.module import read_text
from tilec.lsp import hover
from tilec.lsp.checker import Checker, CheckResult, Document
from tilec.lsp.positions import Text, Word, contains
from tilec.lsp.reports import actions, diagnostics, file_of
from tilec.project.build.live import BUILD_FILE
from tilec.project.read.models import Constant

_CODE: Final = re.compile(r"[EN]\d{4}")
_KINDS: Final = {
    "kernel": types.SymbolKind.Function, "function": types.SymbolKind.Function, "dim": types.SymbolKind.TypeParameter,
    "element": types.SymbolKind.TypeParameter, "constant": types.SymbolKind.Constant, "parameter": types.SymbolKind.Variable,
}  # fmt: skip


@dataclass(slots=True)
class _File:
    """An open file. `outline` is that of the latest text that Python could parse, among those up to `parsed`."""

    uri: str
    version: int | None
    text: Text
    parsed: Text | None = None
    outline: Outline | None = None
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    result: CheckResult | None = None
    """The latest verdict on the file; it may be for an older text."""
    published: dict[str, list[types.Diagnostic]] = field(default_factory=dict[str, list[types.Diagnostic]])
    """Diagnostics of the latest verdict, by the real path of their file."""


class Server(LanguageServer):
    """The language server of tilec. `workers` is the number of parallel check workers."""

    def __init__(self, workers: int) -> None:
        full = types.TextDocumentSyncKind.Full
        super().__init__("tilec", __version__, text_document_sync_kind=full)  # pyright: ignore[reportUnknownMemberType]
        self._workers = workers
        self._files: dict[str, _File] = {}
        self._checker: Checker | None = None
        self._changed = asyncio.Event()
        self._background: asyncio.Task[Outline | None] | None = None
        self.ended_well = False
        """Whether the client requested shutdown before it exited."""

    # Notifications from the client

    def start(self, constants: Mapping[str, tuple[Constant, ...]]) -> None:
        """The client has connected; `constants` are values for files outside any project."""
        loop = asyncio.get_running_loop()

        def report(result: CheckResult) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.receive, result)

        self._checker = Checker(report, constants, self._workers)

    def stop(self) -> None:
        """Ends the checker and its workers."""
        if self._checker is not None:
            self._checker.close()
            self._checker = None

    def text(self, uri: str, version: int | None, text: str, *, now: bool) -> None:
        """A file was opened, or its text has changed."""
        path = _path_of(uri)
        if path is None or self._checker is None:
            return
        encoding = self.workspace.position_encoding or types.PositionEncodingKind.Utf16
        file = self._files.setdefault(path, _File(uri, version, Text("")))
        file.uri, file.version, file.text = uri, version, Text(text, encoding)
        is_checked = "tilec" in text
        self._checker.set(path, Document(text, version, is_checked), now=now)
        if not is_checked and file.published:
            self._publish(file, path, {})

    def saved(self, uri: str) -> None:
        """A file was saved: checks it without delay."""
        file = self._files.get(_path_of(uri) or "")
        if file is not None:
            self.text(file.uri, file.version, file.text.text, now=True)

    def closed(self, uri: str) -> None:
        """A file was closed: removes its diagnostics; the version on disk is used again."""
        path = _path_of(uri)
        file = self._files.get(path or "")
        if path is None or file is None or self._checker is None:
            return
        self._checker.forget(path)
        self._publish(file, path, {})
        del self._files[path]
        self._notify()

    def disk_changed(self) -> None:
        """Files on disk have changed, possibly a build file."""
        if self._checker is not None:
            self._checker.queue_all()

    # Results from the checker

    def receive(self, result: CheckResult) -> None:
        """Receives a result of the checker; drops it if any text that it depends on has changed."""
        file = self._files.get(result.path)
        if file is None or not self._is_current(result):
            return
        previous = file.result
        if not result.verdict.complete and previous is not None and previous.verdict.complete and self._is_current(previous):
            return  # a partial result for a text whose complete result is known
        file.result = result
        self._background = asyncio.create_task(self._outline(result.path))  # for later texts that do not parse
        if result.verdict.complete or result.verdict.reported:
            self._publish(file, result.path, diagnostics(result.verdict, result.path, self))
        self._notify()

    def _is_current(self, result: CheckResult) -> bool:
        files = {result.path, *result.verdict.files}
        return all(result.versions.get(path, -1) == file.version for path, file in self._files.items() if path in files)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _publish(self, file: _File, path: str, found: dict[str, list[types.Diagnostic]]) -> None:
        """Replaces the diagnostics that result from one file, in it and in files that it imports."""
        files = {*file.published, *found, path}
        file.published = found
        for affected in files:
            self._send(affected)

    def _send(self, path: str) -> None:
        """Sends all diagnostics located in a file, whichever check they come from, without duplicates."""
        found: list[types.Diagnostic] = []
        for file in self._files.values():
            found += [one for one in file.published.get(path, ()) if one not in found]
        version = self._files[path].version if path in self._files else None
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(self.uri_of(path), found, version))

    # Requests from the client

    def text_of(self, path: str) -> Text:
        """The text of a file, open or not; empty if it cannot be read."""
        file = self._files.get(path)
        if file is not None:
            return file.text
        try:
            return Text(read_text(Path(path)), self.workspace.position_encoding or types.PositionEncodingKind.Utf16)
        except CompileError:
            return Text("")

    def uri_of(self, path: str) -> str:
        """The URI of a file; for an open file, as the editor spells it."""
        file = self._files.get(path)
        return file.uri if file is not None else Path(path).as_uri()

    async def hover(self, uri: str, position: types.Position) -> types.Hover | None:
        """Description of a location; waits for a pending check of its text."""
        path = _path_of(uri) or ""
        file = self._files.get(path)
        if file is None:
            return None
        line, column = file.text.location(position)
        word = file.text.word(line, column)
        if word is not None and _CODE.fullmatch(word.text) and hover.of_code(word.text):
            return _markdown([hover.of_code(word.text)], file.text, word)
        while self._checker is not None and path in self._files and not self._results_for(path) and self._checker.pending(path):
            await self._changed.wait()
        if path not in self._files:
            return None
        results = self._results_for(path)
        parts = [hover.of_location(result.verdict, path, line, column, word) for result in results]
        if word is not None:
            parts += await self._of_name(path, word, results)
            parts.append(hover.of_word(await self._outline(path), word))
        parts.append(hover.of_diagnostics(_at(results, path, line, column)))
        return _markdown(parts, file.text, word)

    async def _of_name(self, path: str, word: Word, results: list[CheckResult]) -> list[str]:
        symbol = await self._definition(path, word)
        if symbol is None:
            return []
        relevant = [result for result in results if result.path == path or symbol.kind == "dim"]
        descriptions = (
            [hover.of_name(result.verdict, word.text) for result in relevant] if symbol.kind in ("parameter", "dim") else []
        )
        found = await self._outline(path)
        inside = found.around(word.line) if found is not None else None
        if symbol.kind == "parameter" and (inside is None or inside.kind != "kernel"):
            descriptions = []  # a parameter of a tile function, unrelated to the kernel's names
        return [hover.of_symbol(symbol), *descriptions]

    async def definition(self, uri: str, position: types.Position) -> types.Location | None:
        """The definition of the name at a location: tile functions, dims, dtypes, constants, parameters; through imports
        too."""
        path = _path_of(uri) or ""
        file = self._files.get(path)
        if file is None:
            return None
        word = file.text.word(*file.text.location(position))
        symbol = await self._definition(path, word) if word is not None and not word.package else None
        if symbol is None:
            return None
        where = os.path.realpath(symbol.name_span.file)
        return types.Location(self.uri_of(where), self.text_of(where).range(symbol.name_span))

    async def _definition(self, path: str, word: Word) -> Symbol | None:
        found = await self._outline(path)
        if found is None:
            return None
        texts = {name: file.text.text for name, file in self._files.items()}
        return await asyncio.to_thread(definition, found, word.text, word.line, _project_root(path), texts)

    def actions(self, uri: str, range_: types.Range) -> list[types.CodeAction]:
        """Fixes of the diagnostics that overlap a range, certain ones first."""
        path = _path_of(uri) or ""
        found: list[types.CodeAction] = []
        for result in self._results_for(path):
            for diagnostic, action in actions(result.verdict, result.path, self):
                edits_file = action.edit is not None and uri in (action.edit.changes or {})
                if (
                    edits_file
                    and diagnostic.range.start <= range_.end
                    and range_.start <= diagnostic.range.end
                    and action not in found
                ):
                    found.append(action)
        return sorted(found, key=lambda action: not action.is_preferred)

    async def symbols(self, uri: str) -> list[types.DocumentSymbol]:
        """The definitions of a file: kernels and tile functions with their parameters, dims, dtypes, constants."""
        path = _path_of(uri) or ""
        found = await self._outline(path)
        if found is None or not found.holds_kernels or path not in self._files:
            return []
        text = self._files[path].text
        return [_symbol(symbol, text) for symbol in found.symbols]

    async def _outline(self, path: str) -> Outline | None:
        """The outline of an open file, from the latest text that Python could parse; computed in a thread, because a text may
        be long."""
        file = self._files.get(path)
        if file is None:
            return None
        text = file.text
        async with file.reading:
            if file.parsed is not text:
                found = await asyncio.to_thread(outline, Path(path), text.text)
                file.outline = found or file.outline
                file.parsed = text
        return file.outline

    def _results_for(self, path: str) -> list[CheckResult]:
        """Current verdicts that cover a file, its own first."""
        found = [
            (other != path, file.result)
            for other, file in self._files.items()
            if file.result is not None and (other == path or path in file.result.verdict.files)
        ]
        return [result for _, result in sorted(found, key=lambda one: one[0]) if self._is_current(result)]


def _path_of(uri: str) -> str | None:
    """The real path of a file URI; None if it names no file, such as an unnamed text, or contains a null byte."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return os.path.realpath(path) if path and "\0" not in path else None


def _project_root(path: str) -> Path | None:
    return next((folder for folder in Path(path).parents if (folder / BUILD_FILE).is_file()), None)


def _at(results: Iterable[CheckResult], path: str, line: int, column: int) -> Iterator[Diagnostic]:
    """Diagnostics whose primary span contains a location."""
    for result in results:
        for scoped in result.verdict.reported:
            primary = scoped.diagnostic.primary
            if (
                primary is not None
                and contains(primary.span, line, column)
                and file_of(result.verdict.root, primary.span) == path
            ):
                yield scoped.diagnostic


def _markdown(parts: Iterable[str], text: Text, word: Word | None) -> types.Hover | None:
    texts = list(dict.fromkeys(part for part in parts if part))
    if not texts:
        return None
    range_ = types.Range(text.position(word.line, word.column), text.position(word.line, word.end)) if word else None
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(texts)), range_)


def _symbol(symbol: Symbol, text: Text) -> types.DocumentSymbol:
    return types.DocumentSymbol(
        symbol.name, _KINDS[symbol.kind], text.range(symbol.span), text.range(symbol.name_span), detail=symbol.kind,
        children=[_symbol(child, text) for child in symbol.children],
    )  # fmt: skip
