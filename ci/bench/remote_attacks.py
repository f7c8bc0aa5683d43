"""Attacks on data from other machines, at random: registries and caches behind a tampering proxy, a shared folder, a farm.

`python -P ci/bench/remote_attacks.py` makes 2,000 attempts by a seed, all on the loopback, and writes
`ci/bench/results/remote_attacks.md` and `.json`. Each must end with the correct data bit for bit, or with a refusal of its kind
(`tests/fuzz/remote_attacks.py`); status 1 for any other outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fuzz import remote_attacks  # noqa: E402

RESULTS: Final = ROOT / "ci" / "bench" / "results"


def table(result: dict[str, Any]) -> str:
    """The result as a readable table."""
    lines = ["# Attacks on what comes from other machines", ""]
    lines += [
        "`python -P ci/bench/remote_attacks.py`. Bytes of answers are changed on the wire, entries of a folder and answers of a"
    ]
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


def main() -> int:
    """Run the campaign; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = remote_attacks.campaign(options.count, options.seed, options.part)
    path = options.output / "remote_attacks.json"
    if options.part and path.is_file():  # results of the other parts are kept
        result["attacks"] = json.loads(path.read_text(encoding="utf-8"))["attacks"] | result["attacks"]
    options.output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.output / "remote_attacks.md").write_text(table(result), encoding="utf-8")
    print(table(result))
    return int(any(row["wrong"] for rows in result["attacks"].values() for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
