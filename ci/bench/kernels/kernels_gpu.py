"""Checks and times every built kernel on the GPU of this machine.

    python ci/bench/kernels.py kernels_gpu artifacts/build/sm_90a [MORE_FOLDERS] [--only add,matvec] [--out FOLDER]

Several folders, or several artifacts of one kernel, are variants of each other: all are checked and timed, the fastest one
counts. First correctness: fresh random inputs, poisoned outputs with guard bytes around them, odd sizes, each element within
the bound of its roundings. Then times, in CUDA graphs, with the library in the same run. A CUBIN with a valid
verdict is timed, but not checked again (`verdicts/kernels_gpu.txt`). Status 1 if a kernel is wrong or misses its floor. Needs
torch and cuda-bindings. `--dry-run` runs everything on a CPU with a driver that launches nothing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ci.bench import front
from ci.bench.front import Outcome
from ci.bench.kernels import children
from ci.bench.kernels.report import keep_verdicts, report


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", type=front.names, default=[], metavar="KERNELS")
    parser.add_argument("--dry-run", action="store_true")
    children.add_child(parser)


def measure(options: argparse.Namespace) -> Outcome | int:
    """Run the children; their records are the result."""
    if options.child is not None:
        from ci.bench.kernels.worker import work

        return work(options.folders, options.child, options.dry_run)
    began = time.monotonic()
    given = [*options.folders, *(["--dry-run"] if options.dry_run else [])]
    records = children.run("kernels_gpu", given, options.only, options.budget)
    keep_verdicts(records, options.out, every=not options.only)
    page, failed = report(records)
    gpu = next((record["gpu"] for record in records if record["kind"] == "machine"), "")
    data = {"gpu": gpu, "seconds": time.monotonic() - began, "records": records}
    return Outcome(data, {f"{options.name}.md": page}, int(failed), whole=not options.only and not options.dry_run)
