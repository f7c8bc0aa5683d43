"""A server that replies: chat completions as a stream, over HTTP of the standard library."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import urlsplit

from engine.chat.speaker import Message, Piece, Speaker
from engine.errors import EngineError, UsageError

SILENCE_SECONDS: Final = 120.0
"""How long a server may send nothing, comments included."""
LINE_BYTES: Final = 1 << 20
BODY_BYTES: Final = 1 << 20


class RemoteSpeaker(Speaker):
    """A server at a URL, such as `http://127.0.0.1:8000`; a path is what comes before `/v1`. `fields` are added to requests. A
    key is sent as a bearer token. UsageError if there is no such server, or if it serves no model."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None, **fields: Any) -> None:
        super().__init__()
        parts = urlsplit(url if "//" in url else f"//{url}", "http")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is no URL of a server", fix="give one like http://127.0.0.1:8000")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._url, self._fields, self._connection = url, fields, None
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self.name = model or self._first_model()

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()

    def interrupt(self) -> None:
        """End the reply: the connection is shut down, and the server frees the request's memory."""
        super().interrupt()
        found: socket.socket | None = self._connection.sock if self._connection is not None else None
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
        body = {"model": self.name, "messages": list(messages), "stream": True} | self._fields
        try:
            response = self._ask("POST", "/v1/chat/completions", body)
            ended = False
            for event in _events(response):
                ended = event is None
                if event is not None:
                    yield from _pieces(event)
            if not ended and not self.interrupted:
                raise EngineError("the server closed the connection in the middle of a reply")
        except (OSError, http.client.HTTPException) as error:
            if not self.interrupted:
                raise EngineError(f"the server does not reply: {_reason(error)}") from None
        finally:
            self._disconnect()

    def _first_model(self) -> str:
        """The name of the model that the server lists first."""
        try:
            value = _json(self._ask("GET", "/v1/models").read(BODY_BYTES))
        except (OSError, http.client.HTTPException) as error:
            what = f"no server at {self._url}: {_reason(error)}"
            raise UsageError(what, fix="start one with `python -m engine serve`") from None
        finally:
            self._disconnect()
        models: Any = value.get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise UsageError(f"{self._url} lists no model", fix="give the URL of a server of OpenAI's interface")
        return str(cast("dict[str, Any]", models[0]).get("id"))

    def _ask(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        """A response with status 200; EngineError with the server's message for another one."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        self._connection = kind(self._host, self._port, timeout=SILENCE_SECONDS)
        self._connection.request(method, self._path + path, json.dumps(body) if body is not None else None, self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            error: Any = _json(response.read(BODY_BYTES)).get("error")
            message: Any = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else response.reason
            kind_of_error = UsageError if response.status < 500 else EngineError
            raise kind_of_error(f"the server refuses it with status {response.status}: {message}")
        return response

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """The events of a stream; None for `[DONE]`, which is the last. EngineError for an event that is an error."""
    while line := response.readline(LINE_BYTES):
        if not line.startswith(b"data:"):
            continue  # a comment, or an empty line
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            yield None
            return
        event = _json(data)
        error = event.get("error")
        if error is not None:
            message = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
            raise EngineError(f"the server could not finish the reply: {message}")
        yield event


def _pieces(event: dict[str, Any]) -> Iterator[Piece]:
    """The pieces in an event, whatever else it has. vLLM calls a thought `reasoning`."""
    choices: Any = event.get("choices")
    for choice in cast("list[dict[str, Any]]", choices or ()):
        delta: dict[str, Any] = choice.get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            yield Piece("thought", str(thought))
        if delta.get("content"):
            yield Piece("content", str(delta["content"]))
        if choice.get("finish_reason"):
            yield Piece("end", str(choice["finish_reason"]))


def _json(text: bytes) -> dict[str, Any]:
    """An object, empty if it is something else."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
