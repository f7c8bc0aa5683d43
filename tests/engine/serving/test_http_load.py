"""The program that sends loads over HTTP, against servers whose engines have no model: counts and faults; times are figures."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from fake_paged_batch import VOCABULARY

from ci.bench.engine import http_host, http_load, load_traffic
from ci.bench.engine.http_client import OverHttp
from ci.bench.engine.http_job import Job
from ci.bench.engine.load_traffic import Asked, Lengths, arrivals, at_once, digest
from ci.bench.engine.serving_load import drive, of_http, wrong_prefixes
from engine.serving.protocol import Load
from engine.tools.tiny import write_tiny_model

SMALL = Lengths((20, 150), (3, 12), (0, VOCABULARY))
SCRIPTED = [str(Path(http_load.__file__).with_name("scripted_engine.py"))]


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    load_traffic.options_of_traffic(parser)
    return parser.parse_args(given)


def test_a_run_over_http_has_the_requests_of_one_without(tmp_path: Path) -> None:
    """The server, its engine's process and the client are three processes."""
    write_tiny_model(tmp_path / "tiny")
    load = Load(model=str(tmp_path / "tiny"), backend="interpreter", rows=4, max_seq_len=256, chunk_tokens=96)
    given = options("--rates", "40", "--seconds", "0.5", "--burst", "6", "--pairs", "2")
    record = of_http(load, given, SCRIPTED, SMALL, 128, Lengths((5, 9), (3, 6), (0, VOCABULARY)))
    assert list(record["loads"]) == ["40", "at once"]
    for name, found in record["loads"].items():
        asked = at_once(6, 1, SMALL) if name == "at once" else arrivals(float(name), 0.5, 1, SMALL)
        assert found["requests"] == len(asked) and found["requests_digest"] == digest(asked)
        assert found["output_tokens"] == sum(one.most for one in asked)
        assert 0 < found["first_ms"]["p50"] <= found["first_ms"]["most"]
    assert wrong_prefixes(record["prefixes"], 128) == []
    of_loads = sum(load["output_tokens"] for load in record["loads"].values())
    assert record["tokens"] > of_loads >= record["events"] // 2 and record["server_us_of_a_token"] > 0


def test_what_a_stream_costs_is_counted_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def client(line: bytes) -> dict[str, Any]:
        jobs.append(Job.read(line.decode()))
        tokens = jobs[-1].lengths.outputs[1] * jobs[-1].burst
        spent[0] += 0.5 + 2e-5 * tokens
        return {"events": tokens // 2}

    spent = [0.0]
    monkeypatch.setattr(http_host, "client", client)

    def processor_seconds(_: int) -> float:
        return spent[0]

    def serving(*_: object) -> nullcontext[tuple[int, dict[str, int]]]:
        return nullcontext((1, {"port": 5}))

    monkeypatch.setattr(http_host, "processor_seconds", processor_seconds)
    monkeypatch.setattr(http_host, "serving", serving)
    found = http_host.of_http(4, 10)
    assert found == {"token": 20.0, "request": 125000.0, "events_of_a_token": 0.5}
    assert [(job.burst, job.rows, job.lengths.outputs) for job in jobs] == [(4, 0, (n, n)) for n in (8, 8, 18)]


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(http_load.ServerFailed, match=r"config\.json"),
        http_load.serving(tmp_path / "nothing", {"backend": "interpreter"}, ["-m", "engine", "serve"]),
    ):
        pass


@asynccontextmanager
async def responding(pieces: Sequence[bytes]) -> AsyncGenerator[int]:
    """The port of a server that sends these pieces to whoever asks, and closes."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


def event(count: int, reason: str = "null", cached: int = 0) -> str:
    details = f', "prompt_tokens_details": {{"cached_tokens": {cached}}}' if cached else ""
    usage = f'{{"completion_tokens": {count}{details}}}'
    return f'data: {{"choices": [{{"text": "x", "finish_reason": {reason}}}], "usage": {usage}}}\n\n'


END = 'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\ndata: [DONE]\n\n'


def seen(*pieces: bytes) -> tuple[list[float], list[int], int]:
    async def run() -> tuple[list[float], list[int], int]:
        async with responding(pieces) as port:
            service, cached = OverHttp(port), list[int]()
            [found] = await drive(service, [Asked(0.0, (1, 2), 5)], cached)
            return found.times, cached, service.events

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_events_are_read_however_they_are_cut() -> None:
    whole = event(2, cached=64) + ": ping\n\n" + event(2) + event(5) + event(5, '"length"') + END
    for cut in (1, 7, len(whole) // 2, len(whole)):
        pieces = [chunk(whole[at : at + cut]) for at in range(0, len(whole), cut)]
        times, cached, events = seen(HEAD, *pieces, b"0\r\n\r\n")
        assert len(times) == 5 and cached == [64] and events == 2


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nfull"], "refused a request: full"),
        ([HEAD, chunk(event(1)), chunk('data: {"error": {"message": "it broke"}}\n\n')], "it broke"),
        ([HEAD, chunk(event(1)), b"0\r\n\r\n"], "was cut"),
        ([HEAD, chunk(event(5, '"stop"') + END)], "ended by stop"),
    ],
)
def test_what_is_no_whole_response_is_an_error(pieces: list[bytes], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        seen(*pieces)


def test_the_processors_time_of_a_process_grows_with_its_work() -> None:
    before = http_load.processor_seconds(os.getpid())
    while http_load.processor_seconds(os.getpid()) < before + 0.05:
        sum(range(10_000))
    assert http_load.processor_seconds(os.getpid()) > before
