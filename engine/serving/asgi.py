"""What lies between HTTP and an endpoint: bodies of limited size, keys, time, streams of events, and clients that go away."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any, Final, Self, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.serving.errors import ApiError
from engine.serving.logs import log
from engine.serving.traces import NOTED, Noted, Traces, Value

T = TypeVar("T")

OPEN_PATHS: Final = frozenset({"/health", "/metrics", "/version", "/", "/page.css", "/page.js"})
"""Paths that need no key, and whose requests are not logged."""

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"


class Gone(Exception):
    """The client has closed its connection: nobody reads a response."""


class JsonResponse(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return msgspec.json.encode(content)


def error_response(error: ApiError) -> JsonResponse:
    """The response for an error."""
    headers = error.headers() | ({"www-authenticate": "Bearer"} if error.status == 401 else {})
    return JsonResponse(error.body(), error.status, headers=headers)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request; ApiError if it has more than `limit` bytes, of which no more are read. Gone if the client goes."""
    too_large = ApiError(413, f"the body has over {limit} bytes", code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes its connection (Gone). The body must have been read."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for task in (working, leaving):
            await _cancelled(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Framing:
    """How the events of a stream become bytes: each as JSON, then `[DONE]`. An error that comes once the response has begun is
    an event too, after which the stream ends."""

    def event(self, value: Any) -> bytes:
        """The bytes of an event."""
        return b"data: " + msgspec.json.encode(value) + b"\n\n"

    def end(self, error: ApiError | None) -> bytes:
        """The last bytes of a stream."""
        return DONE if error is None else self.event(error.body()) + DONE


class EventStream(Response):
    """Server-sent events. While no event comes, a comment goes out every `ping_seconds`, so that no proxy gives up. `source` is
    left however the stream ends, even before it begins."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[Any], framing: Framing, source: AbstractAsyncContextManager[Any], seconds: float,
        ping_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._framing, self._source = events, framing, source
        self._seconds, self._ping_seconds = seconds, ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; Gone if the client goes."""
        async with self._source:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        """Send the body."""
        error: ApiError | None = None
        try:
            async with aclosing(self._events), asyncio.timeout(self._seconds), Pings(send, self._ping_seconds) as body:
                async for event in self._events:
                    await body.put(self._framing.event(event))
        except ApiError as found:
            error = found
        except TimeoutError:
            error = too_long(self._seconds)
        await send({"type": "http.response.body", "body": self._framing.end(error), "more_body": False})


class Pings:
    """Sends pieces of a body, and a comment whenever none was sent for `seconds`, until the context ends. One task does so for
    a whole stream: a piece needs none."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()

    async def __aenter__(self) -> Self:
        self._pinging = asyncio.ensure_future(self._ping())
        return self

    async def __aexit__(self, *_: object) -> None:
        await _cancelled(self._pinging)

    async def put(self, piece: bytes) -> None:
        """Send a piece: whole events, since a comment may be between any two."""
        self._last = self._clock()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _ping(self) -> None:
        while True:
            left = self._last + self._seconds - self._clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self.put(PING)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is over."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


def too_long(seconds: float) -> ApiError:
    """The error for a request that takes longer than requests may take."""
    return ApiError(504, f"the request took over {seconds:g} seconds", code="request_timeout", kind="timeout")


class Guard:
    """Around the application: asks for a key, logs and traces each request, and makes responses of what an endpoint raises."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], traces: Traces | None = None) -> None:
        self._app, self._keys = app, [hashlib.sha256(key.encode()).digest() for key in keys]
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        start, begun, status = time.monotonic(), time.time_ns(), 0
        noted = NOTED.set(Noted() if self._traces is not None else None)

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS:
                self._check_key(scope)
            await self._app({**scope, "app": self._app}, receive, sent)  # with an `app`, routes raise what they refuse
        except ApiError as error:
            await error_response(error)(scope, receive, sent)
        except HTTPException as error:
            what = f"{scope['method']} {scope['path'][:256]}: {error.detail.lower()}"
            refused = ApiError(error.status_code, what, code="not_found" if error.status_code == 404 else None)
            response = error_response(refused)
            response.headers.update(error.headers or {})  # which methods there are
            await response(scope, receive, sent)
        except Gone:
            status = status or 499
        except Exception as error:
            log("internal_error", "error", path=scope["path"], error=repr(error))
            if status:
                raise  # the server closes the connection, so that no client takes the response for whole
            failed = ApiError(500, "internal error", code="internal_error", kind="server_error")
            await error_response(failed)(scope, receive, sent)
        finally:
            if scope["path"] not in OPEN_PATHS:
                seconds = time.monotonic() - start
                path = scope["path"][:256]
                log("request", method=scope["method"], path=path, status=status, milliseconds=round(1000 * seconds, 1))
                self._trace(scope, status, begun, begun + int(1e9 * seconds))
            NOTED.reset(noted)

    def _trace(self, scope: Scope, status: int, begun: int, ended: int) -> None:
        """Send the span of a request, if somebody asks for spans."""
        noted = NOTED.get()
        if self._traces is None or noted is None:
            return
        method, path = scope["method"], scope["path"][:256]
        parent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        attributes: dict[str, Value] = {
            "http.request.method": method, "url.path": path, "http.response.status_code": status,
        }  # fmt: skip
        name = method if status == 404 else f"{method} {path}"
        self._traces.ended(name, begun, ended, status, parent.decode("latin-1"), attributes | noted.attributes)

    def _check_key(self, scope: Scope) -> None:
        """ApiError unless there are no keys, or the request has one of them. All keys are compared, in constant time."""
        if not self._keys:
            return
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = header.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        known = [hmac.compare_digest(digest, one) for one in self._keys]
        if kind.lower() != b"bearer" or not any(known):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key", kind="authentication_error")
