"""Requests of many kinds for a server, each drawn from a seed, and what a client sees of their responses.

Prompts are token ids and begin alike, so that some find the pages of others. There are a few
generations that requests repeat, so that each is computed alone once.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

BEGINNINGS: Final = (0, 0, 40, 64, 130, 200)
KINDS: Final = ("whole", "stream", "slow", "leaves", "leaves_at_once", "bad")
WEIGHTS: Final = (30, 30, 5, 15, 10, 10)
SMALL_BUFFER: Final = 4096
PAUSE_SECONDS: Final = 0.002
BAD_BODIES: Final = (
    b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": 5}', b'{"prompt": [-1]}', b'{"prompt": [1], "max_tokens": -3}',
    b'{"prompt": [1], "max_tokens": 1e30}', b'{"prompt": [1], "no_such_field": 1}', b'{"prompt": [100000000]}',
    b'{"prompt": []}',
    b'{"prompt": [1], "n": 0}', b'{"prompt": [1], "temperature": "hot"}', b'{"prompt": ' + b"[" * 4000 + b"}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated: the body of a request says no more than this."""

    ids: tuple[int, ...]
    max_tokens: int
    seed: int | None

    def body(self, **more: Any) -> bytes:
        """As a request of /v1/completions."""
        chosen = {"temperature": 0} if self.seed is None else {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": self.seed}
        fields = {"prompt": list(self.ids), "max_tokens": self.max_tokens, "ignore_eos": True} | chosen | more
        return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class Response:
    """What a client saw: the status, the text, and whether it was the whole of it."""

    status: int
    text: str = ""
    whole: bool = False
    error: str = ""


def generation(seed: int, number: int, longest: int) -> Generation:
    """The generation of a number, of at most `longest` tokens."""
    draw = random.Random(f"{seed}/{number}")
    beginning = [draw.randrange(3)] * draw.choice(BEGINNINGS)
    most = draw.choice((1, 2, 3, 6, 12))
    ids = [*beginning, *(draw.randrange(400) for _ in range(draw.choice((1, 3, 20))))][: longest - most]
    return Generation(tuple(ids), most, draw.choice((None, None, draw.randrange(1000))))


async def send(port: int, kind: str, asked: Generation, draw: random.Random) -> Response:
    """Send a request of a kind. A client that leaves has seen no status, and no whole text."""
    connection = socket.socket()
    if kind == "slow":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
    try:
        streamed = kind not in ("whole", "bad")
        body = draw.choice(BAD_BODIES) if kind == "bad" else asked.body(stream=True) if streamed else asked.body()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: soak\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        if kind == "leaves_at_once":
            await asyncio.sleep(draw.random() * 0.05)
            return Response(0)
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        await reader.readuntil(b"\r\n\r\n")
        if kind == "leaves" and status == 200:
            with suppress(asyncio.IncompleteReadError):
                await reader.readuntil(b"data: ")
            return Response(0)
        content = await _read(reader, slowly=kind == "slow")
    finally:
        writer.transport.abort()  # pyright: ignore[reportUnknownMemberType]
    return _understood(status, content, streamed=streamed)


async def _read(reader: asyncio.StreamReader, *, slowly: bool) -> bytes:
    """The rest of a response."""
    content = bytearray()
    while piece := await reader.read(64 if slowly else 1 << 16):
        content += piece
        if slowly:
            await asyncio.sleep(PAUSE_SECONDS)
    return bytes(content)


def _understood(status: int, content: bytes, *, streamed: bool) -> Response:
    """A response's text, or its error."""
    if status != 200:
        return Response(status, error=str(json.loads(content)["error"]["code"]))
    if not streamed:
        choice = json.loads(content)["choices"][0]
        return Response(status, choice["text"], choice["finish_reason"] == "length")
    events = [piece.partition(b"data: ")[2] for piece in _unchunked(content).split(b"\n\n") if piece.startswith(b"data: ")]
    text, ended = "", False
    for event in events:
        if event == b"[DONE]":
            continue
        value = json.loads(event)
        if "error" in value:
            return Response(status, text, error=str(value["error"]["code"]))
        choice = value["choices"][0]
        text, ended = text + choice["text"], ended or choice["finish_reason"] == "length"
    return Response(status, text, ended and bool(events) and events[-1] == b"[DONE]")


def _unchunked(content: bytes) -> bytes:
    """A body without the lines of HTTP's chunks; what is missing at its end is left out."""
    found, start = bytearray(), 0
    while (end := content.find(b"\r\n", start)) >= 0:
        size = int(content[start:end], 16)
        found += content[end + 2 : end + 2 + size]
        start = end + 2 + size + 2
    return bytes(found)
