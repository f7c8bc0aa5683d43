"""Sends loads to a server over HTTP, from a process of its own, as a client that streams text does.

    python -m ci.bench.engine.http_client < JOB > RECORD

In: a line of JSON (`http_job.Job`). Out: the record of `serving_load.of_service` as JSON, with the number of all tokens and of
the events of streams that brought them. The standard library alone speaks HTTP here, so that a client takes as little of the
processors as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from ci.bench.engine.http_job import Job
from ci.bench.engine.serving_load import of_service

STREAM_BYTES: Final = 1 << 20
HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
EVENT: Final = b"data: "
USAGE: Final = {"include_usage": True, "continuous_usage_stats": True}


class OverHttp:
    """A server on the loopback as a `Service`: each request has a connection of its own, as those of most clients do. `events`
    counts those that brought tokens, `received` these."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.events = self.received = 0

    async def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
        """As of `Service`; RuntimeError if the server refuses the request or does not finish it."""
        body = {"prompt": list(ids), "max_tokens": most, "temperature": 0, "ignore_eos": True, "stream": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=STREAM_BYTES)
        try:
            content = json.dumps(body | {"stream_options": USAGE}).encode()
            writer.write(HEAD % len(content) + content)
            seen, reason = 0, None
            async for event in events_of(reader):
                usage = event["usage"]
                if not seen:
                    began(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))
                if (count := usage["completion_tokens"] - seen) > 0:
                    seen, self.events, self.received = seen + count, self.events + 1, self.received + count
                    yield count
                reason = event["choices"][0]["finish_reason"] if event["choices"] else reason
        finally:
            writer.close()
        if reason != "length":
            raise RuntimeError(f"a request ended by {reason}")


async def events_of(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The events of a response up to `[DONE]`; RuntimeError if it is an error, has one, or is cut."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the server refused a request: {(await reader.read(STREAM_BYTES)).decode(errors='replace')}")
    pending = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        *events, pending = pending.split(b"\n\n")
        for event in events:
            if event == EVENT + b"[DONE]":
                return
            if event.startswith(EVENT):
                found: Any = json.loads(event[len(EVENT) :])
                if "error" in found:
                    raise RuntimeError(f"a request ended by {found['error']['message']}")
                yield found
    raise RuntimeError("a stream was cut")


async def run(job: Job) -> dict[str, Any]:
    """What the client saw."""
    service, options = OverHttp(job.port), argparse.Namespace(**asdict(job))
    record = await of_service(service, job.rows, options, job.lengths, job.shared, job.short)
    return record | {"events": service.events, "tokens": service.received}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Job.read(sys.stdin.readline())))))
