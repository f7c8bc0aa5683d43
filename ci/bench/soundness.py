"""Judge many random kernels and keep the table: the prover's verdicts against running every block at small sizes.

`python ci/bench/soundness.py --kernels 20000 --jobs 2` writes `ci/bench/results/soundness.md` and `.json`. A kernel is
made from its number alone, so any line of the table can be looked at again with `--show NUMBER`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.soundness.description import source  # noqa: E402
from tests.soundness.verdict import Verdict, generate, judge  # noqa: E402

KINDS = {
    "accepted": "accepted, nothing wrong found",
    "false_accept": "accepted, but refuted by enumeration",
    "refused_confirmed": "refused, and enumeration shows a fault",
    "refused_harmless": "refused, though enumeration shows none",
    "vacuous": "no launch satisfies its contract",
    "invalid": "refused by the frontend",
    "crash": "the prover failed",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one kernel."""

    seed: int
    schedule: str
    kind: str
    codes: tuple[str, ...]
    wrong_examples: tuple[str, ...]
    launches: int
    seconds: float


def judged(seed: int) -> Row:
    """The verdict on one kernel."""
    kernel = generate(seed)
    start = time.perf_counter()
    try:
        verdict = judge(kernel, seed)
    except Exception as error:  # one failing kernel must not end a run of thousands; it is counted and named
        verdict = Verdict("crash", (type(error).__name__,))
    seconds = time.perf_counter() - start
    return Row(seed, kernel.schedule, verdict.kind, verdict.codes, verdict.wrong_examples, verdict.launches, seconds)


def table(rows: list[Row], wall: float) -> str:
    """The kept table."""
    kinds = Counter(row.kind for row in rows)
    judged_rows = len(rows) - kinds["invalid"] - kinds["vacuous"]
    lines = ["# Soundness of the prover on random kernels", ""]
    lines += [f"{len(rows)} kernels, numbers {rows[0].seed} to {rows[-1].seed}, {wall:.0f} s of wall time.", ""]
    lines += ["| verdict | kernels | share of judged |", "|---|--:|--:|"]
    for kind, words in KINDS.items():
        share = "" if kind in ("invalid", "vacuous") else f"{100 * kinds[kind] / max(1, judged_rows):.2f} %"
        lines.append(f"| {words} | {kinds[kind]} | {share} |")
    examples = sum(len(row.wrong_examples) for row in rows)
    refused = [row for row in rows if row.kind.startswith("refused")]
    named = sum(len(row.codes) for row in refused)
    harmless = kinds["refused_harmless"] + kinds["accepted"]
    share = 100 * kinds["refused_harmless"] / max(1, harmless)
    lines += ["", f"Of {harmless} kernels in which enumeration finds nothing wrong, {share:.2f} % are refused."]
    lines += [f"Launches enumerated: {sum(row.launches for row in rows)}."]
    lines += [f"Diagnostics of refused kernels: {named} codes; counterexamples that replaying did not reproduce: {examples}."]
    lines += ["", "## Harmless kernels refused, by reason", "", "| codes | kernels | seeds |", "|---|--:|---|"]
    lines += _by_codes([row for row in rows if row.kind == "refused_harmless"])
    lines += ["", "## Refused kernels with a confirmed fault, by code", "", "| codes | kernels | seeds |", "|---|--:|---|"]
    lines += _by_codes([row for row in rows if row.kind == "refused_confirmed"])
    lines += ["", "## By schedule", "", "| schedule | kernels | accepted | refused, confirmed | refused, harmless |"]
    lines.append("|---|--:|--:|--:|--:|")
    for name in sorted({row.schedule.split(" + ")[0] for row in rows}):
        mine = Counter(row.kind for row in rows if row.schedule.split(" + ")[0] == name)
        counts = (sum(mine.values()), mine["accepted"], mine["refused_confirmed"], mine["refused_harmless"])
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    slowest = max(rows, key=lambda row: row.seconds)
    lines += ["", f"Slowest kernel: number {slowest.seed}, {slowest.seconds:.1f} s."]
    for kind in ("false_accept", "crash"):
        found = [str(row.seed) for row in rows if row.kind == kind]
        lines += [f"Kernels with verdict {kind}: {', '.join(found) or 'none'}."]
    return "\n".join(lines) + "\n"


def _by_codes(rows: list[Row]) -> list[str]:
    counts = Counter(" ".join(row.codes) for row in rows)
    lines: list[str] = []
    for codes, count in counts.most_common(12):
        seeds = [str(row.seed) for row in rows if " ".join(row.codes) == codes][:5]
        lines.append(f"| {codes} | {count} | {', '.join(seeds)} |")
    return lines


def main() -> int:
    """Exit status 1 if a refuted kernel was accepted or the prover failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one kernel and the verdict on it")
    arguments = parser.parse_args()
    if arguments.show is not None:
        print(source(generate(arguments.show)), judged(arguments.show), sep="\n")
        return 0
    start = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.kernels)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=500) as pool:
        rows = pool.map(judged, seeds, chunksize=100)
    text = table(rows, time.perf_counter() - start)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "soundness.md").write_text(text, encoding="utf-8")
    kept = [asdict(row) for row in rows if row.kind not in ("accepted", "refused_confirmed", "invalid")]
    inexact = [row.seed for row in rows if row.wrong_examples]
    counts = Counter(row.kind for row in rows)
    data = {
        "kernels": len(rows),
        "first": arguments.seed,
        "counts": dict(sorted(counts.items())),
        "inexact_examples": inexact,
        "noted": kept,
    }
    (arguments.output / "soundness.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 1 if counts["false_accept"] or counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
