"""Builds candidates of the matrix product, then checks and times them on the GPU of this machine beside cuBLAS.

    python ci/bench/products.py FOLDER                  build what is missing, check, time
    python ci/bench/products.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/products.py FOLDER --only 128x256   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/matmul.py`, tile sizes, a schedule. Where they are built
already no compiler is needed. `products_gpu.py` checks and times them, and writes its report to `--out`. Exit code 1 where a
build fails or a kernel is wrong. Timing needs torch and cuda-bindings.
"""

from __future__ import annotations

import sys
from typing import Final

from candidates import ELEMENT, Candidate, arguments, run, tma

PERSISTENT: Final = ", persistent = true"
IN_TURNS: Final = f'{PERSISTENT}, order = "pingpong"'
CANDIDATES: Final = (
    tma(128, 256, 2, 3, PERSISTENT),
    tma(128, 256, 2, 3, PERSISTENT, 16),
    tma(128, 192, 2, 4, PERSISTENT),
    tma(128, 160, 2, 4, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT, 4),
    tma(128, 128, 2, 6, PERSISTENT, 16),
    tma(128, 96, 2, 6, PERSISTENT),
    tma(128, 192, 2, 3, IN_TURNS),
    tma(192, 128, 2, 3, IN_TURNS),
    tma(128, 160, 2, 4, IN_TURNS),
    tma(128, 128, 2, 4, IN_TURNS),
    tma(128, 128, 2, 4, IN_TURNS, 16),
    tma(64, 256, 2, 4, IN_TURNS),
    tma(64, 192, 2, 5, IN_TURNS),
    tma(64, 160, 2, 6, IN_TURNS),
    tma(64, 128, 2, 7, IN_TURNS),
    tma(64, 128, 3, 6, IN_TURNS),
    tma(128, 80, 2, 6, IN_TURNS),
    tma(128, 80, 2, 6),
    tma(128, 80, 2, 6, PERSISTENT),
    tma(64, 256, 1, 4, PERSISTENT),
    tma(64, 192, 1, 5, PERSISTENT),
    tma(64, 192, 1, 5),
    tma(64, 128, 1, 7),
    tma(64, 128, 1, 7, PERSISTENT),
    tma(64, 80, 1, 8),
    tma(64, 64, 1, 6, ", blocks = 2"),
    tma(64, 64, 1, 8),
    tma(64, 40, 1, 8),
    tma(64, 40, 1, 8, ", blocks = 2"),
    tma(64, 32, 1, 8, ", blocks = 2"),
)


def main() -> int:
    """Build, then time; the exit status."""
    parser = arguments("candidates of the matrix product beside cuBLAS")
    parser.add_argument("--shapes", choices=("few", "all", "short"), default="few")
    options = parser.parse_args()
    return run(options, "matmul", CANDIDATES, constants, "products_gpu.py", ("--shapes", options.shapes))


def constants(candidate: Candidate) -> str:
    """As the build file writes them."""
    return f'E = "{ELEMENT}", BM = {candidate.rows}, BN = {candidate.columns}, BK = 64, GROUP = {candidate.group}'


if __name__ == "__main__":
    sys.exit(main())
