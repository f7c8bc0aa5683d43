"""The program that measures requests that arrive at random: engines with known delays get the times that follow from them.

Time is a number here (`virtual_time`): a sleep moves it, and nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from fake_paged_batch import VOCABULARY, FakeBackend, FakePagedBatch
from virtual_time import virtual_time

from ci.bench.engine import load_traffic, serving_load
from ci.bench.engine.load_traffic import (
    LENGTHS,
    Asked,
    Lengths,
    Seen,
    arrivals,
    at_once,
    digest,
    milliseconds,
    pairs,
    percentile,
)
from ci.bench.engine.serving_load import drive, of_engine, prefixes, wrong_prefixes
from engine.serving.beginning import EngineProcess
from engine.serving.loop import EngineLoop
from engine.serving.pool import Pool
from engine.serving.protocol import Load, Report, Submit
from engine.tools.tiny import write_tiny_model

T = TypeVar("T")
SMALL = Lengths((20, 150), (3, 12), (0, VOCABULARY))
EXACT = 1e-9


@dataclass
class Scripted:
    """A service with the first token after `first(ids)` seconds and each other one after `each` more."""

    first: Callable[[Sequence[int]], float]
    each: float
    together: int = 1

    async def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
        await asyncio.sleep(self.first(ids))
        began(0)
        yield 1
        left = most - 1
        while left:
            await asyncio.sleep(self.each)
            yield min(left, self.together)
            left -= min(left, self.together)


# ---- requests


def test_arrivals_are_a_poisson_process_with_the_lengths_that_were_asked_for() -> None:
    asked = arrivals(50.0, 40.0, seed=1)
    assert abs(len(asked) - 2000) < 3 * 2000**0.5
    gaps = [after.at - before.at for before, after in pairwise(asked)]
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.07) and statistics.stdev(gaps) == pytest.approx(
        1 / 50, rel=0.05
    )
    assert statistics.mean(gap > 2 / 50 for gap in gaps) == pytest.approx(np.exp(-2), rel=0.15)
    prompts = [len(one.ids) for one in asked]
    assert min(prompts) < 135 and max(prompts) > 8000 and all(128 <= length <= 8192 for length in prompts)
    shares = np.histogram(prompts, [128, 256, 512, 1024, 2048, 4096, 8193])[0] / len(prompts)
    assert shares == pytest.approx([1 / 6] * 6, abs=0.025), "every doubling is as likely"
    outputs = [one.most for one in asked]
    assert min(outputs) == 32 and max(outputs) == 256 and statistics.mean(outputs) == pytest.approx(144, rel=0.02)


def test_requests_follow_from_the_seed_alone() -> None:
    assert digest(arrivals(8.0, 15.0, 1)) == digest(arrivals(8.0, 15.0, 1))
    assert len({digest(arrivals(8.0, 15.0, 1)), digest(arrivals(8.0, 15.0, 2)), digest(arrivals(9.0, 15.0, 1))}) == 3
    one, *others = at_once(3, 1, SMALL)
    changed = [
        Asked(one.at, one.ids, one.most + 1),
        Asked(0.5, one.ids, one.most),
        Asked(one.at, (*one.ids[:-1], 96), one.most),
    ]
    assert len({digest([first, *others]) for first in [one, *changed]}) == 4


def test_no_prompt_of_a_pair_begins_as_one_of_another() -> None:
    found = pairs(4, 1, 64, SMALL)
    assert all(one.first[:64] == one.second[:64] and one.first[64:] != one.second[64:] for one in found)
    assert len({one.first[:8] for one in found}) == 4 and {len(one.second) for one in found} == {64 + load_traffic.REST}


# ---- figures


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count).tolist()
    for share in (0, 50, 95, 99, 100):
        assert percentile(values, share) == pytest.approx(np.percentile(values, share), rel=1e-12)
    assert milliseconds([0.001, 0.002, 0.003]) == {"p50": 2.0, "p95": 2.9, "p99": 2.98, "most": 3.0}


def test_a_load_whose_times_are_known() -> None:
    first = Seen(Asked(1.0, (5, 5), 3), sent=1.25, times=[2.0, 2.5, 4.0])
    second = Seen(Asked(3.0, (6,), 2), sent=3.0, times=[3.5, 6.0])
    found = load_traffic.summary([first, second])
    assert found["first_ms"]["most"] == 1000.0 and found["first_ms"]["p50"] == 750.0, "from the arrival, not from the sending"
    assert found["per_token_ms"]["p50"] == 1750.0 and found["gap_ms"]["most"] == 2500.0 and found["late_ms"] == 250.0
    assert found["gap_ms"]["p50"] == 1500.0, "of all requests"
    assert found["seconds"] == 5.0 and found["output_tok_s"] == 1.0 and found["all_tok_s"] == 1.6
    assert found["most_together"] == 2 and found["requests_s"] == 0.4
    second.times.pop()
    with pytest.raises(ValueError, match="a request for 2 tokens got 1"):
        load_traffic.summary([first, second])


def test_a_request_that_ends_as_another_arrives_is_not_together_with_it() -> None:
    one, other = Seen(Asked(0.0, (1,), 1), times=[1.0]), Seen(Asked(1.0, (1,), 1), times=[2.0])
    assert load_traffic.most_together([one, other]) == 1


# ---- the client


def test_known_delays_are_the_times_that_are_found() -> None:
    asked = arrivals(20.0, 10.0, 1, SMALL)
    found = load_traffic.summary(virtual_time(drive(Scripted(lambda ids: len(ids) / 1000, 0.01), asked)))
    lengths = [len(one.ids) for one in asked]
    assert found["requests"] == len(asked) > 100 and found["late_ms"] == 0.0
    assert found["first_ms"] == {
        **{f"p{share}": pytest.approx(np.percentile(lengths, share), abs=1e-3) for share in (50, 95, 99)}, "most": max(lengths),
    }  # fmt: skip
    assert found["per_token_ms"] == found["gap_ms"] == {"p50": 10.0, "p95": 10.0, "p99": 10.0, "most": 10.0}
    ends = [one.at + len(one.ids) / 1000 + 0.01 * (one.most - 1) for one in asked]
    assert found["seconds"] == round(max(ends) - asked[0].at, 3)


def test_tokens_that_come_together_have_one_time() -> None:
    [seen] = virtual_time(drive(Scripted(lambda ids: 0.5, 0.3, together=3), [Asked(0.0, (1,), 6)]))
    assert seen.times == pytest.approx([0.5, 0.8, 0.8, 0.8, 1.1, 1.1])
    assert seen.per_token == pytest.approx(0.12)


def test_a_slow_engine_does_not_slow_the_arrivals() -> None:
    """Requests that wait count from their arrival: with one server, by Lindley's recursion."""
    lock, asked = asyncio.Lock(), arrivals(30.0, 5.0, 2, SMALL)

    class OneAtATime(Scripted):
        async def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
            async with lock:
                async for count in super().tokens(ids, most, began):
                    yield count

    seen = virtual_time(drive(OneAtATime(lambda ids: 0.02, 0.01), asked))
    free, expected = 0.0, list[float]()
    for one in asked:
        begin = max(free, one.at)
        expected.append(begin + 0.02 - one.at)
        free = begin + 0.02 + 0.01 * (one.most - 1)
    assert [one.to_first for one in seen] == pytest.approx(expected, abs=EXACT)
    assert max(expected) > 5 * 0.02, "requests waited"
    assert all(one.sent == pytest.approx(one.asked.at, abs=EXACT) for one in seen)


# ---- the scheduler and rows under it


class OfLoop:
    """The engine's loop on rows without a model, as a service: an iteration takes `token` seconds for each token of a prompt,
    or `step` seconds. A step whose tokens are read before those of prompts takes its time before them."""

    def __init__(self, rows: int = 4, token: float = 0.001, step: float = 0.05) -> None:
        pool = Pool.empty(rows, 60, 400, parking=4)
        self.early: list[Report] = []
        rows_and_pool = FakePagedBatch(rows, 60, 400), pool
        self.loop = EngineLoop(cast(Any, FakeBackend()), rows_and_pool, 64, early=self.early.append)
        self.token, self.step = token, step
        self.count, self.running = 0, False
        self.queues: dict[int, asyncio.Queue[tuple[int, int]]] = {}
        self.prompts: list[tuple[int, ...]] = []

    async def tokens(self, ids: Sequence[int], most: int, began: Callable[[int], None]) -> AsyncIterator[int]:
        self.count += 1
        self.prompts.append(tuple(ids))
        queue = self.queues[self.count] = asyncio.Queue()
        self.loop.submit(Submit(self.count, list(ids), most))
        if not self.running:
            self.running = True
            self.task = asyncio.create_task(self._run())
        for number in range(most):
            cached, count = await queue.get()
            if number == 0:
                began(cached)
            yield count

    async def _run(self) -> None:
        cached: dict[int, int] = {}
        while not self.loop.idle:
            reports = [self.loop.iteration()]
            reports[:0], self.early[:] = self.early, []
            for found in reports:
                cached |= found.cached
                await asyncio.sleep(found.prompt_tokens * self.token or (self.step if found.tokens else 0.0))
                for number, _ in found.each():
                    self.queues[number].put_nowait((cached[number], 1))
        self.running = False


def test_times_of_the_loop_follow_from_those_of_its_iterations() -> None:
    alone = OfLoop()
    [seen] = virtual_time(drive(alone, [Asked(0.0, tuple(range(90)), 4)]))
    assert seen.times == pytest.approx([0.09, 0.14, 0.19, 0.24])
    both = OfLoop()
    first, second = virtual_time(drive(both, [Asked(0.0, (1,) * 10, 6), Asked(0.1, tuple(range(60)), 2)]))
    assert first.times == pytest.approx([0.01, 0.06, 0.11, 0.16, 0.27, 0.32]), "a chunk of 60 tokens comes between two steps"
    assert second.times == pytest.approx([0.22, 0.27]), "a step without it was enqueued when it came"


def test_a_prefix_that_is_found_is_not_computed() -> None:
    service = OfLoop()
    found = virtual_time(prefixes(service, pairs(3, 1, 128, SMALL)))
    assert len({*service.prompts}) == 6 and len({prompt[:128] for prompt in service.prompts}) == 3
    assert found["new"] == {"first_ms": dict.fromkeys(("p50", "p95", "p99", "most"), 144.0), "tokens_found": [0]}
    assert found["found"] == {"first_ms": dict.fromkeys(("p50", "p95", "p99", "most"), 16.0), "tokens_found": [128]}
    assert wrong_prefixes(found, 128) == [] and len(wrong_prefixes(found, 64)) == 1
    found["new"]["tokens_found"] = [0, 64]
    assert wrong_prefixes(found, 128) == ["of a prefix that is new, [0, 64] tokens were found, not [0]"]


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    load_traffic.options_of_traffic(parser)
    return parser.parse_args(given)


def test_a_run_on_the_engines_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client, the process and the loop are the server's own; the rows have no model."""
    write_tiny_model(tmp_path / "tiny")
    monkeypatch.setattr(EngineProcess, "module", "ci.bench.engine.scripted_engine")
    load = Load(model=str(tmp_path / "tiny"), backend="interpreter", rows=4, max_seq_len=256, chunk_tokens=96)
    given = options("--rates", "40,80", "--seconds", "0.5", "--burst", "12", "--pairs", "2")
    record = asyncio.run(of_engine(load, given, SMALL, 128, Lengths((5, 9), (3, 6), (0, 97))))
    assert list(record["loads"]) == ["40", "80", "at once"] and record["rows"] == 4
    for name, found in record["loads"].items():
        asked = at_once(12, 1, SMALL) if name == "at once" else arrivals(float(name), 0.5, 1, SMALL)
        assert found["requests"] == len(asked) and found["requests_digest"] == digest(asked)
        assert found["output_tokens"] == sum(one.most for one in asked)
        assert (
            0 < found["first_ms"]["p50"] <= found["first_ms"]["p99"] <= found["first_ms"]["most"] < 1e3 * found["seconds"] + 1
        )
    assert wrong_prefixes(record["prefixes"], 128) == []


def test_a_request_that_the_engine_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "tiny")
    monkeypatch.setattr(EngineProcess, "module", "ci.bench.engine.scripted_engine")
    load = Load(model=str(tmp_path / "tiny"), backend="interpreter", rows=4, max_seq_len=256, chunk_tokens=96)
    with pytest.raises(RuntimeError, match="a request ended by error"):
        asyncio.run(
            of_engine(load, options("--rates", "", "--burst", "2", "--pairs", "0"), Lengths((300, 300), (3, 3), (0, 97)))
        )


def test_a_whole_run_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are there are not written again, and what vLLM found is in the record and on the page."""
    model, ours = tmp_path / "tiny", serving_load
    write_tiny_model(model)
    (model / ours.INDEX_FILE).write_text("{}")
    runs: list[Any] = [{"ready": 1.0, "load": 0.5, "first_text": 1.5}]

    def starts(*given: Any) -> dict[str, Any]:
        assert given == (model, tmp_path / "b", 3, LENGTHS.longest)
        return {"runs": runs, "faults": []}

    async def of_small(load: Load, asked: argparse.Namespace) -> dict[str, Any]:
        assert (load.backend, load.rows, load.chunk_tokens, load.max_seq_len) == ("cuda", 4, 96, LENGTHS.longest)
        small = Load(model=load.model, backend="interpreter", rows=4, max_seq_len=256, chunk_tokens=96)
        return await of_engine(small, asked, SMALL, 128, Lengths((5, 9), (3, 6), (0, 97)))

    def of_http(load: Load, asked: argparse.Namespace) -> dict[str, Any]:
        found = asyncio.run(of_small(load, asked))
        found["prefixes"]["found"]["tokens_found"] = [64]
        return found | {"server_us_of_a_token": 81.25}

    monkeypatch.setattr(EngineProcess, "module", "ci.bench.engine.scripted_engine")
    monkeypatch.setattr(ours, "starts", starts)
    monkeypatch.setattr(ours, "of_http", of_http)
    monkeypatch.setattr(ours, "of_engine", of_small)
    parser = argparse.ArgumentParser()
    ours.arguments(parser)
    words = [str(tmp_path / "b"), str(model), "--rates", "40", "--seconds", "0.4", "--burst", "5", "--pairs", "2"]
    given = [*words, "--rows", "4", "--chunk-tokens", "96"]
    found = ours.measure(parser.parse_args(given))
    fault = "of a prefix that is found, [{}] tokens were found, not [2048]"
    assert found.status == 1 and found.data["faults"] == [fault.format(128), "over HTTP: " + fault.format(64)], (
        "the small ones are no prefixes of 2048 tokens"
    )
    text = found.pages["serving_load.md"]
    assert text.count("| ours, over HTTP |") == 4 and "took 81 us of a processor for each token" in text
    assert (
        "| first text | 1.50 | 1.50 | 1.50 | 2.0 |" in found.pages["serving_load.md"]
        and "vLLM" not in found.pages["serving_load.md"]
    )
    theirs = tmp_path / "vllm.json"
    theirs.write_text(json.dumps({"loads": found.data["loads"], "prefixes": found.data["prefixes"], "start_seconds": 80.0}))
    again = ours.measure(parser.parse_args([*given, "--vllm", str(theirs), "--skip-http"]))
    assert "http" not in again.data and "over HTTP" not in again.pages["serving_load.md"]
    assert again.data["vllm"]["start_seconds"] == 80.0 and again.pages["serving_load.md"].count("| ratio |") == 2


def test_the_options_of_the_case_decide_the_same_requests_as_those_of_vllms() -> None:
    from ci.bench.engine import vllm_load

    ours, theirs = argparse.ArgumentParser(), argparse.ArgumentParser()
    serving_load.arguments(ours)
    vllm_load.arguments(theirs)
    one, other = load_traffic.loads(ours.parse_args(["b", "f"])), load_traffic.loads(theirs.parse_args(["f"]))
    assert {name: digest(asked) for name, asked in one.items()} == {name: digest(asked) for name, asked in other.items()}
    assert len(one) == 4 and all(len(one.ids) + one.most <= LENGTHS.longest for asked in one.values() for one in asked)
