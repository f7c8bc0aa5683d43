"""Serves one client on stdin and stdout: dispatches the protocol's messages to the `Server`, and determines how the process
exits.

The protocol owns stdout; everything else printed to stdout goes to stderr. Exit status: 0 if the client requested shutdown
before it exited, 1 if it exited without, stopped reading, or speaks another protocol. No worker outlives the process. An error
of the client is one line in the log (`tilec.lsp.log`), and the server reads the next message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import sys
from collections.abc import Mapping
from threading import Event
from typing import Any, BinaryIO, Final, cast

from lsprotocol import types
from pygls.io_ import run_async

from tilec.lsp.log import OneLine
from tilec.lsp.server import Server
from tilec.project.build.live import BUILD_FILE
from tilec.project.read.models import Constant

_WATCHED: Final = (f"**/{BUILD_FILE}", "**/*.py")
_LOG: Final = logging.getLogger(__name__)


class NoClient(Exception):
    """No client is connected to stdin."""


class Writer:
    """Sends messages to the client, and drops them once the client is gone; calls `stop` when the client no longer reads. pygls
    would report a send failure to the client, which would fail as well."""

    def __init__(self, stdout: BinaryIO) -> None:
        self._stdout = stdout
        self._closed = False
        self.stop = lambda: None

    def close(self) -> None:
        """Drops all further messages."""
        self._closed = True

    def write(self, data: bytes) -> None:
        """Sends a message."""
        if self._closed:
            return
        try:
            self._stdout.write(data)
            self._stdout.flush()
        except OSError as error:
            self.close()
            _LOG.error("the editor stopped reading: %s", error.strerror)
            self.stop()


def serve(workers: int) -> int:
    """Serves the client on stdin and stdout until it exits; returns the exit status. NoClient if stdin is not a pipe or
    socket."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):  # a terminal or a file: no protocol peer
        raise NoClient
    logging.getLogger().addHandler(OneLine())
    server = make_server(workers)
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        with contextlib.suppress(SystemExit):  # pygls raises it at `exit`
            asyncio.run(_serve(server, Writer(stdout)))
    finally:
        with contextlib.suppress(OSError):  # flushing unsent data
            stdout.close()
    return 0 if server.ended_well else 1


async def _serve(server: Server, writer: Writer) -> None:
    reader, stopped = asyncio.StreamReader(), Event()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def stop() -> None:
        stopped.set()
        transport.close()  # ends a wait for the next message

    writer.stop = stop
    server.protocol.set_writer(writer)
    try:
        await run_async(stop_event=stopped, reader=reader, protocol=server.protocol, error_handler=server.report_server_error)
    except asyncio.IncompleteReadError:
        pass  # the client exited within a message
    except ValueError as error:
        _LOG.error("the header of a message is malformed, so the next message cannot be found: %s", error)
    finally:
        writer.close()
        server.stop()


def make_server(workers: int) -> Server:
    """A server with all features registered."""
    server = Server(workers)
    _documents(server)
    _requests(server)

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.start(_constants(params.initialization_options))

    @server.feature(types.INITIALIZED)
    def initialized(params: types.InitializedParams) -> None:
        del params
        _watch(server)

    @server.feature(types.SHUTDOWN)
    def shutdown(params: None) -> None:
        del params
        server.ended_well = True
        server.stop()

    del initialize, initialized, shutdown
    return server


def _documents(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        server.text(item.uri, item.version, item.text, now=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        item = params.text_document
        server.text(item.uri, item.version, server.workspace.get_text_document(item.uri).source, now=False)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.saved(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def watched(params: types.DidChangeWatchedFilesParams) -> None:
        del params
        server.disk_changed()

    del opened, changed, saved, closed, watched


def _requests(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        return await server.hover(params.text_document.uri, params.position)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: types.DefinitionParams) -> types.Location | None:
        return await server.definition(params.text_document.uri, params.position)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        return await server.symbols(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions([types.CodeActionKind.QuickFix]))
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        return server.actions(params.text_document.uri, params.range)

    del hover, definition, symbols, actions


def _constants(options: object) -> dict[str, tuple[Constant, ...]]:
    """`constants` of the client's options: a value or a list of values for each name; invalid values are ignored."""
    constants: Any = cast("Mapping[str, Any]", options).get("constants") if isinstance(options, Mapping) else None
    found: dict[str, tuple[Constant, ...]] = {}
    for name, value in cast("Mapping[str, Any]", constants).items() if isinstance(constants, Mapping) else ():
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        valid = tuple(item for item in values if isinstance(item, (int, float, str)))
        if valid:
            found[name] = valid
    return found


def _watch(server: Server) -> None:
    """Registers for file changes outside of the editor, if the client supports it."""
    workspace = server.client_capabilities.workspace
    watched = workspace.did_change_watched_files if workspace is not None else None
    if watched is None or not watched.dynamic_registration:
        return
    options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher(pattern) for pattern in _WATCHED])
    item = types.Registration("watch", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
    server.client_register_capability(types.RegistrationParams([item]))
