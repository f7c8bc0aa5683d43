"""Alters a registry's responses, at random and by the families of `tests/registry/lies.py`, and counts the outcomes of pulls.

`judges.py registry_tampering` tries 6,000 random changes of one response, from a seed, and writes
`ci/bench/results/registry_tampering.md` and `.json`. Each pull must produce the pushed bundle bit for bit, or be refused with a
documented code and leave no files. Status 1 for any other outcome. The time of a family is bounded by its `Limits`, not by this
machine, and is not in the table.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome
from tests.registry.changes import CHANGES, attempt, stock
from tests.registry.server import Registry, served


def peak_mib() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def campaign(count: int, seed: int) -> dict[str, Any]:
    """Outcomes of `count` pulls in total, by kind of change."""
    found: dict[str, dict[str, Any]] = {name: {"tried": 0, "sound": 0, "refused": Counter(), "wrong": []} for name in CHANGES}
    registry, names = Registry(), list(CHANGES)
    with served(registry) as repository, tempfile.TemporaryDirectory() as folder:
        stock(repository)
        before = peak_mib()
        for number in range(count):
            name = names[number % len(names)]
            row = found[name]
            row["tried"] += 1
            try:
                code = attempt(registry, repository, CHANGES[name], seed * 1_000_003 + number, Path(folder) / "out")
            except Exception as error:  # no other exception may reach a user
                row["wrong"].append(f"{name}, {number}: {type(error).__name__}: {error}"[:300])
                continue
            row["refused" if code else "sound"] += Counter([code]) if code else 1
            registry.requests.clear()
    return {"seed": seed, "memory_growth_mib": round(peak_mib() - before, 1), "changes": found}


def table(result: dict[str, Any]) -> str:
    """The result as a readable table."""
    lines = ["# Tampering with a registry's answers", ""]
    lines += ["`judges.py registry_tampering`. Whatever one answer is changed to, a pull gives the bundle that was pushed"]
    lines += [
        "or is refused and leaves nothing; other ends must be 0. A change can be without effect, or repaired by asking again."
    ]
    lines += ["", "| what is changed | tried | refused | the sound bundle | other ends |", "|---|--:|--:|--:|--:|"]
    rows: dict[str, Any] = result["changes"]
    total = [0, 0, 0, 0]
    for name, row in rows.items():
        numbers = [row["tried"], sum(row["refused"].values()), row["sound"], len(row["wrong"])]
        total = [one + more for one, more in zip(total, numbers, strict=True)]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    lines += [
        f"| all | {' | '.join(map(str, total))} |",
        "",
        f"Memory grew by {result['memory_growth_mib']} MiB, the server's included.",
    ]
    bad = [text for row in rows.values() for text in row["wrong"]]
    return "\n".join([*lines, *(["", "## Went wrong", ""] if bad else []), *(f"- `{text}`" for text in bad[:50])]) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)


def measure(options: argparse.Namespace) -> Outcome:
    """Run the campaign; status 1 if anything went wrong."""
    result = campaign(options.count, options.seed)
    wrong = any(row["wrong"] for row in result["changes"].values())
    return Outcome(result, {"registry_tampering.md": table(result)}, int(wrong))
