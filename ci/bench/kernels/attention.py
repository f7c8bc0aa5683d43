"""Candidates of attention at prefill on this machine's GPU, with torch's attention for comparison.

    python ci/bench/kernels.py attention FOLDER                  build what is missing, check, time
    python ci/bench/kernels.py attention FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/kernels.py attention FOLDER --only 128x128   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/flash_attention.py`, tile sizes, a schedule. Candidates that
are already built need no compiler. Each is checked at odd lengths, without and with tokens in the cache; then all are timed,
alternately with torch's attention of cuDNN and of FlashAttention-2, in CUDA graphs that access more data than the L2 cache
holds; rows of the result at that length are compared with float64 once more. Random data, 32 query heads, 8 key-value heads of
128. Status 1 if a build fails or a candidate is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ci.bench.front import Outcome
from ci.bench.kernels.attention_names import LIBRARIES, WIDTH
from ci.bench.kernels.candidates import ELEMENT, Candidate, arguments, study, tma, wrong_lines
from ci.bench.kernels.projects import Part
from ci.bench.markdown import grid, page

if TYPE_CHECKING:
    from ci.bench.kernels.candidates_gpu import Candidates

__all__ = ["arguments", "measure"]

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


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, check, time."""
    return study("attention", options, {one: parts(one) for one in CANDIDATES}, _bench, table)


def _bench() -> type[Candidates]:
    from ci.bench.kernels.attention_gpu import AttentionBench

    return AttentionBench


def parts(candidate: Candidate) -> tuple[Part]:
    """The kernel of a candidate."""
    constants = f'E = "{ELEMENT}", D = {WIDTH}, BM = {candidate.rows}, BN = {candidate.columns}'
    return (Part("flash_attention", constants, f"schedule = {{ {candidate.schedule} }}"),)


def table(data: Mapping[str, Any]) -> str:
    """Rates of the libraries and of all candidates."""
    rows, cells = data["rows"], list[tuple[str, ...]]()
    for name in [*LIBRARIES, *sorted({*rows[0]["us"]} - {*LIBRARIES})]:
        rates = " ".join(f"{row['flops'] / row['us'][name] / 1e6:.0f}" for row in rows)
        ratios = " ".join(f"{row['us']['cuDNN'] / row['us'][name]:.3f}" for row in rows)
        cells.append((name, rates, ratios, f"{max(row['errors'][name] / row['errors']['cuDNN'] for row in rows):.2f}"))
    lines = [f"# Causal attention at prefill, bf16, 32 heads over 8, width 128, {data['gpu']}", ""]
    lines += [f"TFLOP/s at {', '.join(str(row['tokens']) for row in rows)} tokens; of cuDNN; largest error over cuDNN's.", ""]
    return page([*lines, *grid(("", "rates", "ratios", "error"), cells, left=3), "", *wrong_lines(data)])
