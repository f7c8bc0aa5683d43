"""Microseconds of the host's work for an iteration of the serving loop, without a model: scheduler, pool, report.

    python3 ci/bench/engine.py serving_host [--rows 8,64,256] [--iterations 80] [--model FOLDER]

Rows give the same token at once. The pool is as large as that of a 4B model on a card of 141 GB. `decode`: an iteration that
computes a token of every row. `report`: its report as bytes. `ended`: a decode step with which one request of `--prompt` tokens
ends. `submit`: taking a request, with the keys of its pages. `admitted`: the chunk with which it begins, its pages taken from
prefixes of others. `found`: the same if all of its prefix is found. Medians. With the folder of a model: what a token of a row
under a JSON schema costs, its mask and the marks for the device, for tokens that are drawn at random. `HTTP`: what the server's
process takes of a processor for a token of a stream, and for a request besides its tokens (`http_host`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from engine.constraint import ConstrainedMarks
from engine.errors import EngineError
from engine.launch_limits import LaunchLimits
from engine.paged_prompts import Piece
from engine.sampling import Logprobs, SamplingParams
from engine.serving.constraints import Constraints
from engine.serving.grammar_compiler import Compiler
from engine.serving.grammars import grammar_of
from engine.serving.loop import EngineLoop
from engine.serving.pool import Pool
from engine.serving.protocol import Grammar, Report, Submit, encoded

PAGES: Final = 13000
LONGEST: Final = 40960


class Backend:
    """What the loop asks of a backend, without a check."""

    chunk_tokens = LONGEST

    def check_vocabulary(self, ids: Sequence[int]) -> None:
        """All are."""


class SameTokens:
    """Rows that give token 5. `ending` is a row that gives a stop token once."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.logprobs: dict[int, Logprobs] = {}
        self.ending: int | None = None

    limits = LaunchLimits(LONGEST, 8, 1 << 20, 128)

    def prepare(self) -> bool:
        """Nothing is left to make ready."""
        return False

    def compute(self, pieces: Sequence[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        """Token 5 of each prompt that ends."""
        self.tokens |= {piece.row: 5 for piece in pieces if piece.row is not None}
        return [None if piece.row is None else 5 for piece in pieces]

    @property
    def ahead(self) -> bool:
        """Nothing is enqueued."""
        return False

    def enqueue(self) -> bool:
        """Steps are waited for."""
        return False

    def enqueued(self) -> dict[int, int]:
        """No step ever is."""
        raise AssertionError

    def verify(self, guesses: Mapping[int, Sequence[int]], spare: Sequence[int]) -> dict[int, list[int]]:
        """Token 5 of each row, and as many more as guesses of it are right."""
        right = {row: next((at for at, one in enumerate(its) if one != 5), len(its)) for row, its in guesses.items()}
        return {row: [token] * (1 + right.get(row, 0)) for row, token in self.step().items()}

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """Token 5 of each row."""
        found, ending, self.ending = dict(self.tokens), self.ending, None
        return found if ending is None else found | {ending: 1}

    def remove(self, row: int) -> None:
        """End a row."""
        del self.tokens[row]

    def close(self) -> None:
        """Nothing."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--rows", default="8,64,256")
    parser.add_argument("--iterations", type=int, default=80)  # of 256 rows none then decodes its 1024 tokens
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--http-tokens", type=int, default=40, help="of each stream over HTTP; 0: no streams")
    parser.add_argument("--model", metavar="FOLDER", help="whose tokenizer grammars have")


def measure(options: argparse.Namespace) -> Outcome:
    """Measure each number of rows."""
    record = {rows: of_rows(int(rows), options.iterations, options.prompt) for rows in options.rows.split(",")}
    table = table_of(record)
    lines = [
        "# The host's work for an iteration of the serving loop",
        "",
        "Medians in microseconds, without a model.",
        "",
        *table,
    ]
    http: dict[str, dict[str, float]] = {}
    if options.http_tokens:
        of_http = importlib.import_module("ci.bench.engine.http_host").of_http  # whose engine is made of this module
        http = {rows: of_http(int(rows), options.http_tokens) for rows in options.rows.split(",")}
        lines += ["", "The server's process over HTTP, microseconds of a processor:", "", *table_of(http, ".1f")]
    constrained = of_grammar(options.model, options.iterations) if options.model else {}
    if constrained:
        lines += [
            "",
            "A token under a JSON schema:",
            "",
            *grid(("", ""), [(name, f"{one:.0f}") for name, one in constrained.items()]),
        ]
    found = {"prompt": options.prompt, "microseconds": record, "http": http, "constrained_microseconds": constrained}
    return Outcome(found, {"serving_host.md": page(lines)})


def table_of(record: Mapping[str, Mapping[str, float]], digits: str = ".0f") -> list[str]:
    """A row of figures for each number of rows."""
    names = list(next(iter(record.values())))
    return grid(
        ("rows", *(name.replace("_", " ") for name in names)),
        [(rows, *(format(found[name], digits) for name in names)) for rows, found in record.items()],
    )


ADDRESS: Final[dict[str, Any]] = {
    "type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "zip"],
}  # fmt: skip
SCHEMA: Final[dict[str, Any]] = {
    "type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
        "address": ADDRESS,
    }, "required": ["name", "age", "tags", "address"], "additionalProperties": False,
}  # fmt: skip


def of_grammar(model: str, tokens: int) -> dict[str, float]:
    """Microseconds of a token under a schema, with the tokenizer of a model folder."""
    vocabulary = max(json.loads((Path(model) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"].values()) + 300
    draw, seconds = random.Random(1), dict[str, list[float]](mask=[], marks=[])
    made = grammar_of(("form", "json", SCHEMA), Compiler(model, vocabulary, [vocabulary - 1]).made)
    grammars, asked = Constraints(model, vocabulary, [vocabulary - 1]), Grammar(made)
    start = time.perf_counter()
    grammars.begin(asked).result()
    first = time.perf_counter() - start
    while len(seconds["mask"]) < tokens:
        constraint = grammars.begin(asked).result()
        marks = ConstrainedMarks(constraint, SamplingParams(masked=True), (), vocabulary)
        while not constraint.ended and len(seconds["mask"]) < tokens:
            token = draw.choice(constraint.allowed().nonzero()[0].tolist())
            start = time.perf_counter()
            marks.accept(token)
            middle = time.perf_counter()
            marks.next()
            seconds["mask"].append(middle - start)
            seconds["marks"].append(time.perf_counter() - middle)
    grammars.close()
    found = {name: statistics.median(each) * 1e6 for name, each in seconds.items()}
    return found | {"mask, p95": statistics.quantiles(seconds["mask"], n=20)[-1] * 1e6, "the first grammar": first * 1e6}


def of_rows(rows: int, iterations: int, prompt: int) -> dict[str, float]:
    """The medians for a number of rows."""
    batch, draw = SameTokens(), random.Random(1)
    loop = EngineLoop(cast(Any, Backend()), (batch, Pool.empty(rows, PAGES, LONGEST, parking=4)), LONGEST)
    seconds: dict[str, list[float]] = {name: [] for name in ("decode", "report", "ended", "submit", "admitted", "found")}
    numbers = iter(range(1 << 40))

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        seconds[name].append(time.perf_counter() - start)
        return found

    def begin(ids: list[int], name: str) -> None:
        """A request in its row."""
        asked = Submit(next(numbers), ids, 1024, [1, 2])
        timed("submit", lambda: loop.submit(asked))
        report = timed(name, loop.iteration)
        assert isinstance(report, Report) and report.prompt_tokens and asked.number in report.tokens

    def end() -> None:
        """A decode step that ends a request."""
        batch.ending = draw.choice(sorted(batch.tokens))
        report = timed("ended", loop.iteration)
        assert len(report.ended) == 1

    for _ in range(rows):
        begin([draw.randrange(1000) for _ in range(prompt)], "admitted")
        timed("decode", loop.iteration)
    seconds = {name: [] for name in seconds}
    for _ in range(iterations):
        timed("report", partial(encoded, timed("decode", loop.iteration)))
        end()
        ids = [draw.randrange(1000) for _ in range(prompt)]
        begin(ids, "admitted")
        end()
        begin(ids, "found")
    return {name: round(1e6 * statistics.median(found), 1) for name, found in seconds.items()}
