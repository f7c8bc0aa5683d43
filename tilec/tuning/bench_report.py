"""The output of `tilec bench`: a table, JSON, and a figure.

In: a manifest, the measurements, launches with their work, and published rates if nothing was measured. Out: lines, plain data,
bytes of a figure. The heading of the table and `measured` in the JSON say whether the numbers were measured.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from tilec.artifact.records import Manifest
from tilec.tuning.comparison import Compared, Row
from tilec.tuning.roofline import Rates, Work

Launches = Sequence[tuple[Mapping[str, float], Work]]
SUFFIXES: Final = (".svg", ".png")
SETTINGS: Final = {"svg.hashsalt": "tilec.bench", "svg.fonttype": "path", "axes.spines.top": False, "axes.spines.right": False}
KERNEL, BASELINE, FLOOR = "#1f5fa8", "#d1762b", "#555555"


def _launch_text(launch: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in launch.items())


def _resources(manifest: Manifest) -> dict[str, int]:
    used = manifest.resources
    return {
        "registers": used.registers, "spill_bytes": used.spill_bytes,
        "shared_bytes": used.static_shared_bytes + used.dynamic_shared_bytes, "threads": manifest.block,
    }  # fmt: skip


def as_json(manifest: Manifest, found: Compared, launches: Launches, published: Rates | None) -> dict[str, Any]:
    """The result as plain data; times in microseconds, rates in bytes or operations per second."""
    rows: list[dict[str, Any]] = []
    for number, (launch, one) in enumerate(launches):
        row = found.rows[number] if number < len(found.rows) else Row(launch, None, None)
        floor = one.floor(published.bytes_per_second, published.products_per_second) if published else found.floor(one)
        rows.append({
            "launch": dict(launch), "bytes": one.bytes, "product_operations": one.products, "floor_us": floor,
            "kernel_us": _spread(row.kernel), "baseline_us": _spread(row.baseline), "wrong": row.wrong, "refused": row.refused,
        })  # fmt: skip
    return {
        "kernel": manifest.kernel, "constants": dict(manifest.constants), "arch": manifest.arch, "measured": published is None,
        "device": found.device, "driver": found.driver, "resources": _resources(manifest),
        "rates": {
            "copy_bytes_per_second": found.copy, "chip": asdict(found.nominal) if found.nominal else None,
            "published": asdict(published) if published else None,
        },
        "launches": rows, "wrong": found.wrong, "notes": found.notes, "errors": [],
    }  # fmt: skip


def _spread(time: tuple[float, float, float] | None) -> dict[str, float] | None:
    return None if time is None else dict(zip(("median", "p10", "p90"), time, strict=True))


def lines(manifest: Manifest, found: Compared, launches: Launches, published: Rates | None) -> list[str]:
    """The printed table."""
    constants = " ".join(f"{name}={value}" for name, value in manifest.constants.items())
    used = _resources(manifest)
    table_lines = [
        f"{manifest.kernel}  {constants}  {manifest.arch}  {used['registers']} registers, {used['spill_bytes']} spilled bytes, "
        f"{used['shared_bytes']} bytes shared, {used['threads']} threads"
    ]
    if published is not None:
        table_lines.append(
            f"no measurement: floors by published rates of {published.name}, {published.bytes_per_second / 1e12:g} TB/s and "
            f"{published.products_per_second / 1e12:g} TFLOP/s ({published.source})"
        )
        cells = [("launch", "MB", "GFLOP", "floor us")]
        for launch, one in launches:
            floor = one.floor(published.bytes_per_second, published.products_per_second)
            cells.append((_launch_text(launch), f"{one.bytes / 1e6:.3f}", _operations(one), f"{floor:.2f}"))
        return [*table_lines, *_aligned(cells)]
    table_lines.append(
        f"{found.device}, driver {found.driver or '?'}: medians, 10th to 90th percentile, random data, none in L2"
    )
    if found.copy is not None:
        nominal = f" of {found.nominal.bytes_per_second / 1e12:.2f} TB/s by {found.nominal.source}" if found.nominal else ""
        table_lines.append(f"a copy in the same run: {found.copy / 1e12:.2f} TB/s{nominal}")
    cells: list[tuple[str, ...]] = [
        ("launch", "us", "", "baseline us", "times as fast", "GB/s", "TFLOP/s", "floor us", "of the roofline")
    ]
    for row, (launch, one) in zip(found.rows, launches, strict=False):
        cells.append(_measured(row, launch, one, found.floor(one)))
    return [*table_lines, *(_aligned(cells) if found.rows else [])]


def _measured(row: Row, launch: Mapping[str, float], one: Work, floor: float | None) -> tuple[str, ...]:
    if row.kernel is None:
        return (_launch_text(launch), "-", "", "", "", "", "", "", "")
    median, low, high = row.kernel
    baseline = f"{row.baseline[0]:.2f}" if row.baseline else ""
    faster = f"{row.baseline[0] / median:.3f}" if row.baseline else ""
    rate = f"{one.products / median / 1e6:.1f}" if one.products else ""
    return (
        _launch_text(launch), f"{median:.2f}", f"{low:.2f} to {high:.2f}", baseline, faster,
        f"{one.bytes / median / 1e3:.0f}", rate, f"{floor:.2f}" if floor else "",
        f"{100 * floor / median:.0f} %" if floor else "",
    )  # fmt: skip


def _operations(one: Work) -> str:
    return "?" if one.products is None else f"{one.products / 1e9:.3f}" if one.products else ""


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    kept = [column for column in range(len(cells[0])) if column == 0 or any(row[column] for row in cells[1:])]
    widths = {column: max(len(row[column]) for row in cells) for column in kept}
    return [
        "  ".join(row[at].ljust(widths[at]) if at == 0 else row[at].rjust(widths[at]) for at in kept).rstrip() for row in cells
    ]


def check_plot(path: Path) -> None:
    """click's usage error if `path` has another suffix or matplotlib is missing; called before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise click.UsageError(f"`--plot {path}` is not a {' or '.join(SUFFIXES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise click.UsageError("`--plot` needs matplotlib: pip install 'tilec[bench]'") from None


def draw(manifest: Manifest, found: Compared, launches: Launches, suffix: str) -> bytes:
    """A bar chart of kernel and baseline at each launch in microseconds, with 10th to 90th percentile and the lower bound."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    shown = [(row, one) for row, (_, one) in zip(found.rows, launches, strict=False) if row.kernel is not None]
    with matplotlib.rc_context(SETTINGS):
        figure = figures.Figure(figsize=(8, 1.4 + 0.6 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for number, (row, one) in enumerate(shown):
            for offset, time, colour, name in ((-0.2, row.kernel, KERNEL, "tilec"), (0.2, row.baseline, BASELINE, "baseline")):
                if time is not None:
                    whisker = [[time[0] - time[1]], [time[2] - time[0]]]
                    label = name if number == 0 else None
                    axes.barh(number + offset, time[0], 0.38, xerr=whisker, color=colour, label=label)
            floor = found.floor(one)
            if floor is not None:
                label = "floor" if number == 0 else None
                axes.plot([floor, floor], [number - 0.45, number + 0.45], color=FLOOR, linestyle="--", label=label)
        axes.set_yticks(range(len(shown)), [_launch_text(row.launch) for row, _ in shown])
        axes.invert_yaxis()
        axes.set_xlabel("microseconds, less is better")
        constants = " ".join(f"{name}={value}" for name, value in manifest.constants.items())
        axes.set_title(f"{manifest.kernel} {constants} on {found.device}", parse_math=False)
        axes.legend(frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format=suffix[1:], dpi=160, metadata={"Date": None} if suffix == ".svg" else {"Software": None})
    return out.getvalue()
