"""Builds products whose tiles go to memory by stores of their threads, and the same by copies through tensor maps (`store =
"tma"`), then checks and times them in turns on the GPU of this machine.

    python ci/bench/stores.py FOLDER                  build what is missing, check, time
    python ci/bench/stores.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it

Candidates are the tiles of `matmul` and `matmul_silu_mul` that build.toml has for 128 rows and more, and some beside them.
`stores_gpu.py` checks and times them, and writes its report to `--out`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

from candidates import ELEMENT, IN_TURNS, PERSISTENT, STORED, Candidate, Part, arguments, run, tma

GATED: Final = "silu_"
"""What names of candidates of `matmul_silu_mul` begin with; their columns are those of its result."""
TILES: Final = (
    tma(64, 160, 2, 6, IN_TURNS),
    tma(64, 192, 1, 5),
    tma(128, 128, 2, 4, IN_TURNS, 16),
    tma(128, 160, 2, 4, IN_TURNS, 16),
    tma(128, 192, 2, 4, PERSISTENT),
    tma(128, 256, 2, 3, PERSISTENT, 16),
    tma(256, 160, 2, 4),
    tma(256, 128, 2, 4),
    replace(tma(128, 64, 2, 5, IN_TURNS, 16), label=GATED),
    replace(tma(128, 80, 2, 4, IN_TURNS, 16), label=GATED),
)
DEEPER: Final = (tma(128, 256, 2, 4, PERSISTENT + STORED, 16),)
"""Rings that have room beside scratch of a part of the tile alone."""
CANDIDATES: Final = (*TILES, *(replace(one, schedule=one.schedule + STORED) for one in TILES), *DEEPER)


def main() -> int:
    """Build, then time; the exit status."""
    options = arguments("products that are stored by copies beside those that are not").parse_args()
    return run(options, CANDIDATES, parts, "stores_gpu.py")


def parts(candidate: Candidate) -> tuple[Part, ...]:
    """The one kernel."""
    tile = f'E = "{ELEMENT}", BM = {candidate.rows}, BN = {candidate.columns}, BK = 64, GROUP = {candidate.group}'
    return (Part("matmul_silu_mul" if candidate.label else "matmul", tile, candidate.schedule),)


if __name__ == "__main__":
    sys.exit(main())
