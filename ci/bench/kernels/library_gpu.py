"""The functions of `tilec.kernels` on this machine's GPU: compared with float64, and timed with PyTorch's.

    tilec build --project tilec/kernels --arch sm_90                     makes the artifacts; needs the compiler, no GPU
    TILEC_PREBUILT=FOLDER/artifacts/build python ci/bench/kernels.py library_gpu [--only NAMES]

Each function of `library_problems.py` is called on random tensors at odd sizes and at the timed size; results and gradients are
compared with PyTorch's in float64. Then the function, PyTorch's operator and PyTorch's compiled by `torch.compile` are timed
alternately in CUDA graphs, over tensors of more bytes than the L2 cache holds: the forward without gradients, and forward and
backward together. An operator that waits for the GPU, or takes more than 20 ms, is timed from the host. Floor: the bytes that
must be moved at the rate of PyTorch's copy in the same run, or the operations of products at the dense peak of the chip. Status
1 if a function is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from ci.bench import front
from ci.bench.front import Outcome
from ci.bench.kernels.timed_problems import outcome, timed

HEAD: Final = """\
{where}: functions of `tilec.kernels` on random tensors. Error: the largest difference from float64 in units of what is allowed
(`ci/bench/kernels/library_problem.py`), of results and gradients, at odd sizes and at the timed one. Times in microseconds,
medians; *compiled*: PyTorch's operator under `torch.compile`. Floor: bytes at the rate of PyTorch's copy in this run
({rate:.2f} TB/s), or operations at {peak:.0f} TFLOP/s. Last column: PyTorch's better time over ours."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", type=front.names, default=[], metavar="NAMES")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Check and time every function; the results so far after each."""
    from ci.bench.kernels.library_problems import PROBLEMS, torch
    from ci.bench.kernels.library_products import PRODUCTS

    for about, rows, whole in timed(torch, (*PROBLEMS, *PRODUCTS), options):
        yield outcome(about, rows, options.name, "The library on a GPU", HEAD, whole=whole)
