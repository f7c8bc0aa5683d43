"""Finds reads in the machine code of shipped specialisations that the assembler moved before the grid dependency wait.

    python ci/bench/waits.py [--arch sm_90] [--jobs 2] [--output ci/bench/results]

In: the kernels of build.toml that support programmatic dependent launch. Out: `waits.md` and `.json`, a line for each kernel;
status 1 if machine code accesses more before its wait than its PTX does (`tests/assemble/test_reads_behind_the_wait.py`, which
checks some kernels in every test run). Not covered: reordering by the GPU itself, and kernels whose roles each have their own
wait, which load only by TMA.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests import shipped  # noqa: E402
from tests.assemble.test_reads_behind_the_wait import accesses_hoisted_above_the_wait, marked  # noqa: E402
from tests.machine_code import listings  # noqa: E402
from tilec.codegen import to_ptx  # noqa: E402
from tilec.lowering import lower  # noqa: E402
from tilec.project.read.buildfile import read_build_file  # noqa: E402
from tilec.target.targets import TARGETS, Target  # noqa: E402

WAIT: Final = "griddepcontrol.wait;"


def main() -> int:
    """Check all specialisations, write the table."""
    parser = argparse.ArgumentParser(description="reads in front of the wait in machine code")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    options = parser.parse_args()
    target = next(one for one in TARGETS if one.name.startswith(options.arch))
    cases = [
        (entry.name, constants, target)
        for entry in read_build_file(ROOT / "build.toml").entries
        if target in entry.among(None)
        for constants in entry.specialisations()
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(look, cases, chunksize=4))
    return report(target, [(name, one) for (name, _, _), one in zip(cases, found, strict=True)], options.output)


def look(case: tuple[str, dict[str, Any], Target]) -> list[str] | None:
    """Accesses of a specialisation before its wait; None if it has no wait, or one per role."""
    name, constants, target = case
    ptx = to_ptx(lower(shipped.prepared(name, target, constants), target).mlir, target)
    if ptx.count(WAIT) != 1:
        return None
    (code,) = listings([marked(ptx, target)], target)
    return accesses_hoisted_above_the_wait(code)


def report(target: Target, found: list[tuple[str, list[str] | None]], folder: Path) -> int:
    """Write and print the table."""
    kernels: dict[str, list[list[str]]] = defaultdict(list)
    for name, one in found:
        if one is not None:
            kernels[name].append(one)
    early = {name: [one for one in all_of if one] for name, all_of in kernels.items()}
    count, wrong = sum(map(len, kernels.values())), sum(map(len, early.values()))
    lines = [
        f"# Reads in front of the wait in machine code, {target.name}", "",
        f"{count} of {len(found)} specialisations wait once for earlier kernels; {wrong} touch more before than their PTX.",
        "", "| kernel | specialisations | early |", "|---|--:|--:|",
        *(f"| `{name}` | {len(all_of)} | {len(early[name])} |" for name, all_of in kernels.items()),
    ]  # fmt: skip
    rows = {name: {"specialisations": len(all_of), "early": early[name]} for name, all_of in kernels.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "waits.json").write_text(json.dumps({"target": target.name, "kernels": rows}, indent=1) + "\n")
    (folder / "waits.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
