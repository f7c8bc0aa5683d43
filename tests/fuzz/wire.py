"""A hostile proxy on the loopback: it passes a client's requests to a sound server, and changes the bytes of responses.

The changes know the syntax of HTTP/1.1 (RFC 9112) and RESP but nothing of the content: whatever a cable, a broken proxy or a
hostile intermediary may do to status, headers, framing, body and pace. A `random` generator decides; the number of bytes added
to a response is bounded, and so is the lifetime of a connection.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
from collections.abc import Callable
from typing import Final

from tests.loopback import listening

Change = Callable[[bytes, random.Random], list[bytes]]
"""Bytes of a response, and a generator; returns the pieces to send instead."""
SECONDS: Final = 20.0
MOST: Final = 1 << 22
"""Limit of the bytes added to a response."""


def _split(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    return status, headers, body


def _joined(status: bytes, headers: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([status, *headers]) + b"\r\n\r\n" + body


def flip(data: bytes, rng: random.Random) -> list[bytes]:
    """Flips bits anywhere."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return [bytes(found)]


def flip_head(data: bytes, rng: random.Random) -> list[bytes]:
    """Flips bits of the status and headers."""
    end = max(data.find(b"\r\n\r\n"), 1)
    return [flip(data[:end], rng)[0] + data[end:]]


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Truncates it."""
    return [data[: rng.randrange(len(data) + 1)]]


def repeat(data: bytes, rng: random.Random) -> list[bytes]:
    """Repeats a part of it, or all of it."""
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return [data, data] if rng.random() < 0.3 else [data[:end], data[at:]]


def junk(data: bytes, rng: random.Random) -> list[bytes]:
    """Adds bytes before it, in it or after it, or replaces it."""
    noise = rng.randbytes(rng.choice((1, 7, 300, 70_000)))
    at = rng.randrange(len(data) + 1)
    return rng.choice(([noise, data], [data[:at], noise, data[at:]], [data, noise], [noise], []))


def status(data: bytes, rng: random.Random) -> list[bytes]:
    """Replaces the status line."""
    _, headers, body = _split(data)
    code = rng.choice(
        (b"200", b"204", b"206", b"304", b"301", b"307", b"401", b"404", b"416", b"429", b"500", b"999", b"-1", b"2e2", b"")
    )
    line = (
        rng.choice((b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/2 ", b"ICY ", b""))
        + code
        + rng.choice((b" OK", b"", b" " + b"x" * 70_000))
    )
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * rng.choice((0, 0, 1, 200))
    return [interim + _joined(line, headers, body)]


NAMES: Final = (
    b"Content-Length", b"Content-Type", b"Transfer-Encoding", b"Content-Encoding", b"Content-Range", b"Location",
    b"Connection", b"Docker-Content-Digest", b"WWW-Authenticate", b"Retry-After", b"Content-Length ", b"", b"\0",
    b"Set-Cookie", b"Date",
)  # fmt: skip
VALUES: Final = (
    b"0", b"1", b"-1", b"+5", b"0x10", b"18446744073709551616", b"9" * 5000, b"5, 5", b"chunked", b"gzip",
    b"identity, chunked", b"close", b"keep-alive", b"bytes 0-0/1", b"bytes 5-4/3", b"bytes */0", b"/", b"//",
    b"http://127.0.0.1:1/", b"http://[::1", b"\xff\xfe", b"https://user:pw@127.0.0.1/", b"file:///etc/passwd",
    b"ftp://x/", b"text/html", b"a\tb", b'Bearer realm="', b"Bearer " + b"a" * 60_000,
    b'Basic realm="x", Bearer realm="http://127.0.0.1:1/t"', b"sha256:" + b"0" * 64, b"sha256:..", b"x" * 65_600,
    b" " * 3000,
)  # fmt: skip


def header(data: bytes, rng: random.Random) -> list[bytes]:
    """Headers with other values, repeated, without a colon, or very many."""
    line, headers, body = _split(data)
    for _ in range(rng.choice((1, 1, 2, 150))):
        one = rng.choice(NAMES) + rng.choice((b": ", b":", b" ", b"\r\n ", b"\n")) + rng.choice(VALUES)
        if headers and rng.random() < 0.5:
            headers[rng.randrange(len(headers))] = one
        else:
            headers.insert(rng.randrange(len(headers) + 1), one)
    return [_joined(line, headers, body)]


def chunked(data: bytes, rng: random.Random) -> list[bytes]:
    """The body in chunks, one of them invalid."""
    line, headers, body = _split(data)
    headers = [one for one in headers if not one.lower().startswith(b"content-length")] + [b"Transfer-Encoding: chunked"]
    parts: list[bytes] = []
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(body) + 1)
        piece, body = body[:at], body[at:]
        size = rng.choice(
            (b"%x" % len(piece),) * 8 + (b"-1", b"-5", b"0", b"+%x" % len(piece), b"f" * 400, b"", b"zz", b" 5 ", b"1_0")
        )
        parts.append(
            size + rng.choice((b"", b"", b";x=" + b"y" * 3000)) + b"\r\n" + piece + rng.choice((b"\r\n", b"\r\n", b"", b"\n"))
        )
    end = rng.choice((b"0\r\n\r\n", b"0\r\n" + b"a: b\r\n" * 300 + b"\r\n", b"", b"0\r\n", b"-1\r\n" + bytes(MOST)))
    return [_joined(line, headers, b""), *parts, b"%x\r\n" % len(body) + body + b"\r\n" if body else b"", end]


def endless(data: bytes, rng: random.Random) -> list[bytes]:
    """Far more data than announced."""
    at = rng.choice((data.find(b"\r\n\r\n") + 4, len(data), rng.randrange(len(data) + 1)))
    return [data[:at], rng.choice((b"\0", b"a", b"\r\n", b"$1\r\n", b"*1\r\n")) * (MOST // 4)]


def other_length(data: bytes, rng: random.Random) -> list[bytes]:
    """A wrong content length."""
    line, headers, body = _split(data)
    size = rng.choice((0, 1, max(len(body) - 1, 0), len(body) + 1, len(body) * 2, 1 << 40, -1))
    headers = [one for one in headers if not one.lower().startswith(b"content-length")] + [b"Content-Length: %d" % size]
    return [_joined(line, headers, body)]


REPLIES: Final = (
    b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", b"*-1\r\n", b"*1\r\n" * 3000, b":7\r\n", b"+OK\r\n", b"$-1\r\n", b"$-9\r\n",
    b"$0\r\n\r\n", b"-ERR\r\n", b"-WRONGTYPE x\r\n", b"%1\r\n+a\r\n+b\r\n", b"~1\r\n+a\r\n", b">1\r\n+a\r\n", b"#t\r\n",
    b",1.5\r\n", b",nan\r\n", b"(12345\r\n", b"_\r\n", b"=7\r\ntxt:abc\r\n", b"!5\r\nERR x\r\n",
    b"|1\r\n+a\r\n+b\r\n+c\r\n", b"$999999999999\r\nx", b"*99999999\r\n", b"-MOVED 1 127.0.0.1:1\r\n", b"-LOADING\r\n",
    b"-NOAUTH\r\n", b"-ASK 1 x\r\n", b":99999999999999999999999\r\n", b"+\xff\r\n",
)  # fmt: skip


def reply(data: bytes, rng: random.Random) -> list[bytes]:
    """Another RESP reply before the right one, or instead of it."""
    found = rng.choice(REPLIES)
    return rng.choice(([found], [found, data], [data, found], [found] * 3))


HTTP: Final[dict[str, Change]] = {
    "bits": flip, "bits of the head": flip_head, "an early end": cut, "a part twice": repeat, "junk": junk, "status": status,
    "headers": header, "chunks": chunked, "too much": endless, "another length": other_length,
}  # fmt: skip
RESP: Final[dict[str, Change]] = {
    "bits": flip, "an early end": cut, "a part twice": repeat, "junk": junk, "another reply": reply, "too much": endless,
}  # fmt: skip


class Wire:
    """How responses are changed: `change` applies to those that `chosen` selects, by their number since `begin`."""

    def __init__(self) -> None:
        self.change: Change | None = None
        self.rng = random.Random(0)
        self.chosen: Callable[[int], bool] = lambda number: False
        self.slow = False
        self._number = 0
        self._lock = threading.Lock()

    def begin(self, change: Change | None, rng: random.Random) -> None:
        """Resets the count: either one of the first responses is changed, or all are."""
        with self._lock:
            first, all_ = rng.randrange(8), rng.random() < 0.4
            self.change, self.rng, self._number, self.slow = change, random.Random(rng.random()), 0, rng.random() < 0.1
            self.chosen = (lambda number: True) if all_ else (lambda number: number == first)

    def hangs_up(self) -> bool:
        """Whether the connection is closed after a changed response."""
        with self._lock:
            return self.rng.random() < 0.5

    def pieces(self, data: bytes) -> list[bytes]:
        """The pieces to send for a response."""
        with self._lock:
            number, self._number = self._number, self._number + 1
            found = self.change(data, self.rng) if self.change is not None and self.chosen(number) else [data]
            if self.slow and len(found[0] if found else b"") > 20:
                found = [found[0][:10], found[0][10:20], found[0][20:], *found[1:]]
            return found


def _answer(target: socket.socket) -> bytes:
    """A whole HTTP response, or whatever arrives at once."""
    data = target.recv(1 << 20)
    if data.startswith(b"HTTP/"):
        found = re.search(rb"\r\nContent-Length: (\d+)\r\n", data)
        due = data.find(b"\r\n\r\n") + 4 + int(found[1]) if found else 0
        while len(data) < due and (more := target.recv(1 << 20)):
            data += more
    return data


def proxied(port: int, wire: Wire) -> contextlib.AbstractContextManager[int]:
    """The port of a proxy of the server at `port`; each response passes through `wire`."""

    def up(client: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", port), SECONDS) as target:
            client.settimeout(SECONDS)
            threading.Thread(target=up, args=(client, target), daemon=True).start()
            while data := _answer(target):
                for piece in (pieces := wire.pieces(data)):
                    client.sendall(piece)
                if pieces != [data] and wire.hangs_up():
                    return  # else the next response may be out of step

    return listening(serve)
