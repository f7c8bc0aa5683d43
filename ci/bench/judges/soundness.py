"""Check many random kernels and write the table: the prover's verdicts against running every block at small sizes.

`judges.py soundness --count 20000 --jobs 2` writes `ci/bench/results/soundness.md` and `.json`, and
`soundness_coverage.md`: how often each part of the language occurred. Kernels of one kind each have numbers of their own, from
those of `FAMILIES` on; `--each` says how many of each kind follow. A kernel is generated from its number alone, so any line
of the table can be shown with `--show NUMBER`, and reduced with `--shrink NUMBER` if it is a false accept.

Verdicts are cached in `verdicts/soundness.txt` by the kernel's tile IR and the sources of prover and enumeration; unchanged
kernels are not checked again. With `--budget SECONDS` a run ends between kernels and the next one continues.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice

from ci.bench.front import Outcome, Unfinished
from ci.evidence import ROOT, Digests
from ci.evidence.verdicts import Budget, Line, Verdicts, key
from ci.evidence.verdicts import Verdict as Kept
from tests.soundness.features import features, operations
from tests.soundness.shrink import smallest
from tests.soundness.verdict import FAMILIES, Verdict, examine_function, generate_any, parse, text_of
from tilec.ir.text.printer import print_function
from tilec.target.dtypes import DTYPES

KINDS = {
    "accepted": "accepted, nothing wrong found",
    "false_accept": "accepted, but refuted by enumeration",
    "refused_confirmed": "refused, and enumeration shows a fault",
    "refused_harmless": "refused, though enumeration shows none",
    "vacuous": "no launch satisfies its contract",
    "invalid": "refused by the frontend",
    "crash": "the prover failed",
}
BASIS = (
    "tilec/passes/prover", "tilec/passes/analysis", "tilec/ir", "tilec/target/dtypes.py", "tilec/artifact/records.py",
    "tests/soundness/verdict.py", "tests/soundness/enumeration.py", "tests/soundness/dependence.py",
    "tests/soundness/memory.py", "tests/soundness/arithmetic.py", "tests/soundness/floats.py",
)  # fmt: skip
"""Sources that a verdict on a kernel in tile IR depends on."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result for one kernel."""

    seed: int
    schedule: str
    kind: str
    codes: tuple[str, ...]
    wrong_examples: tuple[str, ...]
    launches: int
    features: tuple[str, ...] = ()
    operations: tuple[tuple[str, str], ...] = ()

    @property
    def part(self) -> str:
        """The origin of the kernel: a schedule, or the language in general."""
        return self.schedule.split(" + ")[0].split(" ")[0]


@cache
def basis() -> str:
    """The digest of `BASIS`."""
    return Digests(ROOT).sources(BASIS)


def checked(task: tuple[int, Line | None]) -> tuple[Row, str, bool]:
    """The verdict on one kernel, its key, and whether it is the cached one."""
    seed, line = task
    kernel = generate_any(seed)
    function = parse(kernel)
    if function is None:
        return Row(seed, kernel.schedule, "invalid", (), (), 0), "", True
    now = key(basis(), seed, print_function(function))
    kept = line.verdict if line is not None and now in line.keys else None
    if kept is not None:
        launches, codes, wrong = kept.detail if len(kept.detail) > 1 else (*kept.detail, (), ())
        verdict = Verdict(kept.word, tuple(codes), wrong_examples=tuple(wrong), launches=launches)
    else:
        try:
            verdict = examine_function(function, seed)
        except Exception as error:  # a failing kernel must not end a run of thousands; it is counted and named
            verdict = Verdict("crash", (type(error).__name__,))
    features_used, done = tuple(sorted(features(function))), tuple(sorted(operations(function)))
    row = Row(seed, kernel.schedule, verdict.kind, verdict.codes, verdict.wrong_examples, verdict.launches, features_used, done)
    return row, now, kept is not None


def check_all(seeds: Sequence[int], jobs: int, budget: Budget, verdicts: Verdicts) -> tuple[list[Row], int]:
    """Rows of all kernels within the budget, and how many were checked now; verdicts are stored as they arrive."""
    rows: list[Row] = []
    fresh = 0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        tasks: Iterator[tuple[int, Line | None]] = ((seed, verdicts.known(seed)) for seed in seeds)
        while not budget.is_spent() and (batch := list(islice(tasks, 100 * jobs))):
            for row, now, is_kept in pool.map(checked, batch, chunksize=10):
                rows.append(row)
                if not is_kept:
                    fresh += 1
                    details = [row.codes, row.wrong_examples] if row.codes or row.wrong_examples else []
                    verdicts.add(row.seed, [now], Kept(row.kind, [row.launches, *details]))
    return rows, fresh


def table(rows: list[Row], fresh: int) -> str:
    """The table of results."""
    kinds = Counter(row.kind for row in rows)
    checked_rows = len(rows) - kinds["invalid"] - kinds["vacuous"]
    lines = ["# Soundness of the prover on random kernels", ""]
    lines += [f"{len(rows)} kernels, numbers {_numbers(rows)}; {fresh} of them checked by the last run.", ""]
    lines += ["| verdict | kernels | share of checked |", "|---|--:|--:|"]
    for kind, label in KINDS.items():
        share = "" if kind in ("invalid", "vacuous") else f"{100 * kinds[kind] / max(1, checked_rows):.2f} %"
        lines.append(f"| {label} | {kinds[kind]} | {share} |")
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
        outcomes = Counter(row.kind for row in rows if row.part == name)
        counts = (sum(outcomes.values()), outcomes["accepted"], outcomes["refused_confirmed"], outcomes["refused_harmless"])
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines.append("")
    for kind in ("false_accept", "crash"):
        found = [str(row.seed) for row in rows if row.kind == kind]
        lines += [f"Kernels with verdict {kind}: {', '.join(found) or 'none'}."]
    return "\n".join(lines) + "\n"


def coverage(rows: list[Row]) -> str:
    """Verdicts by feature, and the number of occurrences of each operation at each dtype."""
    lines = ["# What the random kernels use", "", f"{len(rows)} kernels, numbers {_numbers(rows)}.", ""]
    lines += ["| feature | kernels | accepted | refused, confirmed | refused, harmless | harmless refused |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for feature in sorted({feature for row in rows for feature in row.features}):
        outcomes = Counter(row.kind for row in rows if feature in row.features)
        harmless = outcomes["accepted"] + outcomes["refused_harmless"]
        counts = (sum(outcomes.values()), outcomes["accepted"], outcomes["refused_confirmed"], outcomes["refused_harmless"])
        share = f"{100 * outcomes['refused_harmless'] / harmless:.1f} %" if harmless else ""
        lines.append(f"| {feature} | {' | '.join(map(str, counts))} | {share} |")
    features_used = Counter(pair for row in rows for pair in row.operations)
    accepted = Counter(pair for row in rows if row.kind == "accepted" for pair in row.operations)
    dtypes = [dtype for dtype in DTYPES if any(pair[1] == dtype for pair in features_used)]
    lines += ["", "## Operations by dtype", "", "Kernels that use it, and how many of them were accepted. `index:` lines count"]
    lines += ["operations that decide where memory is touched.", "", f"| operation | {' | '.join(dtypes)} |"]
    lines.append(f"|---|{'--:|' * len(dtypes)}")
    for name in sorted({name for name, _ in features_used}, key=lambda n: (n.startswith("index: "), n)):
        cells = [
            f"{features_used[name, dtype]}, {accepted[name, dtype]}" if features_used[name, dtype] else "" for dtype in dtypes
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _numbers(rows: list[Row]) -> str:
    """The numbers of the kernels, which are consecutive in each family."""
    ends = [row.seed for row in rows]
    starts = [seed for before, seed in zip([None, *ends], ends, strict=False) if before is None or seed != before + 1]
    lasts = [seed for seed, after in zip(ends, [*ends[1:], None], strict=True) if after is None or after != seed + 1]
    return ", ".join(f"{first} to {last}" for first, last in zip(starts, lasts, strict=True))


def _by_codes(rows: list[Row]) -> list[str]:
    counts = Counter(" ".join(row.codes) for row in rows)
    lines: list[str] = []
    for codes, count in counts.most_common(12):
        seeds = [str(row.seed) for row in rows if " ".join(row.codes) == codes][:5]
        lines.append(f"| {codes} | {count} | {', '.join(seeds)} |")
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", "--kernels", type=int, default=20_000)
    parser.add_argument("--first", "--seed", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--each", type=int, default=3000, help="how many kernels of each family follow (default 3000)")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one kernel and the verdict on it")
    parser.add_argument("--shrink", type=int, metavar="NUMBER", help="print the smallest kernel like this false accept")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Check all kernels; status 1 if a refuted kernel was accepted or the prover failed."""
    if options.show is not None:
        print(text_of(generate_any(options.show)), checked((options.show, None))[0], sep="\n")
        return 0
    if options.shrink is not None:
        print(smallest(generate_any(options.shrink)))
        return 0
    verdicts = Verdicts("soundness", options.out / "verdicts")
    seeds = [*range(options.first, options.first + options.count)]
    seeds += [seed for family in FAMILIES for seed in range(family, family + options.each)]
    rows, fresh = check_all(seeds, options.jobs, Budget(options.budget), verdicts)
    verdicts.close()
    if len(rows) < len(seeds):
        raise Unfinished(f"{len(rows)} of {len(seeds)} kernels, {fresh} of them checked now")
    noted = [{k: v for k, v in asdict(row).items() if k not in ("features", "operations")} for row in rows
             if row.kind not in ("accepted", "refused_confirmed", "invalid")]  # fmt: skip
    counts = Counter(row.kind for row in rows)
    data = {
        "kernels": len(rows), "first": options.first, "counts": dict(sorted(counts.items())),
        "inexact_examples": [row.seed for row in rows if row.wrong_examples], "noted": noted,
    }  # fmt: skip
    pages = {"soundness.md": table(rows, fresh), "soundness_coverage.md": coverage(rows)}
    return Outcome(data, pages, int(bool(counts["false_accept"] or counts["crash"])))
