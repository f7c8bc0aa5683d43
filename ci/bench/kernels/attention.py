"""Builds candidates of prefill attention, then checks and times them on this machine's GPU, with torch's attention for
comparison.

    python ci/bench/attention.py FOLDER                  build what is missing, check, time
    python ci/bench/attention.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/attention.py FOLDER --only 128x128   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/flash_attention.py`, tile sizes, a schedule. Candidates that
are already built need no compiler. `attention_gpu.py` checks and times them. Exit code 1 if a build fails or a candidate is
wrong.
"""

from __future__ import annotations

import sys
from typing import Final

from candidates import ELEMENT, Candidate, Part, arguments, run, tma

WIDTH: Final = 128
CANDIDATES: Final = (
    Candidate(64, 64, "warps = 4, blocks = 2"),  # the schedule of the other architectures
    tma(128, 128, 2, 2),
    tma(128, 128, 2, 3),
    tma(128, 64, 2, 4),
    tma(192, 128, 3, 2),
    tma(192, 64, 3, 4),
    tma(64, 128, 1, 2),
    tma(64, 64, 1, 2, ", blocks = 2"),
)


def main() -> int:
    """Build, then time; returns the exit status."""
    options = arguments("candidates of attention at prefill beside torch's").parse_args()
    return run(options, CANDIDATES, parts, "attention_gpu.py")


def parts(candidate: Candidate) -> tuple[Part]:
    """The kernel of a candidate."""
    constants = f'E = "{ELEMENT}", D = {WIDTH}, BM = {candidate.rows}, BN = {candidate.columns}'
    return (Part("flash_attention", constants, candidate.schedule),)


if __name__ == "__main__":
    sys.exit(main())
