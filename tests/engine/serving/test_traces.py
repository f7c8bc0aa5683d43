"""Spans of requests: what a collector gets, what it never gets, and that one which does not respond delays nobody."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from in_process import Received, says, server

from engine.cli import run
from engine.errors import UsageError
from engine.serving import traces as traces_module
from engine.serving.traces import MOST_WAITING, Traces

HANG_SECONDS = 60
SPOKEN = "<think>\nhm\n</think>\n\nBecause."
CHAT = {"messages": [{"role": "user", "content": "a prompt"}]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """A collector on the loopback: what it received, and the status of its responses."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.status, self.port, self.types = 200, 0, set[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [span for body in self.received for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


@contextmanager
def collecting() -> Generator[Collector]:
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            found.types.add(f"{self.path} {self.headers['content-type']}")
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    listener = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    found.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name, in the types that OTLP gives them."""

    def plain(value: dict[str, Any]) -> Any:
        ((kind, inner),) = value.items()
        if kind == "arrayValue":
            return [plain(one) for one in inner["values"]]
        return {"stringValue": str, "intValue": int, "doubleValue": float}[kind](inner)

    return {one["key"]: plain(one["value"]) for one in span["attributes"]}


def asked(folder: Path, collector: Collector, *requests: tuple[str, Any], **options: Any) -> list[Received]:
    """The responses to requests, whose spans have been sent when it returns."""
    traces = Traces(collector.url, every_seconds=3600)
    one = server(folder, says(folder, SPOKEN), traces=traces, keys=["a secret"])

    async def ask() -> list[Received]:
        headers = {"authorization": "Bearer a secret"} | options.get("headers", {})
        return [await one.ask(path, body, headers=headers) for path, body in requests]

    found = asyncio.run(asyncio.wait_for(ask(), HANG_SECONDS))
    traces.close()
    traces.close()
    return found


def test_a_span_of_each_request(talker: Path) -> None:
    with collecting() as collector:
        stream = CHAT | {"stream": True, "n": 2}
        whole, streamed, refused, *_ = asked(
            talker, collector, ("/v1/chat/completions", CHAT), ("/v1/chat/completions", stream),
            ("/v1/completions", {"prompt": 3}), ("/nothing", None), ("/health", None), ("/v1/responses", {"input": "a prompt"}),
        )  # fmt: skip
    assert collector.types == {"/v1/traces application/json"} and len(collector.received) == 1
    assert collector.received[0]["resourceSpans"][0]["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "tilec"}}
    ]
    spans = collector.spans
    assert [span["name"] for span in spans] == [
        "POST /v1/chat/completions", "POST /v1/chat/completions", "POST /v1/completions", "GET", "POST /v1/responses",
    ]  # fmt: skip
    for span in spans:
        assert span["kind"] == 2 and span["status"] == {} and "parentSpanId" not in span
        assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
        assert isinstance(span["startTimeUnixNano"], str)
        assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    assert len({span["traceId"] for span in spans}) == len({span["spanId"] for span in spans}) == len(spans)
    first = attributes(spans[0])
    usage = whole.json["usage"]
    assert first.pop("gen_ai.latency.time_to_first_token") >= 0
    assert first == {
        "http.request.method": "POST", "url.path": "/v1/chat/completions", "http.response.status_code": 200,
        "gen_ai.request.model": "talker", "gen_ai.response.id": whole.json["id"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.response.finish_reasons": ["stop"],
    }  # fmt: skip
    second = attributes(spans[1])
    assert second["gen_ai.response.finish_reasons"] == ["stop"] * 2 and second["gen_ai.response.id"] == streamed.events[0]["id"]
    assert second["gen_ai.usage.output_tokens"] == 2 * usage["completion_tokens"]
    assert attributes(spans[2])["http.response.status_code"] == refused.status == 400
    sent = json.dumps(collector.received)
    assert not any(word in sent for word in ("a prompt", "Because", "hm\\n", "secret"))


def test_a_client_that_leaves_has_a_span(talker: Path) -> None:
    with collecting() as collector:
        traces = Traces(collector.url, every_seconds=3600)
        one = server(talker, lambda work: None, traces=traces)

        async def leave() -> None:
            gone = asyncio.Event()
            asking = asyncio.ensure_future(one.ask("/v1/chat/completions", CHAT | {"stream": True}, gone=gone))
            while not one.client.submitted:
                await asyncio.sleep(0)
            gone.set()
            await asking

        asyncio.run(asyncio.wait_for(leave(), HANG_SECONDS))
        traces.close()
    (span,) = collector.spans
    assert attributes(span)["gen_ai.response.finish_reasons"] == ["abort"]


@pytest.mark.parametrize(
    ("header", "trace", "parent"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE, PARENT),
        (f"00-{TRACE}-{PARENT}-00", None, None),  # not sampled
        (f"00-{TRACE}-{PARENT}", "", ""),
        (f"00-{TRACE.upper()}-{PARENT}-01", "", ""),
        ("what", "", ""),
    ],
)
def test_the_trace_of_the_client(talker: Path, header: str, trace: str | None, parent: str | None) -> None:
    with collecting() as collector:
        asked(talker, collector, ("/v1/models", None), headers={"traceparent": header})
    if trace is None:
        assert collector.spans == []
        return
    (span,) = collector.spans
    assert span.get("parentSpanId", "") == parent and (span["traceId"] == TRACE) == bool(trace)


def test_a_failing_server_is_an_error_in_the_trace(talker: Path) -> None:
    with collecting() as collector:
        traces = Traces(collector.url, every_seconds=3600)
        traces.ended("GET /x", 1, 2, 500, "", {"a": 1, "b": 0.5, "c": ["d"]})
        traces.close()
    (span,) = collector.spans
    assert span["status"] == {"code": 2} and attributes(span) == {"a": 1, "b": 0.5, "c": ["d"]}


def test_a_collector_that_refuses_or_is_not_there(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector:
        collector.status = 503
        (found,) = asked(talker, collector, ("/v1/models", None))
        assert found.status == 200
    (found,) = asked(talker, collector, ("/v1/models", None))  # it has ended
    assert found.status == 200
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    problems = [line["error"] for line in lines if line["event"] == "traces_not_sent"]
    assert problems[0] == "status 503" and "refused" in problems[1]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def send(self: Traces, spans: list[Any]) -> None:
        sent.append(len(spans))

    monkeypatch.setattr(traces_module.Traces, "_send", send)
    traces = Traces("http://127.0.0.1:1/", every_seconds=3600)
    for _ in range(MOST_WAITING + 5):
        traces.ended("x", 1, 2, 200, "", {})
    assert traces.dropped == 5
    traces.close()
    assert sum(sent) == MOST_WAITING and max(sent) <= 512


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "ftp://x", "http://x:y/"])
def test_urls_that_are_none(url: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no URL of a collector"):
        Traces(url)
    assert run(["serve", str(tiny), "--backend", "interpreter", "--otlp-traces-endpoint", url]) == 2
    assert capsys.readouterr().err.count("\n") == 1
