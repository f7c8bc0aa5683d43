"""Draws a report as a figure of two plots: tokens per second by generation length under the rooflines, and prefill time by
prompt length. Uses matplotlib (extra `bench`) without a display."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.errors import UsageError
from engine.tools.bench.result import CellResult, Report, Statistic

SUFFIXES: Final = (".png", ".svg")
DECODE, WHOLE, ROOF, INK = "#1f5fa8", "#d1762b", "#555555", "#222222"
NUMBER: Final[Mapping[str, Any]] = {"textcoords": "offset points", "color": DECODE, "fontsize": 9}
SETTINGS: Final = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": ROOF, "text.color": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "svg.hashsalt": "engine.bench", "svg.fonttype": "path",
}  # fmt: skip


def check_plot(path: Path) -> None:
    """UsageError if `path` has another suffix or matplotlib is not installed. Called before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"a plot is {' or '.join(SUFFIXES)}", where=path, fix="name it so")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError("--plot needs matplotlib", fix="install it with `pip install tilec[bench]`") from None


def draw(report: Report, suffix: str) -> bytes:
    """The figure as PNG or SVG; deterministic for the same report and version of matplotlib."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    # Both sweeps include the cell of the first prompt length and the first generation length.
    first = report.cells[0]
    decode_cells = sorted((cell for cell in report.cells if cell.pp == first.pp), key=lambda cell: cell.tg)
    prefill_cells = sorted((cell for cell in report.cells if cell.tg == first.tg), key=lambda cell: cell.pp)
    with matplotlib.rc_context(SETTINGS):
        figure = figures.Figure(figsize=(11, 4.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        model, machine = report.model, report.machine
        title = f"{model.get('name')} {model.get('dtype')} on {machine.get('gpu')}, batch 1, greedy"
        figure.suptitle(title, weight="bold", parse_math=False)
        _rates(left, report, decode_cells)
        _prefill(right, prefill_cells)
        count = len(first.seconds.samples)
        note = f"medians of {count}, bars from first to third quartile · {report.date[:10]}"
        figure.supxlabel(note, fontsize=8, color=ROOF, parse_math=False)
        out = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], dpi=160, metadata=metadata)
    return out.getvalue()


def _rates(axes: Any, report: Report, cells: list[CellResult]) -> None:
    """Tokens per second by `tg`; the axis starts at 0, so that heights compare."""
    tg = [cell.tg for cell in cells]
    nominal = [cell.roofline(report.nominal) for cell in cells]
    axes.plot(tg, nominal, color=ROOF, linestyle="--", marker="_", label=f"roofline, {report.nominal / 1e12:.2f} TB/s nominal")
    if report.bandwidth is not None:
        speed = report.bandwidth.bytes_per_second.median
        label = f"roofline, {speed / 1e12:.2f} TB/s measured"
        axes.plot(tg, [cell.roofline(speed) for cell in cells], color=ROOF, linestyle=":", marker="_", label=label)
    _points(axes, tg, [cell.rate for cell in cells], WHOLE, "s", "end to end")
    _points(axes, tg, [cell.decode_rate for cell in cells], DECODE, "o", "decode only, numbers below")
    for cell in cells:
        share = report.shares(cell)["decode_of_nominal"]
        text = f"{cell.decode_rate.median:.0f}\n({share:.0f} %)"
        axes.annotate(text, (cell.tg, cell.rate.median), (0, -12), ha="center", va="top", **NUMBER)
    axes.set_ylim(0, 1.08 * max(nominal))
    _lengths(axes, tg)
    axes.set(xlabel=f"generated tokens (tg), prompt of {cells[0].pp}", ylabel="tokens per second")
    axes.set_title("Decode (% of the nominal roofline)", fontsize=11)
    axes.legend(loc="best", frameon=False, fontsize=9)


def _prefill(axes: Any, cells: list[CellResult]) -> None:
    """Milliseconds to the first token by `pp`, both axes logarithmic."""
    pp = [cell.pp for cell in cells]
    times = [cell.prefill_seconds.map(lambda seconds: 1e3 * seconds) for cell in cells]
    _points(axes, pp, times, DECODE, "o", "")
    axes.set_yscale("log")
    axes.set_ylim(min(time.q1 for time in times) / 1.8, max(time.q3 for time in times) * 1.8)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    for length, time in zip(pp, times, strict=True):
        axes.annotate(f"{time.median:.3g}", (length, time.median), (-5, 5), ha="right", va="bottom", **NUMBER)
    _lengths(axes, pp)
    axes.set(xlabel="tokens of the prompt (pp)", ylabel="milliseconds to the first token")
    axes.set_title("Prefill", fontsize=11)
    axes.grid(True, axis="y", color="#e4e4e4", linewidth=0.8)


def _points(axes: Any, x: list[int], statistics: list[Statistic], color: str, marker: str, label: str) -> None:
    medians = [statistic.median for statistic in statistics]
    below = [statistic.median - statistic.q1 for statistic in statistics]
    above = [statistic.q3 - statistic.median for statistic in statistics]
    axes.errorbar(x, medians, (below, above), color=color, marker=marker, markersize=5, capsize=3, label=label)


def _lengths(axes: Any, lengths: list[int]) -> None:
    """A logarithmic axis with ticks at the measured lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlim(min(lengths) / 1.9, max(lengths) * 1.6)
