"""Kernels as users wrote them first, from the documentation alone, on this machine's GPU: compared with float64, and timed with
PyTorch's operators.

    tilec build --project ci/bench/kernels/plain                          makes the artifacts; needs the compiler, no GPU
    TILEC_PREBUILT=FOLDER python ci/bench/kernels.py plain_texts          FOLDER is ci/bench/kernels/plain/artifacts/build
    python ci/bench/kernels.py plain_texts --interpreted                  results at small sizes, on the interpreter; no GPU

The kernels of `plain/` are those of a trial: users who had seen neither the project nor its sources wrote forty topics from the
documentation. Constants are theirs, schedules are the default ones. Each is measured as a function of the library is
(`library_gpu`); where PyTorch has no operator, its shortest text is compiled. Last column: the better of PyTorch's times over
ours. Status 1 if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from ci.bench import front
from ci.bench.front import Outcome
from ci.bench.kernels.timed_problems import outcome, timed

HEAD: Final = """\
{where}: kernels as first written by users who had the documentation alone. Error: the largest difference from float64 in units
of what is allowed (`ci/bench/kernels/library_problem.py`), at odd sizes and at the timed one. Times in microseconds, medians;
*compiled*: PyTorch's text under `torch.compile`. Floor: bytes at the rate of PyTorch's copy in this run ({rate:.2f} TB/s), or
operations at {peak:.0f} TFLOP/s. Last column: PyTorch's better time over ours."""


PLAIN: Final = Path(__file__).with_name("plain")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", type=front.names, default=[], metavar="NAMES")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--interpreted", action="store_true", help="print errors at small sizes; writes no files")


def measure(options: argparse.Namespace) -> Iterator[Outcome] | int:
    """Check and time every kernel, or check them on the interpreter."""
    return _interpreted(options.only) if options.interpreted else _timed(options)


def _timed(options: argparse.Namespace) -> Iterator[Outcome]:
    """The rows so far after each kernel, with the median and the worst ratio."""
    from ci.bench.kernels.plain_problems import PROBLEMS, torch

    for about, rows, whole in timed(torch, PROBLEMS, options):
        over = [row.over for row in rows if row.over]
        shown = {"median": median(over), "worst": min(over)} if over else {}
        yield outcome(about | shown, rows, options.name, "Kernels as first written", HEAD, whole=whole)


def _interpreted(only: list[str]) -> int:
    from ci.bench.kernels import interpreted_ops

    interpreted_ops.install(PLAIN)
    from ci.bench.kernels.plain_problems import PROBLEMS

    wrong = 0
    for problem in PROBLEMS:
        if not only or problem.function in only:
            try:
                error = max(problem.error(sizes, backward=False) for sizes in problem.checked[:-1])
            except Exception:  # a failure of one kernel is its own
                traceback.print_exc()
                error = math.inf
            print(f"{problem.function:20} {error:.3g}", flush=True)
            wrong += not error <= 1
    return int(wrong > 0)
