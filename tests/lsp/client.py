"""A client of the language server: the real process, connected by pipes to pygls's own client.

Nothing here sleeps or has a time limit of its own: `diagnostics_of` waits until the server has published the expected
diagnostics.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient


class Editor(LanguageClient):
    """An editor that records the last published diagnostics of each file."""

    def __init__(self) -> None:
        super().__init__("editor", "1")
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        self.count = 0
        self.files: set[str] = set()
        self.messages: list[str] = []
        self.news = asyncio.Event()
        self.ended = asyncio.Event()

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = params
            self.count += 1
            self.notify()

        @self.feature(types.WINDOW_SHOW_MESSAGE)
        def shown(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)

        @self.feature(types.CLIENT_REGISTER_CAPABILITY)
        def registered(params: types.RegistrationParams) -> None:
            self.registered = params.registrations

    def notify(self) -> None:
        """Wakes all waiters."""
        self.news.set()
        self.news = asyncio.Event()

    async def server_exit(self, server: asyncio.subprocess.Process) -> None:
        self.ended.set()
        self.notify()

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The server's process."""
        assert self._server is not None
        return self._server

    def open(self, path: Path, text: str, version: int = 1) -> str:
        """Opens a file with a text, which may differ from that on disk; returns its URI."""
        uri = path.as_uri()
        self.files.add(uri)
        self.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, types.LanguageKind.Python, version, text))
        )
        return uri

    def change(self, uri: str, text: str, version: int) -> None:
        """Replaces the text of an open file."""
        self.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri), [types.TextDocumentContentChangeWholeDocument(text)]
            )
        )

    def close(self, uri: str) -> None:
        self.files.discard(uri)
        self.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    async def close_all(self) -> None:
        """Closes all open files, and waits until the server has cleared their diagnostics."""
        open_files = sorted(self.files)
        for uri in open_files:
            self.close(uri)
        while any(self.published[uri].diagnostics for uri in open_files if uri in self.published):
            assert not self.ended.is_set(), f"the server ended with {self.process.returncode}"
            await self.news.wait()

    def forget(self) -> None:
        """Resets to the state of a new editor."""
        self.published.clear()
        self.messages.clear()
        self.count = 0

    async def diagnostics_of(
        self, uri: str, version: int | None, enough: Callable[[list[types.Diagnostic]], bool] = lambda found: True
    ) -> list[types.Diagnostic]:  # fmt: skip
        """The diagnostics of a version of a file, once `enough` accepts them."""
        while True:
            params = self.published.get(uri)
            if params is not None and params.version == version and enough(list(params.diagnostics)):
                return list(params.diagnostics)
            assert not self.ended.is_set(), f"the server ended with {self.process.returncode}"
            await self.news.wait()

    async def hover(self, uri: str, line: int, character: int) -> str:
        """The server's hover text at a position, as Markdown."""
        found = await self.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(line, character))
        )
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    async def defined(self, uri: str, line: int, character: int) -> types.Location | None:
        """The location of the definition of the name at a position."""
        found = await self.text_document_definition_async(
            types.DefinitionParams(types.TextDocumentIdentifier(uri), types.Position(line, character))
        )
        assert found is None or isinstance(found, types.Location)
        return found


@asynccontextmanager
async def editor(
    folder: Path, *, options: dict[str, Any] | None = None, capabilities: types.ClientCapabilities | None = None,
    arguments: tuple[str, ...] = (),
) -> AsyncGenerator[Editor]:  # fmt: skip
    """An editor in a folder, with a server that runs until the end of the block and then shuts down cleanly."""
    found = Editor()
    command = [sys.executable, "-P", "-m", "tilec", "lsp", *arguments]
    await found.start_io(*command, cwd=folder, env=os.environ | {"TILEC_CACHE_DIR": str(folder / "store")})
    try:
        await found.initialize_async(
            types.InitializeParams(
                capabilities=capabilities or types.ClientCapabilities(),
                root_uri=folder.as_uri(),
                initialization_options=options,
            )
        )
        found.initialized(types.InitializedParams())
        yield found
        if not found.ended.is_set():
            await found.shutdown_async(None)
            found.exit(None)
            await found.ended.wait()
            assert found.process.returncode == 0
    finally:
        if found.process.returncode is None:
            found.process.kill()
        await found.stop()


def at(text: str, piece: str, offset: int = 0, nth: int = 0) -> tuple[int, int]:
    """Zero-based line and UTF-16 column of an occurrence of a piece of a text."""
    index = -1
    for _ in range(nth + 1):
        index = text.index(piece, index + 1)
    before = text[: index + offset]
    line = before.rpartition("\n")[2]
    return before.count("\n"), len(line.encode("utf-16-le")) // 2
