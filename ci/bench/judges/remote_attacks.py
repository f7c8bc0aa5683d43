"""Attacks on data from other machines, at random: registries and caches through a tampering proxy, a shared folder, a farm.

`judges.py remote_attacks` makes 2,000 attempts by a seed, all on the loopback, and writes
`ci/bench/results/remote_attacks.md` and `.json`. Each must end with the correct data bit for bit, or with a refusal of its kind
(`tests/fuzz/remote_attacks.py`); status 1 for any other outcome.
"""

from __future__ import annotations

import argparse
from typing import Any

from ci.bench.front import Outcome, earlier
from tests.fuzz import remote_attacks


def table(result: dict[str, Any]) -> str:
    """The result as a readable table."""
    lines = ["# Attacks on what comes from other machines", ""]
    lines += ["`judges.py remote_attacks`. Bytes of answers are changed on the wire, entries of a folder and answers of a"]
    lines += [
        "farm's workers in place. What was asked for is right to the last bit, refused, or made here; other ends must be 0.",
        "",
    ]
    lines += ["| attacked | how | tried | right | refused, or made here | other ends |", "|---|---|--:|--:|--:|--:|"]
    bad: list[str] = []
    total = 0
    for name, rows in result["attacks"].items():
        for kind, row in rows.items():
            right = row["ends"].get("right", 0)
            rest = sum(row["ends"].values()) - right
            total += row["tried"]
            lines.append(f"| {name} | {kind} | {row['tried']} | {right} | {rest} | {len(row['wrong'])} |")
            bad += [f"- {name}, {kind}, `{text}`" for text in row["wrong"]]
    lines += ["", f"{total} attempts, {len(bad)} other ends."]
    return "\n".join([*lines, *(["", "## Went wrong", ""] if bad else []), *bad[:50]]) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", action="append", default=[], help="results of the others are kept")


def measure(options: argparse.Namespace) -> Outcome:
    """Run the campaign; status 1 if anything went wrong."""
    result = remote_attacks.campaign(options.count, options.seed, options.part)
    if options.part:
        result["attacks"] = earlier(options).get("attacks", {}) | result["attacks"]
    wrong = any(row["wrong"] for rows in result["attacks"].values() for row in rows.values())
    return Outcome(result, {"remote_attacks.md": table(result)}, int(wrong), whole=not options.part)
