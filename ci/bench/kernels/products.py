"""Candidates of the matrix product on this machine's GPU, with cuBLAS and Triton for comparison.

    python ci/bench/kernels.py products FOLDER                  build what is missing, check, time
    python ci/bench/kernels.py products FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/kernels.py products FOLDER --only 128x256   candidates whose names hold this

Each candidate is a project of its own below FOLDER with tile sizes and a schedule: `kernels_src/matmul.py`; `matmul_few.py` for
small M, with the weights as operand A; or `matmul_split.py` and the `merge_splits.py` that adds its parts. Candidates that are
already built need no compiler. Each is checked at odd sizes and a small cube; then at each shape the best of a first round are
timed, alternately with torch's product, in CUDA graphs that access more data than the L2 cache holds; the result at that shape
is compared once more. Random data. Candidates are also timed *overlapped*, as the engine launches them: a product may begin
while the previous launch still runs. Of two kernels the second may overlap the first, and both are timed together; the first is
also timed alone, because the next kernel may add its parts. At some shapes the fastest candidates and torch's product are
timed in short runs on a cool chip and in long ones on a hot one as well (`regimes.py`). Of Triton's persistent product the best
configuration at each shape is timed (`triton_products.py`). Status 1 if a build fails or a candidate is wrong. Timing needs
torch, Triton and cuda-bindings.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ci.bench.front import Outcome
from ci.bench.kernels.candidates import CUBLAS, ELEMENT, OVERLAPPED, TRITON, Candidate, arguments, study, tma, wrong_lines
from ci.bench.kernels.projects import Part
from ci.bench.markdown import grid, line, page

if TYPE_CHECKING:
    from ci.bench.kernels.candidates_gpu import Candidates

__all__ = ["arguments", "measure"]

PERSISTENT: Final = ", persistent = true"
PINGPONG: Final = f'{PERSISTENT}, order = "pingpong"'
STORED: Final = ', store = "tma"'
"""Schedule suffix in the build file's syntax."""
LEFT: Final = "few_"
"""Name prefix of candidates with the weights as operand A."""


def left(tokens: int, outputs: int, stages: int, blocks: int, split: int = 1) -> Candidate:
    """A candidate with the weights as operand A, at a tile of `tokens` by `outputs`."""
    more = f", blocks = {blocks}" if blocks > 1 else ""
    return Candidate(tokens, outputs, f'copy = "tma", consumers = 1, stages = {stages}{more}', split=split, label=LEFT)


CANDIDATES: Final = (
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
    *(left(64, 64, 6, 2, split) for split in (3, 4)),
    *(left(16, 64, 10, 2, split) for split in (1, 3, 6)),
    left(16, 64, 7, 3, 4),
    left(128, 64, 4, 2, 3),
    left(128, 64, 8, 1, 3),
    tma(128, 160, 2, 4, PINGPONG),
    *(tma(128, 128, 2, 6, PERSISTENT, group) for group in (16, 4)),
    *(tma(256, 128, 2, 4, STORED, group) for group in (8, 16)),
    tma(128, 192, 2, 5),
    tma(128, 80, 2, 6),
    tma(64, 160, 1, 7),
)
"""The shipped candidates, and those that were best or nearly so at a shape."""


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, check, time."""
    return study("products", options, {one: parts(one) for one in CANDIDATES}, _bench, table, element=ELEMENT)


def _bench() -> type[Candidates]:
    from ci.bench.kernels.products_gpu import ProductsBench

    return ProductsBench


def parts(candidate: Candidate) -> tuple[Part, ...]:
    """The product kernel; for a split one also the kernel that adds its parts."""
    tile = f'E = "{ELEMENT}", BM = {candidate.rows}, BN = {candidate.columns}, BK = 64'
    schedule = f"schedule = {{ {candidate.schedule} }}"
    if candidate.split == 1 and candidate.label == LEFT:
        return (Part("matmul_few", tile, schedule),)
    if candidate.split == 1:
        return (Part("matmul", f"{tile}, GROUP = {candidate.group}", schedule),)
    merge = Part(
        "merge_splits", f'E = "{ELEMENT}", S = {candidate.split}, BLOCK = 512', 'schedule = { warps = 4, next = "before" }'
    )
    return (Part("matmul_split", f"{tile}, S = {candidate.split}", schedule), merge)


Found = tuple[float, str]
"""A ratio to cuBLAS, and the candidate that has it."""


def table(data: Mapping[str, Any]) -> str:
    """The best candidate at each shape, cuBLAS and Triton; means; all ratios."""
    rows = data["rows"]
    ratios = [{name: row["us"][CUBLAS] / us for name, us in row["us"].items()} for row in rows]
    ours = [{name: ratio for name, ratio in one.items() if name not in (CUBLAS, TRITON)} for one in ratios]
    best = [max((ratio, name) for name, ratio in one.items() if OVERLAPPED not in name) for one in ours]
    overlapped = [
        max((ratio, name.removesuffix(OVERLAPPED)) for name, ratio in one.items() if name.endswith(OVERLAPPED)) for one in ours
    ]
    of_triton = [(one[TRITON], "") for one in ratios]
    return page([
        f"# Products compared with cuBLAS, {data['element']}, {data['gpu']}", "",
        "`read`: the time of reading `b` once over the time taken. Overlapped: a product may begin while the one before ends.",
        "",
        "| M x N x K | cuBLAS, TFLOP/s | read | Triton | ratio | best | ratio | read | candidate | overlapped: ratio | read "
        "| candidate |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|---|",
        *map(_row, rows, of_triton, best, overlapped),
        "", *_summary(rows, "best", best), *_summary(rows, "best, overlapped", overlapped),
        "", *_summary(rows, TRITON, of_triton),
        *regime_lines(rows),
        "", "Triton's configurations, in the order above: " + ", ".join(str(row["triton"]) for row in rows) + ".",
        "", "Each candidate, ratio to cuBLAS in the order above; `-`: left out after a first round.", "",
        *(
            f"- {name}: {' '.join(f'{one[name]:.2f}' if name in one else '-' for one in ours)}"
            for name in sorted(set[str]().union(*ours))
        ),
        *wrong_lines(data),
    ])  # fmt: skip


def regime_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of the shapes that were timed in short runs and in long ones; empty if there are none."""
    cells: list[list[object]] = []
    for row in rows:
        for regime, us in row.get("regimes", {}).items():
            ours = {name: us[CUBLAS] / value for name, value in us.items() if name != CUBLAS}
            plain, overlapped = (
                max(
                    (ratio, name.removesuffix(OVERLAPPED))
                    for name, ratio in ours.items()
                    if name.endswith(OVERLAPPED) is wanted
                )
                for wanted in (False, True)
            )
            shape, rate = " x ".join(map(str, row["shape"])), row["flops"] / us[CUBLAS] / 1e6
            cells.append([shape, regime, f"{rate:.0f}", f"{plain[0]:.3f}", plain[1], f"{overlapped[0]:.3f}", overlapped[1]])
    header = ("M x N x K", "chip", "cuBLAS, TFLOP/s", "ratio", "candidate", "overlapped: ratio", "candidate")
    return ["", "Short runs on a cool chip, long ones on a hot one:", "", *grid(header, cells, left=2)] if cells else []


def _row(row: Mapping[str, Any], triton: Found, best: Found, overlapped: Found) -> str:
    rate, floor = row["flops"] / row["us"][CUBLAS] / 1e6, row["read_us"] / row["us"][CUBLAS]
    cells = [" x ".join(map(str, row["shape"])), f"{rate:.0f}", f"{floor:.2f}", f"{rate * triton[0]:.0f}", f"{triton[0]:.3f}"]
    cells += [f"{rate * best[0]:.0f}", f"{best[0]:.3f}", f"{floor * best[0]:.2f}", best[1]]
    return line([*cells, f"{overlapped[0]:.3f}", f"{floor * overlapped[0]:.2f}", overlapped[1]])


def _summary(rows: Sequence[Mapping[str, Any]], series: str, found: Sequence[Found]) -> list[str]:
    """Least ratio to cuBLAS and geometric mean, separately for small and large M."""
    lines: list[str] = []
    for label, is_large in (("M >= 128", True), ("M < 128", False)):
        chosen = [ratio for row, (ratio, _) in zip(rows, found, strict=True) if (row["shape"][0] >= 128) is is_large]
        if chosen:
            mean = math.exp(sum(map(math.log, chosen)) / len(chosen))
            lines.append(f"- {series}, {label}: least {min(chosen):.3f} of cuBLAS, geometric mean {mean:.3f}")
    return lines
