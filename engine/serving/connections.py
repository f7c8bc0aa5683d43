"""Connections of clients: how many there may be, and how long one may take to ask.

    bounds = Bounds.of_process(10.0)        as many connections as the process may have files
    uvicorn.Config(app, http=bounds.protocol(), backlog=bounds.backlog)

A connection costs a file of the process, also while its client has sent half a request. Such clients may be many and slow, and
they must not keep others out, nor `/health`:

- A request's headers take at most `header_seconds`. Its body has the time that a request may take.
- A client has the same time again to read what it was sent. Once a response is whole, it has to go on reading: a connection of
  which nothing could be sent for `header_seconds` is closed.
- When all connections are taken, a new one takes the place of another whose request is not whole: that which began it first.
  If all are being served, the new one gets a 503.
- Connections are accepted in batches of at most `backlog`. Three have room: one that was accepted, one that is made into
  connections, and those that these displace, which asyncio closes a turn later. So files do not run out: asyncio would then
  accept nothing for a second.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.errors import UsageError
from engine.serving.errors import ApiError
from engine.serving.logs import log

BACKLOG: Final = 1024
"""Connections that the kernel may keep before they are accepted, where there are enough files."""
SPARE_FILES: Final = 16
"""Files that are opened later: another engine's process, a collector of traces, modules."""
FEWEST_FILES: Final = 8
"""For connections; with fewer the server does not start."""
MOST: Final = 1 << 14
"""Connections at a time, however many files there may be."""
LOG_SECONDS: Final = 10.0
"""Between two lines of the log of one kind."""
UNUSED: Final = {h11.IDLE, h11.SEND_BODY}
"""States of a client whose request is not whole."""


@dataclass(slots=True)
class Bounds:
    """Of one server's connections: `most` at a time, `backlog` that wait to be accepted."""

    most: int
    backlog: int
    header_seconds: float
    request_seconds: float = 600.0
    asking: dict[Connection, None] = field(default_factory=dict["Connection", None])
    """Connections whose request is not whole, in the order in which they began it."""
    _dropped: dict[str, int] = field(default_factory=dict[str, int])
    _logged: float = float("-inf")

    @classmethod
    def of_process(cls, header_seconds: float, request_seconds: float = 600.0) -> Self:
        """As many as the files that this process may have, of which it may have as many as its hard limit allows. UsageError if
        these are too few."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = BACKLOG**2 if hard == resource.RLIM_INFINITY else hard
        free = files - len(os.listdir("/proc/self/fd")) - SPARE_FILES
        if free < FEWEST_FILES:
            what = f"the process may have {files} files, which leave {max(0, free)} for connections"
            raise UsageError(what, fix=f"raise the limit (ulimit -n) by at least {FEWEST_FILES - free}")
        backlog = min(BACKLOG, free // 4)
        return cls(min(MOST, free - 3 * backlog), backlog, header_seconds, request_seconds)

    def protocol(self) -> type[Connection]:
        """The protocol of a server whose connections have these bounds."""

        class Bounded(Connection):
            bounds = self

        return Bounded

    def drop(self, why: str) -> None:
        """A connection was dropped: the log says how many, now and then."""
        self._dropped[why] = self._dropped.get(why, 0) + 1
        if (now := time.monotonic()) - self._logged >= LOG_SECONDS:
            log("connections_dropped", "warning", most=self.most, **self._dropped)
            self._logged, self._dropped = now, {}


class Connection(H11Protocol):
    """A connection with bounds."""

    bounds: Bounds
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _unsent: float = math.inf  # bytes of responses that the client had not read when `_late` was last over

    def connection_made(self, transport: Any) -> None:
        """Take it, in place of another one if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.most:
            oldest = next(iter(self.bounds.asking), None)
            if oldest is None:
                self.bounds.drop("refused")
                self.transport.write(_REFUSAL)
                self.transport.close()
                return
            self.bounds.drop("displaced")
            oldest.drop()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not read: a response waits for it, and nothing but this limits how long."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self.bounds.request_seconds, self._drop_as, "stuck")

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        self._stuck = _cancelled(self._stuck)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._forget()
        self._stuck = _cancelled(self._stuck)

    def drop(self) -> None:
        """Close it at once: nobody waits for a response."""
        self._forget()
        self._stuck = _cancelled(self._stuck)
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Keep what is waited for up to date."""
        state, closing = self.conn.their_state, self.transport.is_closing()
        asks = state in UNUSED and not closing
        if asks:
            self.bounds.asking.setdefault(self)
        else:
            self.bounds.asking.pop(self, None)
        if not (self.transport.get_write_buffer_size() if closing else asks and state is not h11.SEND_BODY):
            self._late = _cancelled(self._late)
        elif self._late is None:
            self._unsent = math.inf
            self._late = self.loop.call_later(self.bounds.header_seconds, self._is_late)

    def _is_late(self) -> None:
        """Close it, unless the client is still reading the response before."""
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if 0 < self._unsent < before:
            self._late = self.loop.call_later(self.bounds.header_seconds, self._is_late)
        else:
            self._drop_as("late")

    def _drop_as(self, why: str) -> None:
        self.bounds.drop(why)
        self.drop()

    def _forget(self) -> None:
        self.bounds.asking.pop(self, None)
        self._late = _cancelled(self._late)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    """Nothing, in place of a timer."""
    if timer is not None:
        timer.cancel()


def _refusal() -> bytes:
    """The response to a client for which there is no connection, before it asked."""
    what = "the server has as many connections as it may have"
    error = ApiError(503, what, code="too_many_connections", kind="server_error", retry=True)
    body = msgspec.json.encode(error.body())
    head = {**error.headers(), "content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 503 Service Unavailable\r\n{lines}\r\n".encode() + body


_REFUSAL: Final = _refusal()


class LoopErrors:
    """Logs what an event loop can tell nobody else, such as that it could not accept a connection: each message now and then,
    since the loop tries again at once."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error, as the loop describes it."""
        message, now = str(context["message"]), time.monotonic()
        if now - self._logged.get(message, float("-inf")) >= LOG_SECONDS:
            self._logged[message] = now
            log("internal_error", "error", message=message, error=repr(context.get("exception")))
