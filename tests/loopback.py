"""A server on the loopback, one thread a connection, for servers and proxies that lie."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Generator[int]:
    """The port of a server that gives each connection to `serve`, in a thread of its own, until the context ends."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(64)

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
