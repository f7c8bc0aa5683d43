"""The program that measures requests that arrive at random: starts of servers, what it takes from vLLM, and its page."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_paged_batch import VOCABULARY

from ci.bench import front
from ci.bench.engine import CASES, load_traffic, server_start
from ci.bench.engine.load_report import OtherRequests, report
from ci.bench.engine.load_traffic import LENGTHS, Lengths, arrivals, digest
from ci.bench.engine.serving_check import rates_of_vllm
from ci.bench.engine.vllm_load import Client
from engine.tools.tiny import write_tiny_model

SMALL = Lengths((20, 150), (3, 12), (0, VOCABULARY))
EXACT = 1e-9

# ---- starts

SERVER = """
import http.server, json, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/completions" and asked["stream"] is True and asked["temperature"] == 0
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for text in {texts!r}:
            time.sleep(0.2 if text == "Hi" else 0.0)
            piece = ("data: " + json.dumps(dict(choices=[dict(text=text)])) + "\\n\\n").encode()
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(piece), piece))
        end = b"data: [DONE]\\n\\n"
        self.wfile.write(b"%x\\r\\n%s\\r\\n0\\r\\n\\r\\n" % (len(end), end))
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print(json.dumps(dict(event="loading")), file=sys.stderr, flush=True)
{special}
print(json.dumps(dict(event="ready", port=server.server_port, load_seconds=0.25)), file=sys.stderr, flush=True)
server.serve_forever()
"""
"""A stand-in for the server."""


def of_stand_ins(monkeypatch: pytest.MonkeyPatch, *each: dict[str, Any]) -> dict[str, Any]:
    """What is found of stand-ins that start one after the other."""
    lines = iter(
        [sys.executable, "-c", SERVER.format(**({"texts": ["", "Hi", " you"], "status": 0, "special": ""} | one))]
        for one in each
    )

    def command(*_: object) -> list[str]:
        return next(lines)

    monkeypatch.setattr(server_start, "command", command)
    return server_start.starts(Path(), Path(), len(each) - 1, 64)


def test_a_start_ends_with_the_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_stand_ins(monkeypatch, {}, {}, {})
    assert found["faults"] == [] and len(found["runs"]) == 2, "the first one is not counted"
    for run in found["runs"]:
        assert run["load"] == 0.25 and 0 < run["ready"] < run["first_text"] - 0.2, "an event without text is none"


@pytest.mark.parametrize(
    ("special", "fault"),
    [
        ({"special": "sys.exit('error: no memory')"}, "the server ended: error: no memory"),
        ({"texts": ["", ""]}, "the server streamed '' and ended with status 0"),
        ({"status": 5}, "the server streamed 'Hi you' and ended with status 5"),
        ({"texts": ["Ho"]}, "servers streamed different texts for one prompt"),
    ],
)
def test_a_server_that_fails_is_a_fault(special: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_stand_ins(monkeypatch, {}, {}, special)["faults"] == [fault]


def test_the_server_itself(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    line = server_start.command(tmp_path / "tiny", tmp_path, 64)
    assert line[1:4] == ["-m", "engine", "serve"] and line[line.index("--max-seq-len") + 1] == "64"
    where = line.index("--bundle")
    found = server_start.started([*line[:where], *line[where + 2 :], "--backend", "interpreter", "--rows", "2"])
    assert "fault" not in found and found["load"] < found["ready"] < found["first_text"] and found["text"]


# ---- vLLM's side


def output_of(name: str, cached: int, *, last: bool) -> Any:
    tokens = SimpleNamespace(token_ids=[7])
    return SimpleNamespace(request_id=name, outputs=[tokens], finished=last, num_cached_tokens=cached)


@dataclass
class FakeEngine:
    """An `LLMEngine` that computes one request at a time: its first token after `first` seconds, others after `each`. What it
    has computed is in its queue at the time at which the client looks."""

    first: float = 0.4
    each: float = 0.1
    now: float = 0.0
    asked: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    ready: list[tuple[float, Any]] = field(default_factory=list[tuple[float, Any]])
    free: float = 0.0
    running: list[str] = field(default_factory=list[str])

    @property
    def engine_core(self) -> Any:
        queue: SimpleQueue[int] = SimpleQueue()
        if self.ready and self.ready[0][0] <= self.now + EXACT:
            queue.put(0)
        return SimpleNamespace(outputs_queue=queue)

    def add_request(self, name: str, prompt: Any, parameters: Any) -> None:
        assert parameters["ignore_eos"] and parameters["temperature"] == 0.0 and parameters["output_kind"] == "delta"
        at = max(self.free, self.now) + self.first
        for number in range(parameters["max_tokens"]):
            last = number == parameters["max_tokens"] - 1
            output = output_of(name, len(prompt["prompt_token_ids"]), last=last)
            self.ready.append((at + number * self.each, output))
        self.free = self.ready[-1][0]

    def step(self) -> list[Any]:
        now = self.ready[0][0]
        assert now <= self.now + EXACT, "nothing is there to take"
        found = [output for at, output in self.ready if at == now]
        self.ready = self.ready[len(found) :]
        return found

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def client_of(engine: FakeEngine) -> Client:
    return Client(engine, dict, "delta", lambda: engine.now, engine.sleep)


def test_the_client_of_vllm_finds_the_same_times() -> None:
    asked = arrivals(2.0, 8.0, 3, SMALL)
    cached = list[int]()
    seen = client_of(FakeEngine()).drive(asked, cached)
    assert [one.asked for one in seen] == asked and cached == [len(one.ids) for one in asked]
    free = 0.0
    for one in seen:
        begin = max(free, one.asked.at)
        expected = [begin + 0.4 + 0.1 * number for number in range(one.asked.most)]
        assert one.times == pytest.approx(expected, abs=3e-4) and 0 <= one.sent - one.asked.at < 3e-4
        free = expected[-1]
    load_traffic.summary(seen)


def test_steps_of_a_batch_that_serve_all_rows_are_timed() -> None:
    class Steps(FakeEngine):
        """A second for each prompt, whose request joins the steps then; these take 20 ms while all are there, and 500 ms once
        the first has ended."""

        def add_request(self, name: str, prompt: Any, parameters: Any) -> None:
            most = parameters["max_tokens"]
            self.asked.append((name, len(prompt["prompt_token_ids"]), most))
            self.running += [name]
            if len(self.running) < 4:
                return
            rows, self.running, at = self.running, [], self.now
            for step in range(most + 3):
                some = [name for row, name in enumerate(rows) if row <= step < row + most]
                at += 1.0 if step < 4 else 0.02 if len(some) == 4 else 0.5
                ends = [name for row, name in enumerate(rows) if step == row + most - 1]
                self.ready += [(at, one) for one in (output_of(name, 512, last=name in ends) for name in some)]

    engine = Steps()
    found = client_of(engine).decode(4)
    assert found["tok_s"] == pytest.approx(4 / 0.02, rel=0.01) and len(found["runs"]) == 3
    assert [most for _, _, most in engine.asked[::4]] == [8, 128, 128, 128] and {length for _, length, _ in engine.asked} == {
        512
    }


class Rounds:
    """An `LLMEngine` whose step gives every request a token at once. It knows prompts that begin with the same 2048 tokens."""

    def __init__(self) -> None:
        self.left: dict[str, list[int]] = {}
        self.known: set[tuple[int, ...]] = set()
        self.engine_core = SimpleNamespace(outputs_queue=SimpleNamespace(empty=lambda: not self.left))
        self.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode="FULL_AND_PIECEWISE"),
            scheduler_config=SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=8192),
        )  # fmt: skip

    def add_request(self, name: str, prompt: Any, parameters: Any) -> None:
        begin = tuple(prompt["prompt_token_ids"][:2048])
        self.left[name] = [parameters["max_tokens"], 2048 if len(begin) == 2048 and begin in self.known else 0]
        self.known.add(begin)

    def step(self) -> list[Any]:
        found = [output_of(name, cached, last=left == 1) for name, (left, cached) in self.left.items()]
        self.left = {name: [left - 1, cached] for name, (left, cached) in self.left.items() if left > 1}
        return found


def test_a_whole_run_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes is what the pages of both cases take."""
    given: dict[str, Any] = {}

    def opened(**options: Any) -> Any:
        given.update(options)
        return SimpleNamespace(llm_engine=Rounds())

    sampling = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA="delta"))
    monkeypatch.setitem(sys.modules, "vllm", cast(Any, SimpleNamespace(LLM=opened, SamplingParams=dict, __version__="0.26.0")))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", cast(Any, sampling))
    words = ["vllm_load", str(tmp_path), "--out", str(tmp_path), "--decode", "4,16", "--rates", "400", "--seconds", "0.05"]
    assert front.run("engine", CASES, [*words, "--burst", "5", "--pairs", "2", "--cache-bytes", "99"]) == 0
    path = tmp_path / "vllm_load.json"
    record = json.loads(path.read_text())
    assert given["max_num_seqs"] == 256 and given["kv_cache_memory_bytes"] == 99 and given["max_model_len"] == LENGTHS.longest
    assert record["vllm"] == "0.26.0" and record["batched_tokens"] == 8192 and list(record["loads"]) == ["400", "at once"]
    assert record["loads"]["400"]["requests_digest"] == digest(arrivals(400.0, 0.05, 1))
    assert {kind: one["tokens_found"] for kind, one in record["prefixes"].items()} == {"new": [0], "found": [2048]}
    assert rates_of_vllm([path])["qwen3-4b"].keys() == {4, 16}
    ours: dict[str, Any] = {
        "model": "qwen3-4b",
        "loads": record["loads"],
        "prefixes": record["prefixes"],
        "start": {"runs": []},
        "faults": [],
    }
    assert sum("| ratio |" in line for line in report(ours | {"vllm": record})) == 2


# ---- the page


def record_of(first: float, rate: float = 10.0, requests: str = "a") -> dict[str, Any]:
    times = {"p50": first, "p95": 2 * first, "p99": 3 * first, "most": 4 * first}
    load = {
        "requests": 9, "requests_digest": requests, "most_together": 3, "requests_s": rate, "output_tok_s": 100 * rate,
        "all_tok_s": 900.0,
        "first_ms": times, "per_token_ms": times, "gap_ms": times,
    }  # fmt: skip
    prefix = {kind: {"first_ms": times, "tokens_found": [n]} for kind, n in (("new", 0), ("found", 2048))}
    return {"loads": {"4": load}, "prefixes": prefix}


def page_of(theirs: dict[str, Any] | None = None) -> str:
    runs = [{"ready": 1.0 + n / 10, "load": 0.5, "first_text": 1.5 + n / 10} for n in range(3)]
    record = {"model": "qwen3-4b", **record_of(10.0), "start": {"runs": runs}, "faults": ["something"]}
    return "\n".join(report(record | ({"vllm": theirs} if theirs else {})))


def test_the_page_has_ratios_above_one_where_ours_is_better() -> None:
    alone, both = page_of(), page_of(record_of(15.0, rate=8.0) | {"start_seconds": 71.25})
    assert "| 4 | ours | 9 | 3 | 10.00 | 1000 | 900 | 10.0 | 20.0 | 30.0 | 10.0 | 20.0 | 30.0 | 30.0 | 40.0 |" in alone
    assert "vLLM" not in alone and "- something" in alone and "| first text | 1.50 | 1.60 | 1.70 | 2.0 |" in alone
    assert "| 4 | ratio |  |  | 1.25 | 1.25 | 1.00 | 1.50 |" in both and "| 4 | vLLM | 9 | 3 | 8.00 | 800 |" in both
    assert "| found | vLLM | 2048 | 15.00 | 60.00 | 15.0 |" in both and "71.2" in both


def test_other_requests_are_not_compared() -> None:
    with pytest.raises(OtherRequests, match="the load `4`"):
        page_of(record_of(15.0, requests="b"))
