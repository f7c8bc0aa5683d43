"""Judge many random kernels and keep the table: the prover's verdicts against running every block at small sizes.

`python ci/bench/soundness.py --kernels 20000 --jobs 2` writes `ci/bench/results/soundness.md` and `.json`, and
`soundness_coverage.md`: which part of the language was met how often. A kernel is made from its number alone, so any line of
the table can be looked at again with `--show NUMBER`, and made smaller with `--shrink NUMBER` if it is a false accept.
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

from tests.soundness.features import features, operations  # noqa: E402
from tests.soundness.shrink import smallest  # noqa: E402
from tests.soundness.verdict import Verdict, generate_any, judge, text_of  # noqa: E402

DTYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "bool", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
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
    features: tuple[str, ...] = ()
    operations: tuple[tuple[str, str], ...] = ()

    @property
    def part(self) -> str:
        """What the kernel was made from: a schedule, or the language at large."""
        return self.schedule.split(" + ")[0].split(" ")[0]


def judged(seed: int) -> Row:
    """The verdict on one kernel."""
    kernel = generate_any(seed)
    start = time.perf_counter()
    try:
        verdict = judge(kernel, seed)
    except Exception as error:  # one failing kernel must not end a run of thousands; it is counted and named
        verdict = Verdict("crash", (type(error).__name__,))
    seconds = time.perf_counter() - start
    met, done = (), ()
    if verdict.function is not None:
        met, done = tuple(sorted(features(verdict.function))), tuple(sorted(operations(verdict.function)))
    return Row(seed, kernel.schedule, verdict.kind, verdict.codes, verdict.wrong_examples, verdict.launches, seconds, met, done)


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
    wide = Counter(row.kind for row in rows if row.part == "wide")
    wide_share = 100 * wide["refused_harmless"] / max(1, wide["refused_harmless"] + wide["accepted"])
    lines += ["", f"Of {harmless} kernels in which enumeration finds nothing wrong, {share:.2f} % are refused"]
    lines[-1] += f" ({wide_share:.2f} % of those over the whole language)."
    lines += [f"Launches enumerated: {sum(row.launches for row in rows)}."]
    lines += [f"Diagnostics of refused kernels: {named} codes; counterexamples that replaying did not reproduce: {examples}."]
    lines += ["", "## Harmless kernels refused, by reason", "", "| codes | kernels | seeds |", "|---|--:|---|"]
    lines += _by_codes([row for row in rows if row.kind == "refused_harmless"])
    lines += ["", "## Refused kernels with a confirmed fault, by code", "", "| codes | kernels | seeds |", "|---|--:|---|"]
    lines += _by_codes([row for row in rows if row.kind == "refused_confirmed"])
    lines += ["", "## By schedule", "", "| schedule | kernels | accepted | refused, confirmed | refused, harmless |"]
    lines.append("|---|--:|--:|--:|--:|")
    for name in sorted({row.part for row in rows}):
        mine = Counter(row.kind for row in rows if row.part == name)
        counts = (sum(mine.values()), mine["accepted"], mine["refused_confirmed"], mine["refused_harmless"])
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    slowest = max(rows, key=lambda row: row.seconds)
    lines += ["", f"Slowest kernel: number {slowest.seed}, {slowest.seconds:.1f} s."]
    for kind in ("false_accept", "crash"):
        found = [str(row.seed) for row in rows if row.kind == kind]
        lines += [f"Kernels with verdict {kind}: {', '.join(found) or 'none'}."]
    return "\n".join(lines) + "\n"


def coverage(rows: list[Row]) -> str:
    """Verdicts by feature, and how often each operation was met at each dtype."""
    lines = ["# What the random kernels use", "", f"{len(rows)} kernels, numbers {rows[0].seed} to {rows[-1].seed}.", ""]
    lines += ["| feature | kernels | accepted | refused, confirmed | refused, harmless | harmless refused |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for feature in sorted({feature for row in rows for feature in row.features}):
        mine = Counter(row.kind for row in rows if feature in row.features)
        harmless = mine["accepted"] + mine["refused_harmless"]
        counts = (sum(mine.values()), mine["accepted"], mine["refused_confirmed"], mine["refused_harmless"])
        share = f"{100 * mine['refused_harmless'] / harmless:.1f} %" if harmless else ""
        lines.append(f"| {feature} | {' | '.join(map(str, counts))} | {share} |")
    met = Counter(pair for row in rows for pair in row.operations)
    accepted = Counter(pair for row in rows if row.kind == "accepted" for pair in row.operations)
    dtypes = [dtype for dtype in DTYPES if any(pair[1] == dtype for pair in met)]
    lines += ["", "## Operations by dtype", "", "Kernels that use it, and how many of them were accepted. `index:` lines count"]
    lines += ["operations that decide where memory is touched.", "", f"| operation | {' | '.join(dtypes)} |"]
    lines.append(f"|---|{'--:|' * len(dtypes)}")
    for name in sorted({name for name, _ in met}, key=lambda n: (n.startswith("index: "), n)):
        cells = [f"{met[name, dtype]}, {accepted[name, dtype]}" if met[name, dtype] else "" for dtype in dtypes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
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
    parser.add_argument("--shrink", type=int, metavar="NUMBER", help="print the smallest kernel like this false accept")
    arguments = parser.parse_args()
    if arguments.show is not None:
        print(text_of(generate_any(arguments.show)), judged(arguments.show), sep="\n")
        return 0
    if arguments.shrink is not None:
        print(smallest(generate_any(arguments.shrink)))
        return 0
    start = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.kernels)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=500) as pool:
        rows = pool.map(judged, seeds, chunksize=100)
    text = table(rows, time.perf_counter() - start)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "soundness.md").write_text(text, encoding="utf-8")
    (arguments.output / "soundness_coverage.md").write_text(coverage(rows), encoding="utf-8")
    kept = [{k: v for k, v in asdict(row).items() if k not in ("features", "operations")} for row in rows
            if row.kind not in ("accepted", "refused_confirmed", "invalid")]  # fmt: skip
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
