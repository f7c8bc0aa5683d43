"""The page of loads: a table of loads, one of prefixes, one of starts, each next to those of vLLM if they are there.

python3 -m ci.bench.engine.load_report serving_load.json vllm_load.json    the page of two files, to stdout
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.markdown import grid, page

Tree = Mapping[str, Any]

GOALS: Final = {"prefix_ms": 15.0, "start_seconds": 2.0}
OURS: Final = "ours"
HTTP: Final = "ours, over HTTP"
THEIRS: Final = "vLLM"
RATIO: Final = "ratio"
KINDS: Final = {"first_ms": ("p50", "p95", "p99"), "per_token_ms": ("p50", "p95", "p99"), "gap_ms": ("p99", "most")}
"""The times of a load's table, with their percentiles."""
RATES: Final = ("requests_s", "output_tok_s", "all_tok_s")


class OtherRequests(ValueError):
    """The requests of two runs are not the same, so their times are not compared."""


def report(record: Tree) -> list[str]:
    """The lines of the page."""
    theirs: Tree = record.get("vllm", {})
    lines = [f"# Requests that arrive at random: {record['model']}, random weights", ""]
    lines += [
        "Prompts of 128 to 8192 tokens, their logarithms uniform; generations of 32 to 256. Milliseconds; a first token counts",
        "from the arrival. A ratio above 1 is ours being better.",
        "",
    ]
    http: Tree = record.get("http", {})
    if http:
        lines += [
            f"Over HTTP the server's process took {http['server_us_of_a_token']:.0f} us of a processor for each token.",
            "",
        ]
    lines += [*load_table(record["loads"], theirs.get("loads", {}), http.get("loads", {})), ""]
    lines += [*prefix_table(record["prefixes"], theirs.get("prefixes", {}), http.get("prefixes", {})), ""]
    lines += start_table(record["start"]["runs"], theirs)
    lines += ["", *(f"- {one}" for one in record["faults"])]
    return lines


def load_table(ours: Tree, theirs: Tree, http: Tree) -> list[str]:
    """A row of each load, one of it over HTTP, one of vLLM's, and one of the ratios of vLLM's and the first."""
    header = ["requests a second", "", "requests", "together", *("served a second", "tok/s", "with prompts")]
    header += [f"{kind.removesuffix('_ms').replace('_', ' ')} {name}" for kind, each in KINDS.items() for name in each]
    rows: list[list[object]] = []
    for name, one in ours.items():
        rows.append([name, OURS, one["requests"], one["most_together"], *figures(one)])
        for side, others in ((HTTP, http), (THEIRS, theirs)):
            if name in others:
                other = others[name]
                if other["requests_digest"] != one["requests_digest"]:
                    raise OtherRequests(f"the load `{name}` of `{side}` had other requests: run both with the same options")
                rows.append([name, side, other["requests"], other["most_together"], *figures(other)])
        if name in theirs:
            rows.append([name, RATIO, "", "", *ratios(one, theirs[name])])
    return grid(header, rows, left=2)


def figures(one: Tree) -> list[str]:
    """The rates and times of a load."""
    times = [f"{one[kind][name]:.1f}" for kind, each in KINDS.items() for name in each]
    return [f"{one['requests_s']:.2f}", f"{one['output_tok_s']:.0f}", f"{one['all_tok_s']:.0f}", *times]


def ratios(ours: Tree, theirs: Tree) -> list[str]:
    """Of each figure, how much better ours is; empty where a time is 0, since its tokens came together."""
    pairs = [(ours[name], theirs[name]) for name in RATES]
    pairs += [(theirs[kind][name], ours[kind][name]) for kind, each in KINDS.items() for name in each]
    return [f"{above / below:.2f}" if above and below else "" for above, below in pairs]


def prefix_table(ours: Tree, theirs: Tree, http: Tree) -> list[str]:
    """First tokens of prompts whose begin was new, and was found."""
    rows: list[list[object]] = []
    for kind, one in ours.items():
        goal = GOALS["prefix_ms"] if kind == "found" else ""
        for engine, its in ((OURS, one), (HTTP, http.get(kind)), (THEIRS, theirs.get(kind))):
            if its is not None:
                times = [f"{its['first_ms'][name]:.2f}" for name in ("p50", "most")]
                rows.append([kind, engine, its["tokens_found"][0], *times, goal])
    return grid(("prefix", "", "tokens found", "first token p50", "most", "goal"), rows, left=2)


def start_table(runs: Sequence[Tree], theirs: Tree) -> list[str]:
    """Seconds of servers that were started, and of vLLM's engine until it was ready."""
    rows: list[list[object]] = []
    for key in runs[0] if runs else ():
        values = [run[key] for run in runs]
        goal = GOALS["start_seconds"] if key == "first_text" else ""
        rows.append(
            [key.replace("_", " "), *(f"{one:.2f}" for one in (min(values), statistics.median(values), max(values))), goal]
        )
    if "start_seconds" in theirs:
        rows.append([f"{THEIRS}'s engine, ready", *[f"{theirs['start_seconds']:.1f}"] * 3, ""])
    return grid(("start, seconds", "best", "median", "worst", "goal"), rows)


if __name__ == "__main__":
    mine, its = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    print(page(report(mine | {"vllm": its})), end="")
