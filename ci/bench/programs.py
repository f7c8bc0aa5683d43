"""Run random tile programs on every machine and keep the table: interpreter, MLIR block machine, PTX emulator.

`python ci/bench/programs.py --programs 5000 --traffic 5000 --jobs 2` writes `ci/bench/results/programs.md` and `.json`.
Programs go through all three architectures; traffic programs (`InOut` and `Scratch` in loops and branches) run under several
schedules, where the emulator looks for races and missing barriers. `--show program 17` prints one and what became of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.programs.machines import Outcome, load  # noqa: E402
from tests.programs.workers import MAKE, Job, examine_all, examined  # noqa: E402
from tests.soundness.features import operations  # noqa: E402
from tilec.target import TARGETS  # noqa: E402

KINDS = {
    "equal": "all machines agree, no fault",
    "different": "a result differs",
    "fault": "the emulator found a race, a missing barrier or a wrong access",
    "refused": "the prover refused what is safe",
    "error": "a stage failed",
    "crash": "a worker died",
}
DTYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "bool", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
ARCHS = tuple(target.name for target in TARGETS)


def jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """All programs, the two kinds in turn; each tenth is proven, each fifth runs on the block machine too."""
    counts = {"program": arguments.programs, "traffic": arguments.traffic}
    counts |= {"odd program": arguments.odd_programs, "odd traffic": arguments.odd_traffic}
    for kind, count in counts.items():
        for n in range(arguments.seed, arguments.seed + count):
            seeds = (0, n + 1) if "traffic" in kind else (0,)
            archs = ARCHS if "program" in kind else (ARCHS[n % 3],)
            yield Job(kind, n, archs, seeds, n % 10 == 0, n % 5 == 0)


def table(found: list[tuple[Job, Outcome]], wall: float, processes: int) -> str:
    """The kept table."""
    lines = ["# Random tile programs on every machine", ""]
    lines += [
        f"{len(found)} programs, {wall:.0f} s of wall time in {processes} processes. `program`: all operations and dtypes,"
    ]
    lines += [f"on {', '.join(ARCHS)}. `traffic`: `InOut` and `Scratch` in loops and branches, one architecture each,"]
    kinds = [kind for kind in MAKE if any(job.kind == kind for job, _ in found)]
    lines += ["two schedules. `odd`: extents are not powers of two.", ""]
    lines += [f"| outcome | {' | '.join(kinds)} |", f"|---|{'--:|' * len(kinds)}"]
    counts = Counter((job.kind, outcome.kind) for job, outcome in found)
    for kind, words in KINDS.items():
        lines.append(f"| {words} | {' | '.join(str(counts[made, kind]) for made in kinds)} |")
    parts = Counter(part for job, _ in found for part in job.make().parts)
    modes = Counter("exact" if job.make().exact else "within bounds" for job, _ in found)
    lines += [
        "",
        f"Compared bit for bit: {modes['exact']}; within the bound of a running error analysis: {modes['within bounds']}.",
    ]
    lines += ["", "## Time", "", "| stage | ms a program |", "|---|--:|"]
    seconds: Counter[str] = Counter()
    for _, outcome in found:
        seconds.update(outcome.seconds)
    lines += [f"| {stage} | {1000 * total / len(found):.1f} |" for stage, total in seconds.most_common()]
    lines += ["", "## Parts", "", "| part | programs |", "|---|--:|"]
    lines += [f"| {part} | {count} |" for part, count in parts.most_common()]
    met: Counter[tuple[str, str]] = Counter()
    sample = found[:: max(1, len(found) // 1000)]
    for job, _ in sample:
        met.update(operations(load(job.make())))
    lines += ["", f"## Operations by dtype, in {len(sample)} of the programs", "", f"| operation | {' | '.join(DTYPES)} |"]
    lines.append(f"|---|{'--:|' * len(DTYPES)}")
    for name in sorted({name for name, _ in met if not name.startswith("index: ")}):
        lines.append(f"| {name} | {' | '.join(str(met[name, dtype] or '') for dtype in DTYPES)} |")
    lines += ["", "## What was not equal", ""]
    wrong = [(job, outcome) for job, outcome in found if outcome.kind != "equal"]
    lines += [f"- {job.kind} {job.number}: {outcome.kind}, {outcome.detail[:200]}" for job, outcome in wrong[:40]] or [
        "Nothing."
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit status 1 if anything was not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--traffic", type=int, default=5000)
    parser.add_argument("--odd-programs", type=int, default=2000)
    parser.add_argument("--odd-traffic", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first program of each kind")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--show", nargs=2, metavar=("KIND", "NUMBER"), help="print one program and its outcome")
    arguments = parser.parse_args()
    if arguments.show:
        job = Job(arguments.show[0], int(arguments.show[1]), ARCHS, (0, 1), block_machine=True)
        print(job.make().text, examined(job), sep="\n")
        return 0
    start = time.perf_counter()
    found = sorted(examine_all(jobs(arguments), arguments.jobs), key=lambda pair: (pair[0].kind, pair[0].number))
    wall = time.perf_counter() - start
    text = table(found, wall, arguments.jobs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "programs.md").write_text(text, encoding="utf-8")
    counts = Counter(f"{job.kind} {outcome.kind}" for job, outcome in found)
    noted = [{"kind": j.kind, "number": j.number, "outcome": o.kind, "detail": o.detail} for j, o in found if o.kind != "equal"]
    data = {"counts": dict(sorted(counts.items())), "first": arguments.seed, "wall_seconds": round(wall), "noted": noted}
    (arguments.output / "programs.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 1 if noted else 0


if __name__ == "__main__":
    sys.exit(main())
