"""Times of requests that arrive at random, on this machine's GPU: throughput, first tokens, tokens after them.

    python3 ci/bench/engine.py serving_load artifacts/bundles/qwen3-4b-sm_90a.bundle FOLDER [--rates 4,8,16] [--seconds 15]
        [--vllm vllm_load.json]

FOLDER has config, tokenizer and chat template; without weights there, random ones are written next to copies of its files in a
temporary folder.

- Loads: arrivals are a Poisson process at each rate; prompts have 128 to 8192 tokens, their logarithms uniform, generations 32
  to 256. One more load arrives at once: its rate is what the engine can do at most. Requests are given to the client of the
  engine's process (`engine.serving.client`), as the server gives them, without HTTP and tokenizer. Times are those at which the
  client has a token; a first token counts from the arrival, however late the request was sent. Steps of all numbers of rows and
  lengths of prompts ran before.
- HTTP: the same loads and prefixes through `python -m engine serve`, as streams of a client in a process of its own. Times are
  those at which the client has the text. Both processes share the processors of the machine.
- Prefixes: the first token of a prompt of which 2048 tokens are found in the cache, next to one of which none is.
- Start: from the start of a new server's process to the first text of a stream over HTTP, with the files in the page cache.

`--vllm` is what the case `vllm_load` wrote for the same requests, best on the same machine; the page then has ratios. Exit
status 1 if a request did not get all of its tokens, or a prefix was not found. Times are figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ci.bench.engine.cold_start import write_weights
from ci.bench.engine.http_job import Job
from ci.bench.engine.http_load import SERVER, over_http
from ci.bench.engine.load_report import report
from ci.bench.engine.load_traffic import (
    LENGTHS,
    PAIR_OUTPUTS,
    SHARED,
    SHORT,
    Asked,
    Lengths,
    Pair,
    Seen,
    before,
    loads,
    options_of_traffic,
    pairs,
    prefix_summary,
    summary,
)
from ci.bench.engine.server_start import starts
from ci.bench.front import Outcome
from ci.bench.markdown import page
from engine.serving.client import EngineClient
from engine.serving.options import CHUNK_TOKENS
from engine.serving.protocol import Load, Submit

INDEX_FILE: Final = "model.safetensors.index.json"
MOST_WAITING: Final = 100_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3-4b")
    options_of_traffic(parser)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--chunk-tokens", type=int, default=CHUNK_TOKENS)
    parser.add_argument("--chunk-prompts", type=int, help="prompts of one launch; as many as it takes if left out")
    parser.add_argument("--skip-http", action="store_true", help="no loads over HTTP")
    parser.add_argument("--starts", type=int, default=3, help="servers that are started, after one that is not counted")
    parser.add_argument("--vllm", type=Path, metavar="JSON", help="of the case vllm_load")


def measure(options: argparse.Namespace) -> Outcome:
    """Start servers, then measure one engine; before that write the weights if there are none."""
    with tempfile.TemporaryDirectory() as name:
        model = options.folder.resolve()
        if not (model / INDEX_FILE).exists():
            model = Path(name) / options.model
            shutil.copytree(options.folder, model)
            size = write_weights(model, options.model)
            print(f"{size / 1e9:.2f} GB of weights are written", flush=True)
        started = starts(model, options.bundle.resolve(), options.starts, LENGTHS.longest)
        print("start", json.dumps(started), flush=True)
        load = Load(
            model=str(model), backend="cuda", rows=options.rows, max_seq_len=LENGTHS.longest,
            chunk_tokens=options.chunk_tokens, bundle=str(options.bundle.resolve()), chunk_prompts=options.chunk_prompts,
        )  # fmt: skip
        record = asyncio.run(of_engine(load, options))
        if not options.skip_http:
            record["http"] = of_http(load, options)
            print("http", json.dumps(record["http"]), flush=True)
    record = {
        "model": options.model,
        "chunk_tokens": options.chunk_tokens,
        "chunk_prompts": options.chunk_prompts,
        **record,
        "start": started,
    }
    record["faults"] = [*started["faults"], *wrong_prefixes(record["prefixes"])]
    if "http" in record:
        record["faults"] += [f"over HTTP: {one}" for one in wrong_prefixes(record["http"]["prefixes"])]
    if options.vllm is not None:
        record["vllm"] = json.loads(options.vllm.read_text(encoding="utf-8"))
    return Outcome(record, {"serving_load.md": page(report(record))}, int(bool(record["faults"])))


async def of_engine(
    load: Load, options: argparse.Namespace, lengths: Lengths = LENGTHS, shared: int = SHARED, short: Lengths = SHORT
) -> dict[str, Any]:  # fmt: skip
    """The loads and the prefixes on an engine's process."""
    client = EngineClient(MOST_WAITING)
    try:
        loaded = await client.start(load)
        record: dict[str, Any] = {"rows": loaded.rows, "pages": loaded.pages, "load_seconds": loaded.seconds}
        record |= await of_service(OfClient(client), loaded.rows, options, lengths, shared, short)
    finally:
        await client.stop()
    return record


def of_http(
    load: Load, options: argparse.Namespace, server: Sequence[str] = SERVER, lengths: Lengths = LENGTHS, shared: int = SHARED,
    short: Lengths = SHORT,
) -> dict[str, Any]:  # fmt: skip
    """The loads and the prefixes through a server's process, which begins as `server` says."""
    of_server: dict[str, Any] = {
        "backend": load.backend, "rows": load.rows, "max-seq-len": load.max_seq_len, "chunk-tokens": load.chunk_tokens,
        "max-waiting": MOST_WAITING,
    }  # fmt: skip
    if load.bundle is not None:
        of_server["bundle"] = load.bundle
    traffic = options.rates, options.seconds, options.burst, options.pairs, options.seed
    return over_http(Path(load.model), of_server, Job(0, 0, *traffic, lengths, shared, short), server)


async def of_service(
    service: Service, rows: int, options: argparse.Namespace, lengths: Lengths, shared: int, short: Lengths
) -> dict[str, Any]:  # fmt: skip
    """The loads and the prefixes on an engine of `rows` rows."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for asked in before(rows, options.seed, lengths, short):
        await drive(service, asked)
    record: dict[str, Any] = {"seconds_before": round(clock() - began, 3), "loads": {}}
    for name, asked in loads(options, lengths).items():
        record["loads"][name] = summary(await drive(service, asked))
        print(name, json.dumps(record["loads"][name]), file=sys.stderr, flush=True)
    record["prefixes"] = await prefixes(service, pairs(options.pairs, options.seed, shared, lengths)) if options.pairs else {}
    print("prefixes", json.dumps(record["prefixes"]), file=sys.stderr, flush=True)
    return record


class Service(Protocol):
    """An engine, as a client of it sees it."""

    def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
        """How many tokens came, each time that some came, of a request for `most` tokens. `began` is called before the first
        with the number of the prompt's tokens that were found in a cache."""
        ...


class OfClient:
    """The client of the engine's process as a `Service`."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
        ended = None
        async with self._client.submit([Submit(0, list(ids), most)]) as generations:
            while ended is None:
                for arrival in await generations.arrivals():
                    began(generations.cached[0])
                    yield len(arrival.tokens)
                    ended = arrival.ended
        if ended != "length":
            raise RuntimeError(f"a request ended by {ended}")


async def drive(service: Service, asked: Sequence[Asked], found: list[int] | None = None) -> list[Seen]:
    """Send requests when they arrive, whether or not others have ended, and follow each to its end. `found` gets the number of
    each prompt's tokens that were in a cache."""
    clock = asyncio.get_running_loop().time
    begin = clock()

    async def follow(seen: Seen) -> None:
        seen.sent = clock() - begin
        cached: list[int] = []
        async for count in service.tokens(seen.asked.ids, seen.asked.most, cached.append):
            seen.times += [clock() - begin] * count
        if found is not None:
            found.append(cached[0])

    all_seen, following = list[Seen](), list[asyncio.Task[None]]()
    for one in asked:
        if (left := begin + one.at - clock()) > 0:
            await asyncio.sleep(left)
        all_seen.append(Seen(one))
        following.append(asyncio.create_task(follow(all_seen[-1])))
    await asyncio.gather(*following)
    return all_seen


async def prefixes(service: Service, asked: Sequence[Pair]) -> dict[str, Any]:
    """First tokens of prompts one after the other: those that begin as none before, and those that begin as the one before."""
    times: dict[str, list[float]] = {"new": [], "found": []}
    cached: dict[str, list[int]] = {"new": [], "found": []}
    for pair in asked:
        for kind, ids in (("new", pair.first), ("found", pair.second)):
            [seen] = await drive(service, [Asked(0.0, ids, PAIR_OUTPUTS)], cached[kind])
            times[kind].append(seen.times[0] - seen.sent)
    return prefix_summary(times, cached)


def wrong_prefixes(record: Mapping[str, Any], shared: int = SHARED) -> list[str]:
    """What is wrong with the numbers of tokens that were found."""
    expected = {"new": [0], "found": [shared]}
    return [
        f"of a prefix that is {kind}, {record[kind]['tokens_found']} tokens were found, not {tokens}"
        for kind, tokens in expected.items()
        if kind in record and record[kind]["tokens_found"] != tokens
    ]
