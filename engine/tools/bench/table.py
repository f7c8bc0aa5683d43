"""Prints a report as a text table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from engine.tools.bench.result import CellResult, Report, Statistic
from tilec.diagnostics.visible import visible


def print_table(report: Report, console: Console) -> None:
    """One row per cell: medians, quartiles in brackets, and percent of the rooflines."""
    machine, model, policy = report.machine, report.model, report.policy
    heading = f"{model.get('name')} {model.get('dtype')} on {machine.get('gpu')}, {policy.get('what')}"
    console.print(visible(heading), markup=False, soft_wrap=True)
    measured = report.bandwidth is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ["pp", "tg", "prefill\nms", "", "end to end\ntok/s", "", "decode\ntok/s", "", "roof\ntok/s"]
    batched = any(cell.batch > 1 for cell in report.cells)
    names += ["of each\ntok/s"] if batched else []
    names += ["end to end\n% nominal", "decode\n% nominal"] + (["decode\n% measured"] if measured else [])
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.cells:
        table.add_row(*_row(report, cell, batched))
    console.print(table)
    roof = f"{report.nominal / 1e12:.2f} TB/s nominal over the bytes of a decode step"
    console.print(f"medians [first to third quartile]; roof: {roof}", markup=False, soft_wrap=True)
    if report.bandwidth is not None:
        speed = report.bandwidth.bytes_per_second
        spread = f"{speed.median / 1e12:.3f} TB/s [{speed.q1 / 1e12:.3f} - {speed.q3 / 1e12:.3f}]"
        console.print(f"measured: {spread}: {visible(report.bandwidth.what)}", markup=False, soft_wrap=True)
    for cell in report.cells:
        if not cell.repeatable:
            what = (
                f"pp {cell.pp}, tg {cell.tg}: repetitions generated different tokens, although greedy decoding is deterministic"
            )
            console.print(what, markup=False, soft_wrap=True)


def _row(report: Report, cell: CellResult, several: bool) -> list[str]:
    shares = report.shares(cell)
    percents = [shares["end_to_end_of_nominal"], shares["decode_of_nominal"]]
    if report.bandwidth is not None:
        percents.append(shares["decode_of_measured"])
    milliseconds = cell.prefill_seconds.map(lambda seconds: 1e3 * seconds)
    numbers = [str(cell.pp), str(cell.tg)]
    for statistic, digits in ((milliseconds, 2), (cell.rate, 1), (cell.decode_rate, 1)):
        numbers += [f"{statistic.median:.{digits}f}", _spread(statistic, digits)]
    each = [f"{cell.decode_rate.median / cell.batch:.1f}"] if several else []
    return [*numbers, f"{cell.roofline(report.nominal):.1f}", *each, *(f"{percent:.1f}" for percent in percents)]


def _spread(statistic: Statistic, digits: int) -> str:
    return f"\\[{statistic.q1:.{digits}f} - {statistic.q3:.{digits}f}]"
