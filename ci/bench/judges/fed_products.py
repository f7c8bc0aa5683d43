"""Run random programs whose products a producer feeds, and compare the emulator with the interpreter.

On sm_100a products run into tensor memory by `tcgen05`, on sm_120a in warps by `mma.sync`.

`judges.py fed_products --count 2000 --jobs 64` writes `ci/bench/results/fed_products.md` and `.json`. Each program runs in two
orders of threads, and every fifth is also proven. The emulator must find no fault and make no note. Whether a program has such
products, and copies by TMA that feed them, is read from its PTX. `--show 17` prints one program and its outcome. Outcomes are
cached as those of `programs` are.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from ci.bench import front
from ci.bench.judges.programs import KINDS, check_all
from ci.bench.markdown import grid
from ci.evidence.verdicts import Verdicts
from tests.programs.fed_products import target_of
from tests.programs.machines import Outcome
from tests.programs.workers import Job, examined
from tilec.target.targets import SM_100A, SM_120A

KIND: Final = "fed product"
PRODUCTS: Final = {SM_100A.name: "tcgen05.mma", SM_120A.name: "mma.sync"}
COPY: Final = "cp.async.bulk.tensor"


def jobs(arguments: argparse.Namespace, basis: str, verdicts: Verdicts) -> Iterator[Job]:
    """All programs."""
    for number in range(arguments.first, arguments.first + arguments.count):
        yield job(number, basis, verdicts)


def job(number: int, basis: str = "", verdicts: Verdicts | None = None) -> Job:
    """One program, on its target."""
    kept = None if verdicts is None else verdicts.known(f"{KIND.replace(' ', '_')}:{number}")
    return Job(KIND, number, (target_of(number).name,), (0, number + 1), number % 5 == 0, False, basis, kept)


def is_fed(job: Job, outcome: Outcome) -> bool:
    """Whether a program that ran has the products of its target, fed by copies of boxes."""
    reported = outcome.detail.split("; ")
    return outcome.kind == "equal" and PRODUCTS[job.archs[0]] in reported and COPY in reported


def schedule_parts(outcome: Outcome) -> set[str]:
    """What the detail of an equal outcome says of its instructions and its schedule, without numbers of registers."""
    return {re.sub(r" of \d+ registers|(?<=consumer)\d", "", part) for part in outcome.detail.split("; ")}


def summary(found: list[tuple[Job, Outcome]]) -> dict[str, Any]:
    """Counts by target: outcomes, programs whose products are fed, parts of schedules and of programs."""
    data: dict[str, Any] = {"programs": len(found), "fed": sum(is_fed(job, outcome) for job, outcome in found)}
    for arch in PRODUCTS:
        here = [(job, outcome) for job, outcome in found if job.archs == (arch,)]
        equal = [(job, outcome) for job, outcome in here if outcome.kind == "equal"]
        programs = [job.make() for job, _ in here]
        data[arch] = {
            "programs": len(here),
            "fed": sum(is_fed(job, outcome) for job, outcome in here),
            "outcomes": dict(sorted(Counter(outcome.kind for _, outcome in here).items())),
            "bit for bit": sum(program.exact for program in programs),
            "schedules": dict(sorted(Counter(part for _, one in equal for part in schedule_parts(one)).items())),
            "parts": dict(sorted(Counter(part for program in programs for part in program.parts).items())),
        }
    data["noted"] = [
        {"number": job.number, "arch": job.archs[0], "outcome": one.kind, "detail": one.detail}
        for job, one in found
        if one.kind != "equal"
    ]
    return data


def table(data: dict[str, Any]) -> str:
    """The page of the result."""
    lines = ["# Random programs with products that a producer feeds", ""]
    lines += [f"{data['programs']} programs, each in two orders of threads. Products of {data['fed']} of them are `tcgen05` on"]
    lines += ["sm_100a, or `mma.sync` on sm_120a, of operands that a producer copies by TMA.", ""]
    lines += _rows("outcome", {arch: data[arch]["outcomes"] for arch in PRODUCTS}, KINDS)
    compared = {arch: {key: data[arch][key] for key in ("programs", "fed", "bit for bit")} for arch in PRODUCTS}
    lines += _rows("programs", compared, {"programs": "all", "fed": "with fed products", "bit for bit": "compared bit for bit"})
    for name in ("schedules", "parts"):
        lines += _rows(name.rstrip("s"), {arch: data[arch][name] for arch in PRODUCTS})
    lines += ["## What was not equal", ""]
    lines += [f"- {one['number']} on {one['arch']}: {one['outcome']}, {one['detail'][:200]}" for one in data["noted"]]
    return "\n".join([*lines, *([] if data["noted"] else ["Nothing."])]) + "\n"


def _rows(title: str, counts: dict[str, dict[str, int]], labels: dict[str, str] | None = None) -> list[str]:
    """A table with a column for each target; without `labels`, a row for each name that is counted."""
    every = sorted({name for of_target in counts.values() for name in of_target})
    rows = (
        (label, *(of_target.get(name, 0) for of_target in counts.values()))
        for name, label in (labels or dict(zip(every, every, strict=True))).items()
    )
    return [*grid((title, *counts), rows), ""]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", "--seed", type=int, default=0, help="number of the first program")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one program and its outcome")


def measure(options: argparse.Namespace) -> front.Outcome | int:
    """Run all programs; status 1 if an outcome is not equal."""
    if options.show is not None:
        one = job(options.show)
        print(one.make().text, examined(one), sep="\n")
        return 0
    found, ran, done = check_all(options, Verdicts("fed_products", options.out / "verdicts"), jobs)
    if not done:
        raise front.Unfinished(f"{len(found)} programs checked, {ran} of them now")
    data = summary(found)
    return front.Outcome(data, {"fed_products.md": table(data)}, int(bool(data["noted"])))
