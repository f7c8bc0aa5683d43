"""A server under requests of all kinds, on the tile interpreter: no leak, no hang, no wrong generation.

    python3 ci/bench/engine.py serving_soak [--requests 10000] [--clients 12] [--kills 2] [--rows 4] [--pages 24]
        [--scripted] [--speculate ngram:4] [--guessing 2000]

With `--scripted` the engine has rows without a model (`scripted_engine.py`), so that ten thousand requests take minutes. A tiny
model, a server process, and clients that send one request after the other: whole and streamed ones, slow readers, some
that leave before or in the middle of a response, bad bodies, more than may wait. Prompts share beginnings, and the pages do not
suffice for all. `--kills` times the process of the engine is killed (SIGKILL) during the first half.

Every whole text is compared with that of the same request alone: its steps on rows without a scheduler, in this process. At the
end no page may be in use and no request be left, the memory of both processes may have grown by at most `GROWTH_MB` since the
middle, and SIGTERM ends the server with status 0. A response that takes over `HANG_SECONDS` is a hang. A request that was in
the server when its engine was killed may fail, and no other. With `--guessing` so many more requests go to a second server,
with `--speculate ngram:4` and rows to spare. Its texts are held against the same ones; some of its guesses have to be right,
and some wrong. Exit status 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.scripted_engine import rows_without_a_model
from ci.bench.engine.soak_traffic import KINDS, WEIGHTS, Generation, Response, generation, send
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from engine.api import Engine
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from engine.serving.generated_text import GeneratedText
from engine.tools.tiny import write_tiny_model

LONGEST: Final = 256
CHUNK_TOKENS: Final = 96
GROWTH_MB: Final = 24.0
GUESSES: Final = "ngram:4"
HANG_SECONDS: Final = 600.0
AGAIN: Final = ("queue_full", "restarting")
AGAIN_SECONDS: Final = 0.05
"""After how long a request is sent again that could not even wait, or that came while the model was loaded again."""
ROOT: Final = Path(__file__).resolve().parents[3]
SCRIPTED: Final = Path(__file__).resolve().parent / "scripted_engine.py"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--pages", type=int, default=24)
    parser.add_argument("--distinct", type=int, default=60, help="generations that requests repeat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scripted", action="store_true", help="rows without a model, whose steps take microseconds")
    parser.add_argument("--speculate", metavar="ngram:K", help="of the server")
    parser.add_argument("--guessing", type=int, default=0, help="requests to a second server, which guesses next tokens")


def measure(options: argparse.Namespace) -> Outcome:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder) / "tiny")
        expected = texts_alone(Path(folder) / "tiny", options.seed, options.distinct, scripted=options.scripted)
        record = asyncio.run(Soak(Path(folder) / "tiny", expected, options).run())
        if options.guessing:
            other = {"requests": options.guessing, "kills": 1, "speculate": GUESSES, "rows": 2 * options.clients}
            more = argparse.Namespace(**(vars(options) | other))
            record["guessing"] = asyncio.run(Soak(Path(folder) / "tiny", expected, more).run())
            record["ok"] = record["ok"] and record["guessing"]["ok"]
    return Outcome(record, {"serving_soak.md": page(report(record))}, int(not record["ok"]))


def texts_alone(folder: Path, seed: int, distinct: int, *, scripted: bool = False) -> dict[Generation, str]:
    """The text of each generation, without other requests, scheduler and server."""
    found: dict[Generation, str] = {}
    with (
        Engine.from_pretrained(folder, backend="interpreter", max_seq_len=LONGEST) as engine,
        closing(rows_without_a_model(1, 9) if scripted else PagedBatch(engine.backend, 1)) as batch,
    ):
        pages = range(batch.parking, batch.parking + -(-LONGEST // batch.page_tokens))
        for number in range(distinct):
            asked = generation(seed, number, LONGEST)
            sampling = None if asked.seed is None else SamplingParams(1.0, 20, 0.9, seed=asked.seed)
            output = GeneratedText(engine.text, (), ())
            tokens = [batch.join(0, list(pages), 0, asked.ids, sampling, prompt=asked.ids)]
            while len(tokens) < asked.max_tokens:
                tokens.append(batch.step(ahead=False)[0])
            batch.remove(0)
            parts = [part for token in tokens for part in output.push(token)]
            found[asked] = "".join(part.content for part in [*parts, *output.finish()])
    return found


@dataclass
class Soak:
    """A run: the server's process, and what was seen of it."""

    folder: Path
    expected: dict[Generation, str]
    options: argparse.Namespace
    seen: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    done: int = 0
    kills: int = 0
    down: bool = False
    restarted: asyncio.Event = field(default_factory=asyncio.Event)
    memory: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    port: int = 0

    async def run(self) -> dict[str, Any]:
        """The record of the run."""
        options, began = self.options, time.monotonic()
        numbers: dict[str, Any] = {
            "rows": options.rows, "pages": options.pages, "max-seq-len": LONGEST, "chunk-tokens": CHUNK_TOKENS, "port": 0,
            "max-waiting": max(1, options.clients // 4), "max-body-bytes": 100_000, "restarts": 1000,
        }  # fmt: skip
        if options.speculate is not None:
            numbers["speculate"] = options.speculate
        server = [str(SCRIPTED)] if options.scripted else ["-m", "engine", "serve"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *server, str(self.folder), "--backend", "interpreter",
            *(word for name, number in numbers.items() for word in (f"--{name}", str(number))),
            cwd=ROOT, stderr=asyncio.subprocess.PIPE, limit=1 << 20,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            while self.port == 0:
                event = json.loads(await process.stderr.readline())
                self.port = event.get("port", 0)
            logs = asyncio.ensure_future(self._logs(process.stderr))
            requests = iter(range(options.requests))
            await asyncio.gather(*(self._client(requests, process.pid) for _ in range(options.clients)))
            await self._settle()
            self._look(process.pid)
            process.send_signal(signal.SIGTERM)
            status = await asyncio.wait_for(process.wait(), HANG_SECONDS)
            await logs
        finally:
            if process.returncode is None:
                process.kill()
        if status != 0:
            self.wrong.append(f"the server ended with status {status}")
        return self._record(time.monotonic() - began)

    async def _client(self, numbers: Any, server: int) -> None:
        """Send requests, one after the other."""
        for number in numbers:
            draw = random.Random(f"{self.options.seed}:{number}")
            kind = draw.choices(KINDS, WEIGHTS)[0]
            asked = generation(self.options.seed, draw.randrange(self.options.distinct), LONGEST)
            while await self._send(number, kind, asked, draw) in AGAIN:
                await asyncio.sleep(AGAIN_SECONDS)
            self.done += 1
            await self._events(server)

    async def _send(self, number: int, kind: str, asked: Generation, draw: random.Random) -> str:
        """Send a request and look at its response; returns what it counts as."""
        kills, down = self.kills, self.down
        try:
            response = await asyncio.wait_for(send(self.port, kind, asked, draw), HANG_SECONDS)
        except Exception as error:
            response = Response(-1, error=repr(error))
        return self._check(number, kind, asked, response, disturbed=down or self.kills != kills)

    def _check(self, number: int, kind: str, asked: Generation, response: Response, *, disturbed: bool) -> str:
        """Count a response, and say what is wrong with it."""
        if kind == "bad":
            fine, name = response.status in (400, 413, 422), "bad"
        elif response.status == 0:
            fine, name = True, kind
        elif response.status == 503 and response.error == "queue_full":
            fine, name = True, "queue_full"
        elif response.status == 503 and response.error == "engine_restarting":
            fine, name = disturbed, "restarting"
        elif response.status == 200 and response.whole:
            fine, name = response.text == self.expected[asked], kind
        else:
            fine, name = disturbed, "engine_killed"
        self.seen[name] += 1
        if not fine:
            self.wrong.append(f"request {number}, {kind}: {response}")
        return name

    async def _events(self, server: int) -> None:
        """What happens when so many requests are done: kills in the first half, looks at the memory in the second."""
        requests, kills = self.options.requests, self.options.kills
        if not self.down and self.kills < kills and self.done >= (self.kills + 1) * requests // (2 * (kills + 1)):
            self.kills, self.down = self.kills + 1, True
            self.restarted.clear()
            os.kill(worker_of(server), signal.SIGKILL)
            await asyncio.wait_for(self.restarted.wait(), HANG_SECONDS)
        if not self.down and 2 * self.done >= requests and self.done % max(1, requests // 20) == 0:
            self._look(server)

    def _look(self, server: int) -> None:
        """Note the memory of both processes."""
        for name, number in (("server", server), ("engine", worker_of(server))):
            self.memory.setdefault(name, []).append(resident_mb(number))

    async def _logs(self, lines: asyncio.StreamReader) -> None:
        """Follow the server's log."""
        while line := await lines.readline():
            try:
                event = json.loads(line)
            except ValueError:  # a traceback of either process
                self.wrong.append(line.decode(errors="replace"))
                continue
            if event["event"] == "restarted":
                self.down = False
                self.restarted.set()
            elif event["event"] == "internal_error":
                self.wrong.append(line.decode())

    async def _settle(self) -> None:
        """Wait until the server has forgotten clients that left; then nothing may be in use."""
        end = time.monotonic() + HANG_SECONDS
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while any(values := [await asyncio.to_thread(gauge, self.port, name) for name in names]):
            if time.monotonic() > end:
                self.wrong.append(f"left at the end: {dict(zip(names, values, strict=True))}")
                return
            await asyncio.sleep(0.05)
        counters = {
            "prefix_tokens_found": "prefix_cache_hits_total", "guesses": "spec_decode_num_draft_tokens_total",
            "right_guesses": "spec_decode_num_accepted_tokens_total",
        }  # fmt: skip
        for name, counter in counters.items():
            self.seen[name] = int(await asyncio.to_thread(gauge, self.port, counter))

    def _record(self, seconds: float) -> dict[str, Any]:
        grown = {name: max(looks) - looks[0] for name, looks in self.memory.items()}
        self.wrong += [f"the {name}'s memory grew by {more:.1f} MB" for name, more in grown.items() if more > GROWTH_MB]
        hits, guessed, right = (self.seen.pop(name, 0) for name in ("prefix_tokens_found", "guesses", "right_guesses"))
        if self.options.speculate is not None and not 0 < right < guessed:
            self.wrong.append(f"{right} of {guessed} guesses were right, which is no test of guesses")
        if self.kills != self.options.kills:
            self.wrong.append(f"the engine was killed {self.kills} times, not {self.options.kills}")
        return {
            "requests": self.done, "clients": self.options.clients, "rows": self.options.rows, "pages": self.options.pages,
            "responses": dict(sorted(self.seen.items())), "prefix_tokens_found": hits, "kills": self.kills,
            "scripted": self.options.scripted, "speculate": self.options.speculate, "guesses": guessed, "right_guesses": right,
            "grown_mb": {name: round(more, 1) for name, more in grown.items()}, "seconds": round(seconds, 1),
            "wrong": self.wrong[:20], "ok": not self.wrong and self.done == self.options.requests,
        }  # fmt: skip


def worker_of(server: int) -> int:
    """The process of the engine."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
    commands = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    return next(int(one) for one, command in commands.items() if b"serving.worker" in command or b"scripted_engine" in command)


def resident_mb(number: int) -> float:
    """Memory of a process that is not shared with files."""
    pages = Path(f"/proc/{number}/statm").read_text(encoding="ascii").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


def gauge(port: int, name: str) -> float:
    """A metric of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_SECONDS) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def report(record: dict[str, Any]) -> list[str]:
    """The tables."""
    rows = [(name, value) for name, value in record.items() if value is not None and not isinstance(value, dict | list)]
    rows += [(f"memory of the {name}, MB more", value) for name, value in record["grown_mb"].items()]
    lines = ["# The server under requests of all kinds, on the interpreter", "", *grid(("run", ""), rows), ""]
    lines += grid(("responses", ""), list(record["responses"].items()))
    lines += ["", *(f"- {one}" for one in record["wrong"])]
    if (guessing := record.get("guessing")) is not None:
        rows = [(name, value) for name, value in guessing.items() if value is not None and not isinstance(value, dict | list)]
        lines += ["", "A second server, which guesses next tokens:", "", *grid(("run", ""), rows)]
        lines += ["", *(f"- {one}" for one in guessing["wrong"])]
    return lines
