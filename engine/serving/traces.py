"""Sends a span of each request to an OpenTelemetry collector: OTLP over HTTP, in its JSON form, without a package of its own.

In: what is known of a request when it ends. Out: POST requests of a thread, each with the spans of up to a second. A span has
the names of OpenTelemetry's semantic conventions for HTTP servers and for generative models, and no text of prompts and
generations. A `traceparent` header (W3C Trace Context) makes it part of the client's trace; one that is not sampled is not
sent. A collector that does not respond costs spans, and nobody's time: what waits is bounded, and the rest dropped and counted.

Sources: OpenTelemetry Protocol 1.x (JSON Protobuf encoding), W3C Trace Context level 1.
"""

from __future__ import annotations

import http.client
import re
import secrets
import threading
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from engine.errors import UsageError
from engine.serving.logs import log

MOST_WAITING: Final = 4096
MOST_TOGETHER: Final = 512
EVERY_SECONDS: Final = 1.0
RESPONSE_SECONDS: Final = 10.0
SERVER: Final = 2
ERROR: Final = 2
"""`SPAN_KIND_SERVER` and `STATUS_CODE_ERROR`."""
PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Value = str | int | float | list[str]


@dataclass(slots=True)
class Noted:
    """What endpoints say of the request that they serve: attributes of its span."""

    attributes: dict[str, Value] = field(default_factory=dict[str, Value])


NOTED: Final[ContextVar[Noted | None]] = ContextVar("noted", default=None)
"""Of the request in progress; None if nobody asks for spans."""


def note(attributes: dict[str, Value]) -> None:
    """Say something of the request in progress."""
    noted = NOTED.get()
    if noted is not None:
        noted.attributes |= attributes


class Traces:
    """A thread that sends spans to the URL of a collector, such as `http://127.0.0.1:4318/v1/traces`. UsageError if it is none.
    `close` sends what waits."""

    def __init__(self, url: str, every_seconds: float = EVERY_SECONDS) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"{url!r} is no URL of a collector", fix="give one like http://127.0.0.1:4318/v1/traces")
        self._secure, self._host, self._port, self._path = parts.scheme == "https", parts.hostname, port, parts.path or "/"
        self._every_seconds = every_seconds
        self._waiting: deque[dict[str, Any]] = deque()
        self._wake, self._closing, self._failing = threading.Event(), False, False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def ended(self, name: str, start: int, end: int, status: int, parent: str, attributes: dict[str, Value]) -> None:
        """Take the span of a request. `start` and `end` are in nanoseconds of Unix time, `parent` the header `traceparent`."""
        found = PARENT.fullmatch(parent)
        if found is not None and not int(found[3], 16) & 1:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        span: dict[str, Any] = {
            "traceId": found[1] if found is not None else secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": name,
            "kind": SERVER, "startTimeUnixNano": str(start), "endTimeUnixNano": str(end),
            "attributes": _attributes(attributes), "status": {"code": ERROR} if status >= 500 else {},
        }  # fmt: skip
        self._waiting.append(span | ({"parentSpanId": found[2]} if found is not None else {}))

    def close(self) -> None:
        """Send what waits and end the thread; idempotent."""
        self._closing = True
        self._wake.set()
        self._thread.join(2 * RESPONSE_SECONDS)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._every_seconds)
            while self._waiting:
                self._send([self._waiting.popleft() for _ in range(min(MOST_TOGETHER, len(self._waiting)))])
                if self._closing and self._failing:
                    return

    def _send(self, spans: list[dict[str, Any]]) -> None:
        """Send spans, which are dropped if the collector does not take them. The first of failures in a row is logged."""
        scope = {"scope": {"name": "tilec"}, "spans": spans}
        resource = _attributes({"service.name": "tilec"})
        body = msgspec.json.encode({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]})
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=RESPONSE_SECONDS)
        try:
            connection.request("POST", self._path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            problem = "" if response.status < 300 else f"status {response.status}"
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        finally:
            connection.close()
        self.dropped += len(spans) if problem else 0
        if problem and not self._failing:
            log("traces_not_sent", "warning", error=problem, dropped=self.dropped)
        self._failing = bool(problem)


def _attributes(values: dict[str, Value]) -> list[dict[str, Any]]:
    """Attributes in OTLP's form."""
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(one) for one in value]}}
