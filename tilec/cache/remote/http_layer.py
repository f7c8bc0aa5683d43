"""HTTP: GET, HEAD and PUT of `URL/<key>`, as supported by WebDAV servers and the caches of other build tools (RFC 9110).

User and password of the URL are sent as Basic authentication. Redirects are not followed, because they could send data to
another host. There are no leases: builders that start together make some entries twice, which is counted.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import threading
from typing import Final
from urllib.parse import unquote, urlsplit

from tilec.cache.remote.address import Address
from tilec.cache.remote.layer import Oversized

ABSENT = (404, 410)
DONE = (200, 201, 204)
PIECE: Final = 1 << 18
"""Bytes per read."""


class HttpLayer:
    """One folder of a server. Connections are reused."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        self._host, self._port, self._seconds = parts.hostname or "", parts.port, address.seconds
        self._path = parts.path.rstrip("/")
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"User-Agent": "tilec"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()

    def get(self, key: str, limit: int) -> bytes | None:
        """Status 404 and 410 mean that there is no entry."""
        status, data = self._request("GET", key, limit=limit)
        if status in ABSENT:
            return None
        if status != 200:
            raise OSError(f"the server answers {status}")
        return data

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Without `replace` a HEAD request comes first, since file servers ignore `If-None-Match`."""
        if not replace and self._request("HEAD", key)[0] == 200:
            return False
        status, _ = self._request("PUT", key, data)
        if status not in DONE:
            raise OSError(f"the server answers {status} to PUT")
        return True

    def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """Not supported."""
        return None

    def release(self, key: str, holder: str) -> None:
        """Do nothing: there are no leases."""

    def close(self) -> None:
        """Also aborts requests in progress."""
        with self._lock:
            connections = [*self._idle, *self._busy]
            self._idle.clear()
        for connection in connections:
            with contextlib.suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(2)
            connection.close()

    def _request(self, method: str, key: str, body: bytes | None = None, limit: int = 1 << 16) -> tuple[int, bytes]:
        """Status and body of one request. If the server has closed an idle connection, the request is retried once."""
        connection, used = self._connection()
        try:
            try:
                return self._exchange(connection, method, key, body, limit)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not used:
                    raise
                connection.close()
                return self._exchange(connection, method, key, body, limit)
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
                if connection.sock is not None:
                    self._idle.append(connection)

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                connection, used = self._idle.pop(), True
            elif self._context is not None:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._seconds, context=self._context
                )  # fmt: skip
                used = False
            else:
                connection, used = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds), False
            self._busy.add(connection)
        return connection, used

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, key: str, body: bytes | None, limit: int
    ) -> tuple[int, bytes]:  # fmt: skip
        connection.request(method, f"{self._path}/{key}", body, self._headers)
        response = connection.getresponse()
        if method != "HEAD" and (response.length or 0) > limit:
            connection.close()
            if method == "GET" and response.status == 200:
                raise Oversized
            return response.status, b""
        data = _body(response, limit)
        if len(data) > limit or not response.isclosed():
            connection.close()
            if method == "GET" and response.status == 200 and len(data) > limit:
                raise Oversized
        return response.status, data


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """The body, or its first bytes, more than `limit`, if it is longer. It is read in pieces: one large read would make
    `http.client` read a chunk with the declared size -1 up to the end of the stream."""
    parts: list[bytes] = []
    size = 0
    while size <= limit and (part := response.read1(PIECE)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
