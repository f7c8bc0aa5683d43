"""Builds candidates of the matrix product, then checks and times them on this machine's GPU, with cuBLAS for comparison.

    python ci/bench/products.py FOLDER                  build what is missing, check, time
    python ci/bench/products.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/products.py FOLDER --only 128x256   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/matmul.py`, or `matmul_split.py` and `merge_splits.py`, with
tile sizes and a schedule. `--shapes split` has candidates for few tiles; `--shapes left` for small M, with the weights as
operand A (`matmul_few.py` and `matmul_split.py`); `--shapes seam` with different numbers of prologue stages, which load weights
before the grid dependency wait; `--shapes edges` for M that does not fill tiles; `--shapes table` the shipped ones and the best
ones at some shape, plus Triton's product for bf16. Candidates that are already built need no compiler.
`products_gpu.py` checks and times them, and writes its report to `--out`. Exit code 1 if a build fails or a kernel is wrong.
Timing needs torch and cuda-bindings.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Final

from candidates import ELEMENT, PERSISTENT, PINGPONG, STORED, Candidate, Part, arguments, run, tma

CANDIDATES: Final = (
    tma(128, 256, 2, 3, PERSISTENT),
    tma(128, 256, 2, 3, PERSISTENT, 16),
    tma(128, 192, 2, 4, PERSISTENT),
    tma(128, 160, 2, 4, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT, 4),
    tma(128, 128, 2, 6, PERSISTENT, 16),
    tma(128, 96, 2, 6, PERSISTENT),
    tma(128, 192, 2, 3, PINGPONG),
    tma(192, 128, 2, 3, PINGPONG),
    tma(128, 160, 2, 4, PINGPONG),
    tma(128, 128, 2, 4, PINGPONG),
    tma(128, 128, 2, 4, PINGPONG, 16),
    tma(64, 256, 2, 4, PINGPONG),
    tma(64, 192, 2, 5, PINGPONG),
    tma(64, 160, 2, 6, PINGPONG),
    tma(64, 128, 2, 7, PINGPONG),
    tma(64, 128, 3, 6, PINGPONG),
    tma(128, 80, 2, 6, PINGPONG),
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
TWO: Final = ", blocks = 2"
SPLIT: Final = (
    tma(64, 48, 1, 6, TWO),
    tma(64, 152, 1, 4, TWO),
    tma(64, 152, 1, 8),
    *(tma(64, 160, 1, 4, TWO, split=split) for split in (2, 4, 8, 16)),
    *(tma(64, 160, 1, 7, split=split) for split in (2, 4, 8)),
    *(tma(64, 192, 1, 3, TWO, split=split) for split in (2, 4, 8)),
    tma(64, 192, 1, 6, split=4),
    *(tma(64, 96, 1, 5, TWO, split=split) for split in (2, 4, 5)),
    *(tma(64, 80, 1, 6, TWO, split=split) for split in (2, 4, 8)),
    tma(64, 80, 1, 4, ", blocks = 3", split=8),
    tma(64, 128, 1, 4, TWO, split=3),
    tma(64, 128, 1, 4, TWO, split=6),
    *(tma(128, 160, 2, 5, split=split) for split in (2, 4, 8)),
    tma(128, 256, 2, 4, split=3),
    tma(128, 192, 2, 5, split=4),
    tma(128, 128, 2, 6, split=6),
    tma(128, 200, 2, 5),
    tma(128, 208, 2, 4, PERSISTENT),
    tma(128, 200, 2, 4, PERSISTENT),
)
"""For small M, and for few tiles: products of one wave of 132 blocks, whole or split."""

LEFT: Final = "few_"
"""Name prefix of candidates with the weights as operand A."""


def left(tokens: int, outputs: int, stages: int, blocks: int, split: int = 1) -> Candidate:
    """A candidate with the weights as operand A, at a tile of `tokens` by `outputs`."""
    more = f", blocks = {blocks}" if blocks > 1 else ""
    return Candidate(tokens, outputs, f'copy = "tma", consumers = 1, stages = {stages}{more}', split=split, label=LEFT)


BEST: Final = (
    tma(64, 64, 1, 8),
    tma(64, 128, 1, 7),
    tma(64, 160, 2, 6, PINGPONG),
    tma(64, 192, 1, 5, STORED),
    tma(128, 128, 2, 4, PINGPONG + STORED, 16),
    tma(128, 160, 2, 4, PINGPONG, 16),
    tma(128, 160, 2, 4, PINGPONG + STORED, 16),
    tma(128, 192, 2, 4, PERSISTENT + STORED),
    tma(128, 256, 2, 3, PERSISTENT + STORED, 16),
    *(left(32, 64, 8, 2, split) for split in (1, 3)),
    left(64, 64, 12, 1),
    left(64, 64, 6, 2, 3),
    left(16, 64, 10, 2),
    *(left(16, 64, 10, 2, split) for split in (3, 6)),
    left(16, 64, 7, 3, 4),
    left(64, 64, 6, 2, 4),
    left(128, 64, 4, 2, 3),
    left(128, 64, 8, 1, 3),
    tma(128, 160, 2, 4, PINGPONG),
    tma(128, 128, 2, 6, PERSISTENT, 16),
    tma(128, 128, 2, 6, PERSISTENT, 4),
    tma(256, 128, 2, 4, STORED),
    tma(256, 128, 2, 4, STORED, 16),
    tma(128, 192, 2, 5),
    tma(128, 80, 2, 6),
    tma(64, 160, 1, 7),
)
"""The shipped candidates, and those that were best or nearly so at a shape."""

FEW: Final = (
    *(left(16, 64, stages, blocks) for stages, blocks in ((10, 2), (7, 3))),
    *(left(32, 64, stages, blocks) for stages, blocks in ((8, 2), (6, 3), (4, 4))),
    *(left(32, 128, stages, blocks) for stages, blocks in ((10, 1), (5, 2))),
    *(left(64, 64, stages, blocks) for stages, blocks in ((12, 1), (6, 2), (4, 3))),
    *(left(64, 128, stages, blocks) for stages, blocks in ((8, 1), (4, 2))),
    *(left(128, 64, stages, blocks) for stages, blocks in ((8, 1), (4, 2))),
    *(left(32, 64, 8, 2, split) for split in (2, 3, 6)),
    *(left(32, 64, 6, 3, split) for split in (3, 4, 8, 9)),
    *(left(32, 128, 5, 2, split) for split in (6, 12)),
    *(left(64, 64, 6, 2, split) for split in (2, 3, 6)),
    *(left(64, 64, 4, 3, split) for split in (4, 8)),
    *(left(128, 64, 4, 2, split) for split in (3, 6)),
    tma(64, 64, 1, 8),
    tma(64, 128, 1, 7),
    tma(64, 192, 1, 5),
)
"""For small M, plus the candidates used for it before."""


SEAM: Final = tuple(
    replace(base, schedule=f"{base.schedule}, early = {early}")
    for base in (
        *(left(16, 64, stages, blocks) for stages, blocks in ((10, 2), (7, 3))),
        *(left(32, 64, stages, blocks) for stages, blocks in ((8, 2), (6, 3))),
        left(64, 64, 12, 1),
        left(16, 64, 10, 2, 3),
        left(32, 64, 8, 2, 3),
        left(64, 64, 6, 2, 3),
    )
    for early in (0, 4, 16)
)
"""For small M: 0, 4 or all stages of weights as prologue stages, loaded before the grid dependency wait."""


EDGES: Final = (
    *(left(rows, 64, stages, blocks) for rows, stages, blocks in ((32, 8, 2), (64, 12, 1))),
    tma(64, 64, 1, 8),
    tma(64, 128, 1, 7),
    tma(64, 160, 2, 6, PINGPONG),
    tma(64, 192, 1, 5, STORED),
    tma(128, 128, 2, 4, PINGPONG + STORED, 16),
)
"""For M that does not fill tiles."""


def main() -> int:
    """Build, then time; returns the exit status."""
    parser = arguments("candidates of the matrix product beside cuBLAS")
    parser.add_argument("--shapes", choices=("table", "few", "all", "short", "split", "left", "seam", "edges"), default="few")
    parser.add_argument("--element", choices=("bf16", "f16"), default=ELEMENT, help="of the tensors; a FOLDER is of one")
    options = parser.parse_args()
    candidates = {"table": BEST, "split": SPLIT, "left": FEW, "seam": SEAM, "edges": EDGES}.get(options.shapes, CANDIDATES)
    more = ["--shapes", options.shapes]
    if options.shapes == "table":
        more += ["--kept", "4", *(["--triton"] if options.element == "bf16" else [])]
    return run(options, candidates, partial(parts, element=options.element), "products_gpu.py", more)


def parts(candidate: Candidate, element: str = ELEMENT) -> tuple[Part, ...]:
    """The product kernel; for a split one also the kernel that adds its parts."""
    tile = f'E = "{element}", BM = {candidate.rows}, BN = {candidate.columns}, BK = 64'
    if candidate.split == 1 and candidate.label == LEFT:
        return (Part("matmul_few", tile, candidate.schedule),)
    if candidate.split == 1:
        return (Part("matmul", f"{tile}, GROUP = {candidate.group}", candidate.schedule),)
    return (
        Part("matmul_split", f"{tile}, S = {candidate.split}", candidate.schedule),
        Part("merge_splits", f'E = "{element}", S = {candidate.split}, BLOCK = 512', 'warps = 4, next = "before"'),
    )


if __name__ == "__main__":
    sys.exit(main())
