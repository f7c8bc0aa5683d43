"""Requests that arrive at random, what their clients see, and its percentiles: the same for every engine that is measured.

Arrivals, lengths and tokens follow from a seed alone, and a digest says whether two runs had the same ones. Only the standard
library is needed, since the engines that are compared live in environments of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PERCENTILES: Final = (50, 95, 99)
AT_ONCE: Final = "at once"
"""The name of a load whose requests all arrive at its begin."""
SHARED: Final = 2048
"""Tokens with which both prompts of a pair begin."""
REST: Final = 16
"""Tokens of each prompt of a pair after these."""
PAIR_OUTPUTS: Final = 4


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts, whose logarithms are uniform, and of generations, which are uniform; both ends included. `tokens`:
    the first token that a prompt may have, and the first that it may not."""

    prompts: tuple[int, int] = (128, 8192)
    outputs: tuple[int, int] = (32, 256)
    tokens: tuple[int, int] = (100, 150_000)

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its generation together."""
        return self.prompts[1] + self.outputs[1]


LENGTHS: Final = Lengths()
SHORT: Final = Lengths((16, 64), (64, 96))
"""Of requests that run before anything is measured: as many as there are rows decode together."""


def options_of_traffic(parser: argparse.ArgumentParser) -> None:
    """The options that decide which requests arrive."""
    parser.add_argument("--rates", default="4,8,16", help="requests a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of arrivals at each rate")
    parser.add_argument("--burst", type=int, default=128, help="requests that arrive at once; 0: no such load")
    parser.add_argument("--pairs", type=int, default=8, help="of prompts that begin alike")
    parser.add_argument("--seed", type=int, default=1)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: seconds after the begin at which it arrives, its prompt, and how many tokens it generates."""

    at: float
    ids: tuple[int, ...]
    most: int


@dataclass(slots=True)
class Seen:
    """What the client of a request sees: when it was sent, and when each of its tokens came, in seconds after the load's
    begin."""

    asked: Asked
    sent: float = 0.0
    times: list[float] = field(default_factory=list[float])

    @property
    def to_first(self) -> float:
        """Seconds from the arrival, however late it was sent, to the first token."""
        return self.times[0] - self.asked.at

    @property
    def per_token(self) -> float | None:
        """Mean seconds of a token after the first; None if there is no other."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None


def arrivals(rate: float, seconds: float, seed: int, lengths: Lengths = LENGTHS) -> list[Asked]:
    """Requests that arrive within so many seconds as a Poisson process of `rate` a second, in their order."""
    draw, at, found = random.Random(f"{seed}/{rate}"), 0.0, list[Asked]()
    while (at := at + draw.expovariate(rate)) < seconds:
        found.append(_request(draw, at, lengths))
    return found


def at_once(count: int, seed: int, lengths: Lengths = LENGTHS) -> list[Asked]:
    """So many requests that arrive together."""
    draw = random.Random(f"{seed}/at once")
    return [_request(draw, 0.0, lengths) for _ in range(count)]


def random_ids(name: str, count: int, lengths: Lengths) -> tuple[int, ...]:
    """So many tokens, which depend on a name."""
    return tuple(random.Random(name).choices(range(*lengths.tokens), k=count))


def _request(draw: random.Random, at: float, lengths: Lengths) -> Asked:
    first, last = lengths.prompts
    count = min(last, int(math.exp(draw.uniform(math.log(first), math.log(last + 1)))))
    return Asked(at, tuple(draw.choices(range(*lengths.tokens), k=count)), draw.randint(*lengths.outputs))


def digest(asked: Sequence[Asked]) -> str:
    """A name of requests that others have only if they are the same."""
    text = ";".join(f"{one.at!r},{one.most},{','.join(map(str, one.ids))}" for one in asked)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` percent of them are, between two of them in proportion (NumPy's default)."""
    ordered = sorted(values)
    index = (len(ordered) - 1) * share / 100
    below = math.floor(index)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (index - below)


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """The percentiles of seconds, and the longest, in milliseconds."""
    found = {f"p{share}": round(1e3 * percentile(values, share), 3) for share in PERCENTILES}
    return found | {"most": round(1e3 * max(values), 3)}


def summary(seen: Sequence[Seen]) -> dict[str, Any]:
    """What a load showed. Seconds are from the first arrival to the last token. `late_ms`: the longest time by which a request
    was sent after its arrival. `gap`: times between two tokens of a request, all of them. ValueError if a request did not get
    all of its tokens."""
    for one in seen:
        if len(one.times) != one.asked.most:
            raise ValueError(f"a request for {one.asked.most} tokens got {len(one.times)}")
    seconds = max(one.times[-1] for one in seen) - min(one.asked.at for one in seen)
    prompts, outputs = sum(len(one.asked.ids) for one in seen), sum(one.asked.most for one in seen)
    gaps = [after - before for one in seen for before, after in zip(one.times, one.times[1:], strict=False)]
    return {
        "requests": len(seen), "requests_digest": digest([one.asked for one in seen]),
        "seconds": round(seconds, 3), "prompt_tokens": prompts, "output_tokens": outputs,
        "requests_s": round(len(seen) / seconds, 3), "output_tok_s": round(outputs / seconds, 1),
        "all_tok_s": round((prompts + outputs) / seconds, 1), "most_together": most_together(seen),
        "late_ms": round(1e3 * max(one.sent - one.asked.at for one in seen), 3),
        "first_ms": milliseconds([one.to_first for one in seen]),
        "per_token_ms": milliseconds([each for one in seen if (each := one.per_token) is not None]),
        "gap_ms": milliseconds(gaps),
    }  # fmt: skip


def most_together(seen: Sequence[Seen]) -> int:
    """The most requests that had arrived and not ended at one time."""
    changes = sorted([(one.times[-1], -1) for one in seen] + [(one.asked.at, 1) for one in seen])
    count = most = 0
    for _, change in changes:
        count += change
        most = max(most, count)
    return most


def loads(options: argparse.Namespace, lengths: Lengths = LENGTHS) -> dict[str, list[Asked]]:
    """The loads of a run by their names: one of each rate, and one of requests that arrive together, if there are some."""
    rates = [float(rate) for rate in options.rates.split(",") if rate]
    found = {f"{rate:g}": arrivals(rate, options.seconds, options.seed, lengths) for rate in rates}
    return found | ({AT_ONCE: at_once(options.burst, options.seed, lengths)} if options.burst else {})


def before(rows: int, seed: int, lengths: Lengths = LENGTHS, short: Lengths = SHORT) -> list[list[Asked]]:
    """Loads that run before any is measured: as many short requests as there are rows, and some of all lengths."""
    return [at_once(rows, seed, short), at_once(min(rows, 8), seed + 1, lengths)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts that begin alike: of the second one, the first `shared` tokens are found."""

    first: tuple[int, ...]
    second: tuple[int, ...]


def pairs(count: int, seed: int, shared: int = SHARED, lengths: Lengths = LENGTHS) -> list[Pair]:
    """Pairs of prompts with `shared` equal tokens and others after them; no two pairs begin alike."""
    found: list[Pair] = []
    for number in range(count):
        begin = random_ids(f"{seed}/prefix/{number}", shared, lengths)
        found.append(Pair(*(begin + random_ids(f"{seed}/{number}/{which}", REST, lengths) for which in (0, 1))))
    return found


def prefix_summary(times: Mapping[str, Sequence[float]], found: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Times to the first token of prompts whose begin was new, and was found; `tokens_found` of each kind, which are to be the
    same in every pair."""
    return {kind: {"first_ms": milliseconds(values), "tokens_found": sorted({*found[kind]})} for kind, values in times.items()}
