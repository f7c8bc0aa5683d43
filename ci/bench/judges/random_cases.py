"""Checks numbered random kernels without compiling them to PTX, and caches the verdicts.

`edge_programs`: one masked box whose indices are made of shifts, casts and masks at the edges of dtypes. The enumerator runs
each accepted kernel, as written and as prepared; every tenth is lowered and run on the MLIR block machine and the interpreter.
`product_loops`: products in loops with odd bounds and steps under every schedule that each may have, at four launches, on a
machine that tracks which boxes are summed where.

Verdicts are cached in `verdicts/NAME.txt` by the kernel's text and the sources of the compiler and the checkers, so that an
interrupted run can continue. The exit status is 1 if anything is wrong or an internal error.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ci.bench.front import Outcome
from ci.evidence import ROOT, Digests, read_registry
from ci.evidence.verdicts import Verdict, Verdicts, key
from tests.programs import edge_programs, product_loops

LOWERED: Final = 10
"""One of this many edge programs is lowered and run."""
WRONG: Final = ("wrong", "internal")


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels by number: `text` returns one, `verdict` checks it. The detail of a verdict has counts of labels under `counts`
    and errors under `noted`."""

    text: Callable[[int], str]
    verdict: Callable[[int, Path], Verdict]


def edge_program(number: int, folder: Path) -> Verdict:
    """The verdict on an edge program; the detail is None if only its kind is counted."""
    one = edge_programs.examine(number, folder, machine=number % LOWERED == 0)
    counts = {
        "a mask is dropped": int(one.dropped),
        "lowered and run": int(one.lowered),
        one.detail: int(one.kind == "refused"),
    }
    noted = [{"number": number, "kind": one.kind, "detail": one.detail}] if one.kind in WRONG else []
    return Verdict(one.kind, _detail({name: count for name, count in counts.items() if count}, noted))


def product_loop(number: int, folder: Path) -> Verdict:
    """The verdict on a product loop under every schedule."""
    found, counts = product_loops.examine(number, folder), Counter[str]()
    for one in found:
        counts[f"{one.kind}, {one.schedule}" if one.schedule else f"{one.kind}, {one.detail}"] += 1
        counts[f"all {one.kind}"] += 1
        counts["launches"] += one.launches
    noted = [
        {"number": number, "schedule": one.schedule, "kind": one.kind, "detail": one.detail}
        for one in found
        if one.kind in WRONG
    ]
    return Verdict("wrong" if noted else "checked", _detail(dict(counts), noted))


def _detail(counts: dict[str, int], noted: list[dict[str, Any]]) -> dict[str, Any] | None:
    return {"counts": counts} | ({"noted": noted} if noted else {}) if counts or noted else None


FAMILIES: Final = {
    "edge_programs": Family(lambda number: edge_programs.program(number).text, edge_program),
    "product_loops": Family(lambda number: product_loops.kernel(number).text, product_loop),
}


def checked(job: tuple[str, int]) -> tuple[int, Verdict]:
    """One case of a family, in a separate process."""
    family, number = job
    with TemporaryDirectory() as folder:
        return number, FAMILIES[family].verdict(number, Path(folder))


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The counts of all cases, and the errors."""
    counts, noted = Counter[str](), list[dict[str, Any]]()
    for verdict in verdicts:
        counts[verdict.word] += 1
        detail: dict[str, Any] = verdict.detail or {}
        counts.update(detail.get("counts", {}))
        noted += detail.get("noted", [])
    return {"cases": len(verdicts), "counts": dict(sorted(counts.items())), "noted": noted}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.set_defaults(family="")  # the table of cases says which
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one kernel and the verdict on it")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Check cases without a verdict of today's sources; status 1 if anything is wrong or an internal error."""
    family = FAMILIES[options.family]
    if options.show is not None:
        print(family.text(options.show), checked((options.family, options.show))[1])
        return 0
    sources = [name.partition(":")[2] for name in read_registry()[options.family].rests_on]
    basis, verdicts = Digests(ROOT).definitions(sources), Verdicts(options.family, options.out / "verdicts")
    keys = {number: key(basis, number, family.text(number)) for number in range(options.count)}
    todo = [(options.family, number) for number in keys if verdicts.find(number, keys[number]) is None]
    with multiprocessing.get_context("forkserver").Pool(options.jobs) as pool:
        for number, verdict in pool.imap_unordered(checked, todo, chunksize=4):
            verdicts.add(number, [keys[number]], verdict)
    verdicts.close(list(keys))
    found = summary([line.verdict for line in verdicts.lines.values()])
    print(*(f"{count:7} {name}" for name, count in found["counts"].items()), sep="\n")
    return Outcome(found, status=int(bool(found["noted"])))
