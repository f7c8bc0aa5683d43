"""Check many random kernels in which ranks meet: the compiler's verdicts against running every rank and block at small sizes.

`judges.py rank_soundness --count 5000 --jobs 2` writes `ci/bench/results/rank_soundness.md` and `.json`. Kernels have parts of
several ranks (`Peer`), a meet, and mistakes in where it is, what it is given, and what is read of which rank; some mistakes are
made in the tile IR, past the frontend. Then each shipped kernel in which ranks meet has one planted mistake at a time. A kernel
is generated from its number alone: `--show NUMBER` prints it with its verdict, `--shrink NUMBER` reduces a false accept.

Verdicts are cached in `verdicts/rank_soundness.txt` by the kernel's tile IR and the sources of compiler and oracle. With
`--budget SECONDS` a run ends between kernels and the next one continues.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice

from ci.bench.front import Outcome, Unfinished
from ci.evidence import ROOT, Digests
from ci.evidence.verdicts import Budget, Line, Verdicts, key
from ci.evidence.verdicts import Verdict as Kept
from tests.rank_soundness.features import rank_features
from tests.rank_soundness.shipped import SHIPPED, Mutant, mutants
from tests.rank_soundness.shrink import smallest
from tests.rank_soundness.verdict import RankKernel, RankVerdict, examine_function, generate, parse
from tilec.ir.text.printer import print_function

KINDS = {
    "accepted": "accepted, nothing wrong found",
    "false_accept": "accepted, but refuted by enumeration",
    "refused_confirmed": "refused, and enumeration shows a fault",
    "refused_harmless": "refused, though enumeration shows none",
    "invalid": "refused by the frontend",
    "vacuous": "no launch satisfies its contract",
    "malformed": "no program after an edit of the tile IR, and refused by its verifier",
    "crash": "the compiler failed",
}
PLANTED = 1_000_000_000
"""Cases from here on are shipped kernels with a mistake."""
BASIS = (
    "tilec/passes/prover", "tilec/passes/analysis", "tilec/ir", "tilec/target/dtypes.py", "tilec/artifact/records.py",
    "tests/rank_soundness/verdict.py", "tests/rank_soundness/launches.py", "tests/rank_soundness/meets.py",
    "tests/soundness/verdict.py", "tests/soundness/enumeration.py", "tests/soundness/dependence.py",
    "tests/soundness/memory.py", "tests/soundness/arithmetic.py", "tests/soundness/floats.py",
)  # fmt: skip
"""Sources that a verdict on a kernel in tile IR depends on."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result for one kernel. `group`: the mistakes of a random kernel, or a shipped kernel and the kind of its mistake."""

    number: int
    group: str
    kind: str
    codes: tuple[str, ...] = ()
    fault: str = ""
    launches: int = 0
    schedules: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def is_planted(self) -> bool:
        return self.number >= PLANTED


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel by number, with what is known of it."""

    number: int
    kernel: RankKernel
    group: str


@cache
def basis() -> str:
    """The digest of `BASIS`."""
    return Digests(ROOT).sources(BASIS)


def random_case(number: int) -> Case:
    """A random kernel."""
    kernel = generate(number)
    return Case(number, kernel, " + ".join(sorted(kernel.mistakes)) or "right")


def planted_cases() -> Iterator[Case]:
    """Each shipped kernel with each mistake."""
    every: list[Mutant] = [mutant for name in SHIPPED for mutant in mutants(name)]
    for position, mutant in enumerate(every):
        yield Case(PLANTED + position, mutant.kernel, f"{mutant.shipped}: {mutant.mistake}")


def checked(task: tuple[Case | int, Line | None]) -> tuple[Row, str, bool]:
    """The verdict on one kernel, a case or the number of a random one, its key, and whether it is the cached one."""
    given, line = task
    case = random_case(given) if isinstance(given, int) else given
    schedules = tuple(case.kernel.schedule.split())
    function, name = parse(case.kernel)
    if function is None:
        return Row(case.number, case.group, "invalid", (name,), schedules=schedules), "", True
    now = key(basis(), case.number, print_function(function))
    kept = line.verdict if line is not None and now in line.keys else None
    if kept is not None:
        launches, codes, fault = kept.detail
        verdict = RankVerdict(kept.word, tuple(codes), launches=launches, text=fault)
    else:
        try:
            verdict = examine_function(function, case.number)
        except Exception as error:  # a failing kernel must not end a run of thousands; it is counted and named
            verdict = RankVerdict("crash", (type(error).__name__,), text=str(error)[:200])
    group = f"{case.group}: {name}" if case.group == "in the IR" else case.group
    used = tuple(sorted(rank_features(function)))
    row = Row(case.number, group, verdict.kind, verdict.codes, verdict.text, verdict.launches, schedules, used)
    return row, now, kept is not None


def check_all(cases: Sequence[Case | int], jobs: int, budget: Budget, verdicts: Verdicts) -> tuple[list[Row], int]:
    """Rows of all kernels within the budget, and how many were checked now; verdicts are stored as they arrive."""
    rows: list[Row] = []
    fresh = 0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        tasks = ((case, verdicts.known(case if isinstance(case, int) else case.number)) for case in cases)
        while not budget.is_spent() and (batch := list(islice(tasks, 100 * jobs))):
            for row, now, is_kept in pool.map(checked, batch, chunksize=10):
                rows.append(row)
                if not is_kept:
                    fresh += 1
                    verdicts.add(row.number, [now], Kept(row.kind, [row.launches, row.codes, row.fault]))
    return rows, fresh


def page(rows: Sequence[Row], fresh: int) -> str:
    """The page of results."""
    drawn, planted = [row for row in rows if not row.is_planted], [row for row in rows if row.is_planted]
    lines = ["# Soundness of the prover on kernels of several ranks", ""]
    lines += [
        f"{len(drawn)} random kernels, numbers {drawn[0].number} to {drawn[-1].number}, and {len(planted)} shipped ones with a"
    ]
    lines[-1] += (
        f" mistake each; {fresh} of them checked by the last run. Launches enumerated: {sum(row.launches for row in rows)}."
    )
    lines += ["", "| verdict | random kernels | shipped kernels with a mistake |", "|---|--:|--:|"]
    kinds, of_planted = Counter(row.kind for row in drawn), Counter(row.kind for row in planted)
    lines += [f"| {label} | {kinds[kind]} | {of_planted[kind]} |" for kind, label in KINDS.items()]
    harmless = kinds["accepted"] + kinds["refused_harmless"]
    share = 100 * kinds["refused_harmless"] / max(1, harmless)
    lines += [
        "",
        f"Of {harmless} random kernels in which enumeration finds nothing wrong, {share:.2f} % are refused past the frontend.",
    ]
    lines += ["", "## Random kernels, by mistake", "", *_outcomes(drawn, lambda row: row.group.split(" + "))]
    lines += ["", "## Random kernels without a mistake, by schedule", ""]
    lines += _outcomes([row for row in drawn if row.group == "right"], lambda row: row.schedules)
    lines += ["", "## Shipped kernels, by planted mistake", "", *_outcomes(planted, lambda row: [row.group])]
    lines += ["", "## Faults that enumeration shows in refused kernels", "", "| fault | kernels |", "|---|--:|"]
    faults = Counter(row.fault.split(" ")[0].rstrip(":") for row in rows if row.kind == "refused_confirmed")
    lines += [f"| {fault} | {count} |" for fault, count in faults.most_common()]
    lines += ["", "## Refusals, by reason", "", "| codes | frontend | with a fault | harmless |", "|---|--:|--:|--:|"]
    for codes in sorted({row.codes for row in rows if row.codes and row.kind != "malformed"}):
        with_codes = Counter(row.kind for row in rows if row.codes == codes)
        counts = (with_codes["invalid"], with_codes["refused_confirmed"], with_codes["refused_harmless"])
        lines.append(f"| {' '.join(codes)} | {' | '.join(map(str, counts))} |")
    lines += ["", "## What random kernels use", "", *_outcomes(drawn, lambda row: row.features), ""]
    for kind in ("false_accept", "crash"):
        found = [f"- {row.number} ({row.group}): {row.fault}" for row in rows if row.kind == kind]
        lines += [f"Kernels with verdict {kind}: {'' if found else 'none.'}", "", *found, *([""] if found else [])]
    return "\n".join(lines).rstrip() + "\n"


def _outcomes(rows: Sequence[Row], parts_of: Callable[[Row], Sequence[str]]) -> list[str]:
    """Verdicts by part of a kernel; one of several parts is in a line for each."""
    lines = ["| | kernels | accepted | false accepts | refused, fault | refused, harmless | frontend | nothing said |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|")
    by_part: dict[str, Counter[str]] = {}
    for row in rows:
        for part in dict.fromkeys(parts_of(row)):
            by_part.setdefault(part, Counter())[row.kind] += 1
    for part, found in sorted(by_part.items()):
        named = [found[kind] for kind in ("accepted", "false_accept", "refused_confirmed", "refused_harmless", "invalid")]
        total = found.total()
        lines.append(f"| {part} | {total} | {' | '.join(map(str, named))} | {total - sum(named)} |")
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", "--kernels", type=int, default=5000)
    parser.add_argument("--first", "--seed", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--no-planted", action="store_true", help="random kernels only")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one kernel and the verdict on it")
    parser.add_argument("--shrink", type=int, metavar="NUMBER", help="print the smallest kernel like this false accept")


def _case(number: int) -> Case:
    if number < PLANTED:
        return random_case(number)
    return next(case for case in planted_cases() if case.number == number)


def measure(options: argparse.Namespace) -> Outcome | int:
    """Check all kernels; status 1 if a refuted kernel was accepted or the compiler failed."""
    if options.show is not None:
        case = _case(options.show)
        print(case.kernel.text, checked((case, None))[0], sep="\n")
        return 0
    if options.shrink is not None:
        print(smallest(_case(options.shrink).kernel))
        return 0
    verdicts = Verdicts("rank_soundness", options.out / "verdicts")
    planted = [] if options.no_planted else list(planted_cases())
    numbers = range(options.first, options.first + options.count)
    rows, fresh = check_all([*numbers, *planted], options.jobs, Budget(options.budget), verdicts)
    verdicts.close()
    if len(rows) < len(numbers) + len(planted):
        raise Unfinished(f"{len(rows)} of {len(numbers) + len(planted)} kernels, {fresh} of them checked now")
    counts = Counter(row.kind for row in rows if not row.is_planted)
    of_planted = Counter(row.kind for row in rows if row.is_planted)
    noted = [{k: v for k, v in asdict(row).items() if k not in ("features", "schedules")} for row in rows
             if row.kind in ("false_accept", "crash", "refused_harmless")]  # fmt: skip
    data = {
        "kernels": len(numbers), "planted": len(planted), "first": options.first, "counts": dict(sorted(counts.items())),
        "planted_counts": dict(sorted(of_planted.items())), "noted": noted,
    }  # fmt: skip
    wrong = sum(found[kind] for found in (counts, of_planted) for kind in ("false_accept", "crash"))
    return Outcome(data, {"rank_soundness.md": page(rows, fresh)}, int(bool(wrong)))
