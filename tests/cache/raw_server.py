"""A loopback server that answers every request with the same arbitrary bytes, to test that a cache layer survives them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator

Respond = Callable[[bytes], bytes | None]
"""Bytes of a request to the bytes of its response; None closes the connection without one."""


@contextlib.contextmanager
def raw_server(respond: Respond, *, closing: bool = True) -> Generator[int]:
    """The port of the server; it closes each connection after a response, unless `closing` is false."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(64)

        def serve(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                while data := connection.recv(1 << 16):
                    reply = respond(data)
                    if reply is None:
                        return
                    connection.sendall(reply)
                    if closing:
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):
                            pass
                        return

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
