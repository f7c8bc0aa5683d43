"""Guesses of next tokens from a request's own text: the same tokens as without, and how fast, on this machine's GPU.

    python3 ci/bench/engine.py speculation artifacts/bundles/qwen3-4b-sm_90a.bundle FOLDER [--rows 1,8] [--guesses 4]

FOLDER has config and tokenizer; weights are random ones. An engine without guesses and then one with them get the same greedy
requests, all rows at once: prompts that repeat a passage, and prompts of random tokens. Tokens per second are of all requests
together, from the last first token to the end; median of `RUNS` runs after a short one. How often a guess is right depends on
the text. Models with random weights soon repeat themselves, so the first kind shows what guesses bring at most, and the
second what they cost where none is right.

Exit status 1 if a token differs, or if no guess was right in the text that repeats itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.serving.client import EngineClient, Watcher
from engine.serving.options import CHUNK_TOKENS
from engine.serving.protocol import Load, Report, Submit

RUNS: Final = 3
PROMPT: Final = 512
PASSAGE: Final = 64
"""Tokens that a prompt of the kind `repeats` says again and again."""
TOKENS: Final = 256
"""Of each generation."""
LONGEST: Final = 1024
MOST_WAITING: Final = 1000


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="1,8", help="requests at a time")
    parser.add_argument("--guesses", type=int, default=4, help="of each request in a step, at most")
    parser.add_argument("--seed", type=int, default=5)


def measure(options: argparse.Namespace) -> Outcome:
    """Time an engine without guesses, then one with them."""
    rows = [int(number) for number in names(options.rows)]
    load = Load(
        model=str(options.folder), backend="cuda", rows=max(rows) * (options.guesses + 1), max_seq_len=LONGEST,
        chunk_tokens=CHUNK_TOKENS, bundle=str(options.bundle.resolve()), dummy=0,
    )  # fmt: skip
    vocabulary = json.loads((options.folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    prompts = {many: texts(many, vocabulary, options.seed) for many in rows}
    found = {guesses: asyncio.run(of_engine(load, guesses, prompts)) for guesses in (0, options.guesses)}
    record = compared(found[0], found[options.guesses]) | {"guesses": options.guesses}
    return Outcome(record, {"speculation.md": page(report(record))}, int(bool(record["faults"])))


def texts(rows: int, vocabulary: int, seed: int, prompt: int = PROMPT, passage: int = PASSAGE) -> dict[str, list[list[int]]]:
    """Prompts by kind."""
    draw = np.random.default_rng(seed)
    again = [draw.integers(0, vocabulary, passage).tolist() * (prompt // passage) for _ in range(rows)]
    return {"repeats": again, "random": draw.integers(0, vocabulary, (rows, prompt)).tolist()}


class Counting(Watcher):
    """How many guesses there were, and how many were right."""

    def __init__(self) -> None:
        self.made, self.right = 0, 0

    def reported(self, report: Report) -> None:
        """Count the guesses of an iteration."""
        if report.guessed:
            self.made += report.guessed[1]
            self.right += sum(report.guessed[2:])


async def of_engine(
    load: Load, guesses: int, prompts: Mapping[int, Mapping[str, Sequence[list[int]]]], tokens: int = TOKENS, runs: int = RUNS
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """For each number of rows and kind of text: the tokens of each request, and tokens per second."""
    watcher = Counting()
    client = EngineClient(MOST_WAITING, watcher)
    record: dict[str, dict[str, Any]] = {}
    try:
        await client.start(msgspec.structs.replace(load, guesses=guesses))
        for many, kinds in prompts.items():
            for kind, asked in kinds.items():
                await generated(client, asked, 8)
                watcher.made = watcher.right = 0
                all_runs = [await generated(client, asked, tokens) for _ in range(runs)]
                record[f"{many} {kind}"] = {
                    "tokens": all_runs[0][0], "tok_s": round(statistics.median(speed for _, speed in all_runs), 1),
                    "same": all(found == all_runs[0][0] for found, _ in all_runs),
                    "guesses": watcher.made, "right": watcher.right,
                }  # fmt: skip
                about = {key: value for key, value in record[f"{many} {kind}"].items() if key != "tokens"}
                print(guesses, many, kind, json.dumps(about), file=sys.stderr, flush=True)
    finally:
        await client.stop()
    return record


async def generated(client: EngineClient, asked: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], float]:
    """The tokens of requests that are served together, and how many of them came each second once all had one."""
    clock = asyncio.get_running_loop().time
    found: list[list[int]] = [[] for _ in asked]
    ended, began, before = 0, 0.0, 0
    async with client.submit([Submit(0, ids, tokens) for ids in asked]) as generations:
        while ended < len(asked):
            for arrival in await generations.arrivals():
                found[arrival.index] += arrival.tokens
                ended += arrival.ended is not None
            if not began and all(found):
                began, before = clock(), sum(map(len, found))
    return found, (sum(map(len, found)) - before) / max(clock() - began, 1e-9)


def compared(without: Mapping[str, Mapping[str, Any]], guessing: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of both engines, and what is wrong."""
    texts, faults = dict[str, Any](), list[str]()
    for name, plain in without.items():
        mine = guessing[name]
        if plain["tokens"] != mine["tokens"] or not (plain["same"] and mine["same"]):
            faults.append(f"{name}: tokens differ")
        if name.endswith(" repeats") and not mine["right"]:
            faults.append(f"{name}: no guess was right")
        texts[name] = {
            "tok_s": plain["tok_s"], "guessing_tok_s": mine["tok_s"], "ratio": round(mine["tok_s"] / plain["tok_s"], 2),
            "guesses": mine["guesses"], "right": mine["right"],
        }  # fmt: skip
    return {"texts": texts, "faults": faults}


def report(record: Mapping[str, Any]) -> list[str]:
    """The page."""
    rows: list[tuple[object, ...]] = []
    for name, found in record["texts"].items():
        many, kind = name.split()
        share = f"{found['right'] / found['guesses']:.2f}" if found["guesses"] else ""
        rows.append((many, kind, f"{found['tok_s']:.0f}", f"{found['guessing_tok_s']:.0f}", found["ratio"], share))
    header = ("requests at a time", "text", "tok/s", f"with up to {record['guesses']} guesses", "ratio", "of the guesses right")
    return [
        f"# Guesses of next tokens: generations of {TOKENS} tokens after {PROMPT}, random weights", "",
        *grid(header, rows, left=2), "",
        f"Checked is that both engines give the same tokens: {'; '.join(record['faults']) or 'they do'}.",
    ]  # fmt: skip
