"""Judges every mutant of every shipped kernel: refused, or verified to be in bounds and race-free over all blocks.

    python3 ci/bench/mutations.py [--only add,matmul] [--jobs 2] [--out FOLDER]

Writes `mutations.json` and `mutations.md`, prints the table; exit code 1 if the interpreter refutes an accepted mutant.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import Result  # noqa: E402
from tests import shipped  # noqa: E402
from tests.mutation.generate import Mutant, mutants  # noqa: E402
from tests.mutation.judge import judge  # noqa: E402

OUTCOMES: Final = ("equivalent", "refused", "right", "safe", "unjudged", "false accept")


def checked(mutant: Mutant) -> dict[str, Any]:
    """The verdict as data."""
    verdict = judge(mutant)
    return {
        "kernel": mutant.kernel, "kind": mutant.kind, "what": mutant.what, "outcome": verdict.outcome,
        "codes": list(verdict.codes), "counterexample": verdict.counterexample, "problems": verdict.problems[:3],
    }  # fmt: skip


def main() -> int:
    """Judge all, write the table."""
    parser = argparse.ArgumentParser(description="judge every mutant of every shipped kernel")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="KERNELS")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "bench" / "results")
    options = parser.parse_args()
    began = time.monotonic()
    result = Result("mutations")
    names = [name for name in shipped.NAMES if options.only is None or name in options.only]
    todo = [mutant for name in names for mutant in mutants(ROOT / "kernels_src" / f"{name}.py")]
    with ProcessPoolExecutor(options.jobs) as pool:
        records = list(pool.map(checked, todo, chunksize=4))
    lines = ["# Mutants of the shipped kernels", ""]
    lines += [
        f"{len(records)} mutants, {time.monotonic() - began:.0f} s. Equivalent: the same tile IR. Right and safe: accepted,"
    ]
    lines += [
        "and run over all blocks of launches that reach past edges, in bounds and race-free; right ones compute the reference."
    ]
    for title, key in (("kernel", "kernel"), ("mistake", "kind")):
        lines += ["", f"| {title} | mutants | " + " | ".join(OUTCOMES) + " |", "|---|--:|" + "--:|" * len(OUTCOMES)]
        for value in dict.fromkeys(record[key] for record in records):
            outcomes = Counter(record["outcome"] for record in records if record[key] == value)
            lines.append(
                f"| {value} | {sum(outcomes.values())} | " + " | ".join(str(outcomes[name]) for name in OUTCOMES) + " |"
            )
    refused = [record for record in records if record["outcome"] == "refused"]
    shown = sum(record["counterexample"] for record in refused)
    codes = Counter(" ".join(record["codes"]) for record in refused)
    lines += ["", f"Of {len(refused)} refused, {shown} come with a counterexample. The others, by code:", ""]
    without = Counter(" ".join(record["codes"]) for record in refused if not record["counterexample"])
    lines += ["| codes | mutants |", "|---|--:|", *(f"| {name} | {count} |" for name, count in without.most_common())]
    lines += [
        "",
        "| codes of all refused | mutants |",
        "|---|--:|",
        *(f"| {name} | {n} |" for name, n in codes.most_common(12)),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    wrong = [record for record in records if record["outcome"] == "false accept"]
    if options.only is None:
        result.write(records, options.out, exit_status=int(bool(wrong)))
    (options.out / "mutations.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    for record in wrong:
        print("FALSE ACCEPT", record)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
