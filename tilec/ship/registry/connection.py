"""One HTTP/1.1 exchange, bounded in time and bytes whatever the peer does.

Python's `http.client` bounds the lines and the number of headers, but its timeout applies to each read. A peer that sends a
byte now and then never triggers it. So a `Deadline` ends the whole exchange, from the TLS handshake to the last byte, by
shutting down the socket. Certificates are verified against the system's trust store.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import math
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilec.ship.registry.errors import RegistryError

PIECE: Final = 1 << 18
"""Bytes per read or write."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits for a registry; sizes are bounded by what is requested."""

    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    """Maximum time between two reads."""
    seconds: float = 60.0
    """Maximum time of an exchange without its body."""
    total_seconds: float = 600.0
    """Maximum time of all exchanges of a pull, without their bodies."""
    least_rate: int = 32 << 10
    """Minimum average rate of a body, in bytes per second."""
    attempts: int = 5
    pause_seconds: float = 0.5
    """Pause before the second attempt; it doubles before each further one."""

    def of_body(self, size: int) -> float:
        """Seconds that an exchange with `size` bytes may take."""
        return self.seconds + size / self.least_rate


class Broken(Exception):
    """The connection ended or stalled before the exchange was complete; a retry may help."""


class TooSlow(Broken):
    """The exchange exceeded its deadline."""


@dataclass(frozen=True, slots=True)
class Address:
    """The peer of a connection; the port is explicit."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: urllib.parse.SplitResult) -> Address:
        """The address of a URL; ValueError if it has none."""
        if url.scheme not in ("http", "https") or not url.hostname or url.username is not None or url.password is not None:
            raise ValueError("is not an address of a registry")
        return cls(url.scheme, url.hostname, url.port or (443 if url.scheme == "https" else 80))


class Deadline:
    """Shuts down a socket after `seconds`, unless it is closed before."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, found: socket.socket) -> None:
        """Set the socket to shut down. Raises TooSlow if the deadline has passed."""
        self._socket = found
        if self.passed:
            raise TooSlow("it took too long")

    def close(self) -> None:
        """Cancel the deadline."""
        self._timer.cancel()
        self._socket = None

    def _end(self) -> None:
        self.passed = True
        found = self._socket
        if found is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # not `SSLSocket.shutdown`, which would drop the TLS session


class _Wire(http.client.HTTPConnection):
    """A connection to an address, through the proxy of the environment if one applies."""

    def __init__(self, address: Address, limits: Limits) -> None:
        proxy = _proxy_for(address)
        if proxy is None:
            super().__init__(address.host, address.port, timeout=limits.connect_seconds)
        else:
            super().__init__(proxy.hostname or "", proxy.port or 80, timeout=limits.connect_seconds)
            self.set_tunnel(address.host, address.port, _proxy_headers(proxy))
        self._stall = limits.stall_seconds
        self._name = address.host
        self._context = ssl.create_default_context() if address.scheme == "https" else None
        self.deadline: Deadline | None = None

    def connect(self) -> None:
        super().connect()
        assert self.deadline is not None  # set by `exchange`
        self.deadline.watch(self.sock)
        self.sock.settimeout(self._stall)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name, do_handshake_on_connect=False)
            self.deadline.watch(self.sock)
            self.sock.do_handshake()

    def send(self, data: Any) -> None:
        """Send bytes under the deadline: `connect` talks to a proxy before it returns, and nothing else bounds that
        response."""
        if self.sock is not None and self.deadline is not None:
            self.deadline.watch(self.sock)
        super().send(data)


def _proxy_for(address: Address) -> urllib.parse.SplitResult | None:
    """The proxy from `https_proxy` and `no_proxy`; plain http needs none, because it is for this machine or a private network.
    RegistryError E0731 if it is not the URL of a plain-http proxy."""
    found = urllib.request.getproxies().get("https") if address.scheme == "https" else None
    if not found or urllib.request.proxy_bypass(address.host):
        return None
    try:
        proxy = urllib.parse.urlsplit(found if "://" in found else f"http://{found}")
        if proxy.port == 0 or proxy.scheme != "http" or not proxy.hostname:
            raise ValueError("it is not the address of an http proxy")
    except ValueError:  # the value is not shown: it may contain a password
        hint = "write `http://HOST:PORT`, unset it, or put the registry's host into `no_proxy`"
        raise RegistryError("E0731", "`https_proxy` is not the address of an http proxy", hint) from None
    return proxy


def _proxy_headers(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    known = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(known.encode()).decode('ascii')}"}


class Response:
    """A response: status and headers are available, the body is read in pieces."""

    def __init__(self, response: http.client.HTTPResponse, deadline: Deadline, *, head: bool = False) -> None:
        self._response, self._deadline, self._head = response, deadline, head
        self.status = response.status

    def header(self, name: str) -> str:
        """The value of a header; empty if it is absent or repeated."""
        found = self._response.headers.get_all(name, [])
        return found[0].strip() if len(found) == 1 else ""

    def headers(self, name: str) -> list[str]:
        """All values of a header."""
        return self._response.headers.get_all(name, [])

    @property
    def length(self) -> int | None:
        """Content-Length; None if absent. Broken if it is not a valid size."""
        text = self.header("Content-Length")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Broken("its Content-Length is invalid")
        return int(text)

    def piece(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        with _breaking(self._deadline):
            return self._response.read1(PIECE)

    def body(self, limit: int) -> bytes | None:
        """The whole body; None if it has more than `limit` bytes, without reading further. A response to HEAD has none,
        whatever its Content-Length."""
        due = 0 if self._head else self.length
        if (due or 0) > limit:
            return None
        parts: list[bytes] = []
        remaining = limit
        while part := self.piece():
            remaining -= len(part)
            if remaining < 0:
                return None
            parts.append(part)
        body = b"".join(parts)
        if due is not None and due != len(body):
            raise Broken(f"it ended after {len(body)} of {due} bytes")
        return body


@contextlib.contextmanager
def _breaking(deadline: Deadline) -> Generator[None]:
    """Convert network and protocol errors to Broken."""
    try:
        yield
    except ssl.SSLCertVerificationError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an invalid status or chunk
        if deadline.passed:
            raise TooSlow("it took too long") from None
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Broken(reason) from None
    if deadline.passed:
        raise TooSlow("it took too long")


class Connections:
    """Keep-alive connections by address. One is reused only if request and response were transferred completely."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle: dict[Address, _Wire] = {}

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.popitem()[1].close()

    @contextlib.contextmanager
    def exchange(
        self, method: str, url: urllib.parse.SplitResult, headers: Mapping[str, str], body: bytes | memoryview = b"",
        *, size: int = 0, most_seconds: float = math.inf,
    ) -> Generator[Response]:  # fmt: skip
        """Send a request and yield its response; the body of about `size` bytes must be read within the block. The limit is
        `most_seconds` and the time from `Limits`. Raises Broken, or SSLCertVerificationError if the peer's certificate is
        invalid."""
        address = Address.of(url)
        target = url.path + (f"?{url.query}" if url.query else "")
        if most_seconds <= 0:
            raise TooSlow("it took too long")
        deadline = Deadline(min(most_seconds, self._limits.of_body(max(size, len(body)))))
        wire = self._idle.pop(address, None)
        kept = wire is not None
        wire = wire or _Wire(address, self._limits)
        try:
            try:
                response = self._send(wire, deadline, method, target, headers, body)
            except Broken:
                if not kept or deadline.passed:
                    raise
                wire.close()  # the peer may have closed the idle connection
                wire = _Wire(address, self._limits)
                response = self._send(wire, deadline, method, target, headers, body)
            yield Response(response, deadline, head=method == "HEAD")
            if response.isclosed() and not response.will_close and not deadline.passed:
                self._idle[address], wire = wire, None
        finally:
            deadline.close()
            if wire is not None:
                wire.close()

    @staticmethod
    def _send(
        wire: _Wire, deadline: Deadline, method: str, target: str, headers: Mapping[str, str], body: bytes | memoryview
    ) -> http.client.HTTPResponse:  # fmt: skip
        wire.deadline = deadline
        with _breaking(deadline):
            if wire.sock is not None:
                deadline.watch(wire.sock)
            wire.putrequest(method, target, skip_accept_encoding=True)
            sized = {} if method in ("GET", "HEAD") else {"Content-Length": str(len(body))}
            for name, value in {"User-Agent": "tilec", "Accept-Encoding": "identity", **sized, **headers}.items():
                wire.putheader(name, value)
            wire.endheaders()
            for start in range(0, len(body), PIECE):
                wire.send(body[start : start + PIECE])
            return wire.getresponse()
