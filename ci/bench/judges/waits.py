"""Finds reads in the machine code of shipped specialisations that the assembler moved before the grid dependency wait.

In: the kernels of build.toml that support programmatic dependent launch. Out: `waits.md` and `.json`, a line for each kernel;
status 1 if machine code accesses more before its wait than its PTX does (`tests/assemble/test_reads_after_the_wait.py`, which
checks some kernels in every test run). Not covered: reordering by the GPU itself, and kernels whose roles each have their own
wait, which load only by TMA.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT
from tests import shipped
from tests.assemble.test_reads_after_the_wait import accesses_hoisted_above_the_wait, marked
from tests.machine_code import listings
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.project.read.buildfile import read_build_file
from tilec.target.targets import TARGETS, Target

WAIT: Final = "griddepcontrol.wait;"


def look(case: tuple[str, dict[str, Any], Target]) -> list[str] | None:
    """Accesses of a specialisation before its wait; None if it has no wait, or one per role."""
    name, constants, target = case
    ptx = to_ptx(lower(shipped.prepared(name, target, constants), target).mlir, target)
    if ptx.count(WAIT) != 1:
        return None
    (code,) = listings([marked(ptx, target)], target)
    return accesses_hoisted_above_the_wait(code)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--arch", default="sm_90")


def measure(options: argparse.Namespace) -> Outcome:
    """Check all specialisations; status 1 if machine code accesses more before its wait than its PTX does."""
    target = next(one for one in TARGETS if one.name.startswith(options.arch))
    cases = [
        (entry.name, constants, target)
        for entry in read_build_file(ROOT / "build.toml").entries
        if target in entry.among(None)
        for constants in entry.specialisations()
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(look, cases, chunksize=4))
    kernels: dict[str, list[list[str]]] = defaultdict(list)
    for (name, _, _), one in zip(cases, found, strict=True):
        if one is not None:
            kernels[name].append(one)
    early = {name: [one for one in all_of if one] for name, all_of in kernels.items()}
    count, wrong = sum(map(len, kernels.values())), sum(map(len, early.values()))
    lines = [
        f"# Reads before the wait in machine code, {target.name}", "",
        f"{count} of {len(found)} specialisations wait once for earlier kernels; {wrong} touch more before than their PTX.", "",
        *grid(
            ["kernel", "specialisations", "early"],
            [(f"`{name}`", len(all_of), len(early[name])) for name, all_of in kernels.items()],
        ),
    ]  # fmt: skip
    rows = {name: {"specialisations": len(all_of), "early": early[name]} for name, all_of in kernels.items()}
    return Outcome({"target": target.name, "kernels": rows}, {"waits.md": page(lines)}, int(wrong > 0))
