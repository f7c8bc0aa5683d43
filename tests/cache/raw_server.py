"""A loopback server that answers every request with the same arbitrary bytes, to test that a cache layer survives them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from tests.loopback import listening

Respond = Callable[[bytes], bytes | None]
"""Bytes of a request to the bytes of its response; None closes the connection without one."""


def raw_server(respond: Respond, *, closing: bool = True) -> contextlib.AbstractContextManager[int]:
    """The port of the server; it closes each connection after a response, unless `closing` is false."""

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

    return listening(serve)
