"""What `serving_load` would show with other options, by simulation: the engine's loop on rows that take modelled times.

    python ci/bench/engine.py load_simulation [--chunk-tokens 2048,4096] [--rates 4,8,16] [--seconds 12] [--seed 1]

Loop, scheduler and arrivals are the real ones. The device runs launches one after the other, while the host goes on until it
waits for tokens. Costs of launches are fitted to `serving_check.json`, and those of the host are near what `serving_host`
measures. The first lines are the recorded run, next to which its setting has to be believed before the others are.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from ci.bench.engine.load_traffic import LENGTHS, Asked, Seen, loads, options_of_traffic, summary
from ci.bench.engine.serving_host import Backend
from ci.evidence import RESULTS
from engine.errors import EngineError
from engine.launch_limits import LaunchLimits
from engine.paged_prompts import Piece
from engine.sampling import Logprobs
from engine.serving.loop import EngineLoop
from engine.serving.pool import Pool
from engine.serving.protocol import Report, Submit
from tilec.step.step import BUCKETS

MODEL: Final = "qwen3-4b"
LAUNCH_TOKENS: Final = 2048
LIMITS: Final = LaunchLimits(LAUNCH_TOKENS, 8, 2 * LENGTHS.longest, 128)
TILE: Final = 64
"""Tokens of a launch are a multiple of that."""
CACHE_SECONDS: Final = 147_456 / 4.0e12
"""Of a step for each token in the caches of its rows: bytes of all layers, at the rate that attention reaches."""
CONTEXT: Final = 576
"""Tokens of a row in `serving_check`, on average."""
SECONDS: Final[Mapping[str, float]] = {"submit": 0.16e-3, "step": 0.15e-3, "joined": 0.3e-3, "launch": 1.5e-3, "read": 0.1e-3}
"""Of the host: taking a request; enqueueing a step, and more of it after a row joined; enqueueing prompts; reading tokens."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the device: of a launch, of each of its tokens, of each pair of a token and one before it; of a step in each
    bucket, without its caches."""

    launch: float
    token: float
    pair: float
    steps: Mapping[int, float]

    @classmethod
    def fitted(cls, record: Mapping[str, Any]) -> Costs:
        """Those of what `serving_check` recorded of a model: its prompts of three lengths and its steps of four buckets."""
        rows, times = list[list[float]](), list[float]()
        for tokens in (512, LAUNCH_TOKENS, 4 * LAUNCH_TOKENS):
            rows.append([-(-tokens // LAUNCH_TOKENS), tokens, tokens**2 / 2])
            times.append(record["prefill_ms"][str(tokens)]["pages"] / 1e3)
        launch, token, pair = np.linalg.solve(np.array(rows), np.array(times)).tolist()
        measured = {int(rows): int(rows) / each["greedy"] for rows, each in record["tok_s"].items()}
        alone = {rows: seconds - CACHE_SECONDS * rows * CONTEXT for rows, seconds in measured.items()}
        known = sorted(alone)
        steps = {bucket: float(np.interp(bucket, known, [alone[rows] for rows in known])) for bucket in BUCKETS}
        return cls(launch, token, pair, steps)

    def of_prompts(self, pieces: Sequence[Piece]) -> float:
        """Of one launch."""
        tokens = sum(len(piece.ids) for piece in pieces)
        pairs = sum(len(piece.ids) * (piece.first + len(piece.ids) / 2) for piece in pieces)
        return self.launch + self.token * -(-tokens // TILE) * TILE + self.pair * pairs

    def of_step(self, rows: int, context: int) -> float:
        """Of a step in the bucket of a number of rows, whose caches have `context` tokens."""
        return self.steps[next(bucket for bucket in BUCKETS if rows <= bucket)] + CACHE_SECONDS * context


class ModelledRows:
    """`Rows` whose tokens are all 5, and whose time is `now`, the host's; `free`: when the device has done what is enqueued."""

    limits = LIMITS

    def __init__(self, costs: Costs) -> None:
        self._costs, self.now, self.free = costs, 0.0, 0.0
        self.logprobs: dict[int, Logprobs] = {}
        self._lengths: dict[int, list[int]] = {}  # of each row, in a list of its sequence's own
        self._joined = False
        self._flying: deque[tuple[float, dict[int, list[int]]]] = deque()

    def prepare(self) -> bool:
        """All lengths are prepared."""
        return False

    def compute(self, pieces: Sequence[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        """As of `Rows`; the host waits if a prompt ends."""
        self._enqueue("launch", self._costs.of_prompts(pieces))
        done = self.free
        if meanwhile is not None:
            meanwhile()
        ending = {piece.row: [piece.first + len(piece.ids)] for piece in pieces if piece.row is not None}
        if ending:
            self.now = max(self.now, done) + SECONDS["read"] + SECONDS["joined"] * len(ending)
            self._lengths |= ending
            self._joined = True
        return [None if piece.row is None else 5 for piece in pieces]

    @property
    def ahead(self) -> bool:
        """Whether steps are enqueued."""
        return bool(self._flying)

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """As of `Rows`."""
        found: dict[int, int] = {}
        while not found:
            self.enqueue()
            if ahead and len(self._flying) == 1:
                self._launch()
            found = self.enqueued()
        return found

    def enqueue(self) -> bool:
        """As of `Rows`."""
        if not self._flying:
            self._launch()
        return True

    def enqueued(self) -> dict[int, int]:
        """As of `Rows`."""
        done, rows = self._flying.popleft()
        self.now = max(self.now, done) + SECONDS["read"]
        return {row: 5 for row, length in rows.items() if self._lengths.get(row) is length}

    def verify(self, guesses: Mapping[int, Sequence[int]], spare: Sequence[int]) -> dict[int, list[int]]:
        """Nothing is guessed."""
        raise NotImplementedError

    def remove(self, row: int) -> None:
        """As of `Rows`."""
        del self._lengths[row]

    def close(self) -> None:
        """Nothing is open."""

    def _launch(self) -> None:
        if self._joined:  # tokens of rows that joined come from the host, which has to know all others
            self.now = max([self.now, *(done for done, _ in self._flying)]) + SECONDS["joined"]
            self._joined = False
        self._enqueue("step", self._costs.of_step(max(self._lengths) + 1, sum(length[0] for length in self._lengths.values())))
        self._flying.append((self.free, dict(self._lengths)))
        for length in self._lengths.values():
            length[0] += 1

    def _enqueue(self, what: str, seconds: float) -> None:
        self.now += SECONDS[what]
        self.free = max(self.free, self.now) + seconds


class _Backend(Backend):
    chunk_tokens = LAUNCH_TOKENS


def simulated(asked: Sequence[Asked], costs: Costs, chunk_tokens: int, rows: int = 256, pages: int = 14_888) -> list[Seen]:
    """What the clients of requests see, which may not begin alike: their prompts have one token each here."""
    on, seen = ModelledRows(costs), [Seen(one, one.at) for one in asked]

    def take(report: Report) -> None:
        for number, _ in report.each():
            seen[number].times.append(on.now)

    pool = Pool.empty(rows, pages, LENGTHS.longest, parking=4)
    loop = EngineLoop(cast("Any", _Backend()), (on, pool), chunk_tokens, early=take)
    waiting = deque(enumerate(asked))
    while waiting or not loop.idle:
        if loop.idle:
            on.now = max(on.now, waiting[0][1].at)
        while waiting and waiting[0][1].at <= on.now:
            number, one = waiting.popleft()
            on.now += SECONDS["submit"]
            loop.submit(Submit(number, [number] * len(one.ids), one.most))
        take(loop.iteration())
    return seen


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--chunk-tokens", default="2048,4096,6144", help="tokens of prompts between two steps")
    parser.add_argument("--checked", type=Path, default=RESULTS / "serving_check.json", help="what costs are fitted to")
    parser.add_argument("--recorded", type=Path, default=RESULTS / "serving_load.json", help="what is printed first")
    options_of_traffic(parser)


def measure(options: argparse.Namespace) -> int:
    """Print a line for each load and number of tokens."""
    costs = Costs.fitted(json.loads(options.checked.read_text(encoding="utf-8"))[MODEL])
    recorded = json.loads(options.recorded.read_text(encoding="utf-8"))
    print(f"{'':16}{'load':8} served | first p50     p95     p99 | per token p50  p95  p99 | gap p95   p99  most")
    for name, found in recorded["loads"].items():
        print(line(f"recorded, {recorded['chunk_tokens']}", name, found))
    for chunk_tokens in map(int, options.chunk_tokens.split(",")):
        for name, asked in loads(options).items():
            print(line(f"simulated, {chunk_tokens}", name, summary(simulated(asked, costs, chunk_tokens))), flush=True)
    return 0


def line(what: str, load: str, found: Mapping[str, Any]) -> str:
    """A line of the table, in milliseconds."""
    first, each, gap = found["first_ms"], found["per_token_ms"], found["gap_ms"]
    return (
        f"{what:16}{load:8}{found['requests_s']:7.2f} |{first['p50']:10.1f}{first['p95']:8.1f}{first['p99']:8.1f} |"
        f"{each['p50']:14.1f}{each['p95']:5.1f}{each['p99']:5.1f} |{gap['p95']:8.1f}{gap['p99']:6.1f}{gap['most']:6.1f}"
    )
