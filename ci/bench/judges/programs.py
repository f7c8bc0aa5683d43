"""Run random tile programs on three machines and write the table: interpreter, MLIR block machine, PTX emulator.

`judges.py programs --programs 5000 --traffic 5000 --jobs 2` writes `ci/bench/results/programs.md` and `.json`.
Programs are compiled for all three architectures; traffic programs (`InOut` and `Scratch` in loops and branches) run under
several schedules, where the emulator checks for races and missing barriers. `--show program 17` prints one and its outcome.

Outcomes are cached in `verdicts/programs.txt` by program, PTX and the sources of the checkers, and by those of the compiler: if
the compiler is unchanged, nothing is compiled; if it changed but produces the same PTX, nothing runs. With `--budget SECONDS` a
run ends between programs and the next one continues; `--first N` begins at another number.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

from ci.bench import front
from ci.evidence import ROOT, Digests
from ci.evidence.verdicts import Budget, Verdict, Verdicts
from tests.programs.machines import Outcome, load
from tests.programs.workers import MAKE, Job, examine_all, examined, kept_outcome
from tests.soundness.features import operations
from tilec.target.dtypes import DTYPES
from tilec.target.targets import MAIN_TARGETS

KINDS = {
    "equal": "all machines agree, no fault",
    "different": "a result differs",
    "fault": "the emulator found a race, a missing barrier or a wrong access",
    "refused": "the prover refused what is safe",
    "error": "a stage failed",
    "crash": "a worker died",
}
ARCHS = tuple(target.name for target in MAIN_TARGETS)
COMPILER = ("tilec/frontend", "tilec/ir", "tilec/passes", "tilec/target", "tilec/atoms", "tilec/mlir",
            "tilec/lowering", "tilec/codegen", "tilec/toolchain.py")  # fmt: skip
BASIS = (
    "tilec/emulator", "tilec/interpreter", "tilec/ir", "tilec/target/dtypes.py", "tilec/passes/prover", "tilec/passes/analysis",
    "tests/programs/machines.py", "tests/programs/launches.py",
    "tests/lowering/block_machine.py",
)  # fmt: skip
EXPLAINED = {
    ("odd program", 351): (
        "A false alarm of the emulator. Both arms of a branch end in the same stores; in one, several threads hold the "
        "value and the lowering says so in the location of the store. LLVM joins the stores and keeps the location of the "
        "other arm. The PTX is right: all threads that write an element write one value, and a barrier follows."
    ),
}
"""Outcomes other than equal that are not mistakes of the compiler, by program; each was verified by reading the PTX."""


def jobs(arguments: argparse.Namespace, basis: str, verdicts: Verdicts) -> Iterator[Job]:
    """All programs, alternating between the kinds; every tenth is proven, every fifth also runs on the block machine."""
    counts = {"program": arguments.programs, "traffic": arguments.traffic}
    counts |= {"odd program": arguments.odd_programs, "odd traffic": arguments.odd_traffic}
    counts |= {"u64 program": arguments.u64_programs}
    for kind, count in counts.items():
        for n in range(arguments.first, arguments.first + count):
            seeds = (0, n + 1) if "traffic" in kind else (0,)
            archs = ARCHS if "program" in kind else (ARCHS[n % 3],)
            yield Job(kind, n, archs, seeds, n % 10 == 0, n % 5 == 0, basis, verdicts.known(case(kind, n)))


def case(kind: str, number: int) -> str:
    """A program's name in the verdicts file."""
    return f"{kind.replace(' ', '_')}:{number}"


def check_all(
    arguments: argparse.Namespace, verdicts: Verdicts, jobs: Callable[..., Iterator[Job]] = jobs
) -> tuple[list[tuple[Job, Outcome]], int, bool]:
    """Outcomes of the jobs in order, the number of programs run now, and whether the budget sufficed; outcomes are stored as
    they arrive."""
    digests = Digests(ROOT)
    compiler, budget = digests.sources(COMPILER), Budget(arguments.budget)
    every = list(jobs(arguments, digests.sources(BASIS), verdicts))
    done: list[tuple[Job, Outcome]] = []
    todo: list[Job] = []
    for job in every:
        recorded = verdicts.find(case(job.kind, job.number), job.key(compiler))
        if recorded is None:
            todo.append(job)
        else:
            done.append((job, kept_outcome(recorded)))
    ran = 0
    for job, outcome in examine_all((job for job in todo if not budget.is_spent()), arguments.jobs):
        done.append((job, outcome))
        ran += bool(outcome.seconds)
        if outcome.kind != "crash":
            keys = [job.key(compiler), *([job.key(outcome.ptx)] if outcome.ptx else [])]
            verdicts.add(case(job.kind, job.number), keys, Verdict(outcome.kind, outcome.detail or None))
    verdicts.close()
    return sorted(done, key=lambda pair: (pair[0].kind, pair[0].number)), ran, len(done) == len(every)


def table(found: list[tuple[Job, Outcome]], ran: int) -> str:
    """The table of results."""
    lines = ["# Random tile programs on every machine", ""]
    lines += [f"{len(found)} programs; {ran} of them run by the last run. `program`: all operations and dtypes,"]
    lines += [f"on {', '.join(ARCHS)}. `traffic`: `InOut` and `Scratch` in loops and branches, one architecture each,"]
    kinds = [kind for kind in MAKE if any(job.kind == kind for job, _ in found)]
    lines += ["two schedules. `odd`: extents are not powers of two.", ""]
    lines += [f"| outcome | {' | '.join(kinds)} |", f"|---|{'--:|' * len(kinds)}"]
    counts = Counter((job.kind, outcome.kind) for job, outcome in found)
    for kind, label in KINDS.items():
        lines.append(f"| {label} | {' | '.join(str(counts[made, kind]) for made in kinds)} |")
    parts = Counter(part for job, _ in found for part in job.make().parts)
    modes = Counter("exact" if job.make().exact else "within bounds" for job, _ in found)
    lines += [
        "",
        f"Compared bit for bit: {modes['exact']}; within the bound of a running error analysis: {modes['within bounds']}.",
    ]
    if ran:
        lines += ["", "## Time", "", "| stage | ms a program of the last run |", "|---|--:|"]
        seconds: Counter[str] = Counter()
        for _, outcome in found:
            seconds.update(outcome.seconds)
        lines += [f"| {stage} | {1000 * total / ran:.1f} |" for stage, total in seconds.most_common()]
    lines += ["", "## Parts", "", "| part | programs |", "|---|--:|"]
    lines += [f"| {part} | {count} |" for part, count in parts.most_common()]
    occurrences: Counter[tuple[str, str]] = Counter()
    sample = found[:: max(1, len(found) // 1000)]
    for job, _ in sample:
        occurrences.update(operations(load(job.make())))
    lines += ["", f"## Operations by dtype, in {len(sample)} of the programs", "", f"| operation | {' | '.join(DTYPES)} |"]
    lines.append(f"|---|{'--:|' * len(DTYPES)}")
    for name in sorted({name for name, _ in occurrences if not name.startswith("index: ")}):
        lines.append(f"| {name} | {' | '.join(str(occurrences[name, dtype] or '') for dtype in DTYPES)} |")
    lines += ["", "## What was not equal", ""]
    wrong = [(job, outcome) for job, outcome in found if outcome.kind != "equal"]
    for job, outcome in wrong[:40]:
        lines.append(f"- {job.kind} {job.number}: {outcome.kind}, {outcome.detail[:200]}")
        lines += [f"  {EXPLAINED[job.kind, job.number]}"] if (job.kind, job.number) in EXPLAINED else []
    lines += [] if wrong else ["Nothing."]
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--traffic", type=int, default=5000)
    parser.add_argument("--odd-programs", type=int, default=2000)
    parser.add_argument("--odd-traffic", type=int, default=2000)
    parser.add_argument("--u64-programs", type=int, default=1000)
    parser.add_argument("--first", "--seed", type=int, default=0, help="number of the first program of each kind")
    parser.add_argument("--show", nargs=2, metavar=("KIND", "NUMBER"), help="print one program and its outcome")


def measure(options: argparse.Namespace) -> front.Outcome | int:
    """Run all programs; status 1 for an unequal outcome that `EXPLAINED` lacks."""
    if options.show:
        job = Job(options.show[0], int(options.show[1]), ARCHS, (0, 1), block_machine=True)
        print(job.make().text, examined(job), sep="\n")
        return 0
    found, ran, done = check_all(options, Verdicts("programs", options.out / "verdicts"))
    if not done:
        raise front.Unfinished(f"{len(found)} programs checked, {ran} of them now")
    counts = Counter(f"{job.kind} {outcome.kind}" for job, outcome in found)
    noted = [
        {"kind": job.kind, "number": job.number, "outcome": one.kind, "detail": one.detail,
         "explained": EXPLAINED.get((job.kind, job.number))}
        for job, one in found if one.kind != "equal"
    ]  # fmt: skip
    data = {"programs": len(found), "counts": dict(sorted(counts.items())), "first": options.first, "noted": noted}
    status = int(any(one["explained"] is None for one in noted))
    return front.Outcome(data, {"programs.md": table(found, ran)}, status)
