"""The tables of `kernels_gpu`, its verdicts and whether it failed, from the children's records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from ci.bench import markdown
from ci.bench.kernels.children import Record
from ci.evidence.verdicts import Verdict, Verdicts

GEOMETRIC_MEAN_FLOORS: Final = {"matvec": 1.15}


def keep_verdicts(records: list[Record], folder: Path, *, every: bool) -> None:
    """Write `verdicts/kernels_gpu.txt` to `folder`: earlier verdicts that are still valid, and new ones. `every`: `records`
    cover all artifacts."""
    kept = Verdicts("kernels_gpu")
    kept.path = folder / "verdicts" / kept.path.name
    known = {record["kept"] for record in records if "kept" in record}
    cases = [case for case, line in kept.lines.items() if known & {*line.keys}]
    for record in records:
        if record["kind"] == "checked" and "key" in record:
            detail = {name: record[name] for name in ("sizes", "ours", "torch", "ratio")}
            kept.add(record["case"], [record["key"]], Verdict("right" if record["right"] else "wrong", detail))
            cases.append(record["case"])
    kept.close(cases if every else None)


def report(records: list[Record]) -> tuple[str, bool]:
    """The page, and whether something is wrong or too slow."""
    timed = [record for record in records if record["kind"] == "timed"]
    by_problem = _grouped(timed, "kernel", "label", "dtype")
    best = [min(found, key=lambda record: record["us"]) for found in by_problem.values()]
    failures = [_failure(record) for record in records if record["kind"] in ("wrong", "problem")]
    speeds = [_speed(kernel, dtype, found) for (kernel, dtype), found in _grouped(best, "kernel", "dtype").items()]
    failed = bool(failures) or not all(ok for ok, _ in speeds)
    verdicts = [*_about(records), *failures, *(line for _, line in speeds if line)]
    lines = ["# Kernels on the GPU", "", "## Correctness", *_checked(records), "", "## Times", *_times(best)]
    lines += ["", "## Verdicts", *verdicts]
    variants = [_variants(key, found) for key, found in by_problem.items() if len(found) > 1]
    return markdown.page([*lines, *(["", "## Variants", *variants] if variants else [])]), failed


def _grouped(records: list[Record], *names: str) -> dict[tuple[str, ...], list[Record]]:
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return found


def _checked(records: list[Record]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    groups = _grouped([record for record in records if record["kind"] == "checked"], "kernel", "dtype")
    for (kernel, dtype), found in groups.items():
        worst = max(found, key=lambda record: record["ratio"])
        errors = f"{worst['ours']:.2e}", f"{worst['torch']:.2e}", f"{worst['ratio']:.2f}"
        right, sizes = sum(record["right"] for record in found), sum(record["sizes"] for record in found)
        rows.append((kernel, dtype, f"{right} of {len(found)}", sizes, *errors))
    header = ("kernel", "dtype", "artifacts right", "sizes", "worst error", "torch's there", "ratio")
    return markdown.grid(header, rows, left=2)


def _times(best: list[Record]) -> list[str]:
    header = ("kernel", "size", "dtype", "us (p10-p90)", "rate", "library us (p10-p90)", "library", "ratio", "variant")
    lines = [markdown.line(header), "|---|---|---|--:|--:|--:|---|--:|---|"]
    for r in best:
        rate = f"{r['flops'] / r['us'] / 1e6:.0f} TFLOP/s" if r["flops"] else f"{r['bytes'] / r['us'] / 1e6:.3f} TB/s"
        ours = f"{r['us']:.2f} ({r['us_low']:.2f}-{r['us_high']:.2f})"
        theirs = f"{r['library_us']:.2f} ({r['library_low']:.2f}-{r['library_high']:.2f})"
        cells = (r["kernel"], r["label"], r["dtype"], ours, rate, theirs, r["library"], f"{r['ratio']:.3f}", r["variant"])
        lines.append(markdown.line(cells))
    return lines


def _variants(key: tuple[str, ...], found: list[Record]) -> str:
    ordered = sorted(found, key=lambda record: record["us"])
    shown = (f"{r['variant']} {r['us']:.2f} us ({r['ratio']:.3f})" for r in ordered)
    return f"- {' '.join(key)}: {'; '.join(shown)}"


def _about(records: list[Record]) -> list[str]:
    """The machine, and the host's time of a launch."""
    lines: list[str] = []
    for record in records:
        if record["kind"] == "machine":
            lines.append(f"- {record['gpu']} ({record['arch']}), torch {record['torch']}, {record['artifacts']} artifacts")
        if record["kind"] == "host":
            costs = (f"{name.replace('_', ' ')} {record[name]:.2f} us" for name in ("plan", "launch", "torch_add"))
            lines.append(f"- host time: {', '.join(costs)}")
    return lines


def _failure(record: Record) -> str:
    if record["kind"] == "problem":
        return f"- FAILED {record['kernel']}: {record['text']}"
    detail = record["text"] or f"{record['output']}: ours {record['ours']}, torch {record['torch']}"
    return f"- WRONG {record['kernel']} ({record['variant']}) at {record['dims']}: {detail}"


def _speed(kernel: str, dtype: str, best: list[Record]) -> tuple[bool, str]:
    """Whether a kernel reaches its floors, and a line about it; no line if there are none."""
    with_floor = [record for record in best if record["floor"] is not None]
    if not with_floor:
        return True, ""
    worst = min(with_floor, key=lambda r: r["ratio"] / r["floor"])
    mean = math.exp(sum(math.log(r["ratio"]) for r in with_floor) / len(with_floor))
    wanted_mean = GEOMETRIC_MEAN_FLOORS.get(kernel, 0.0) if len(with_floor) > 1 else 0.0
    ok = worst["ratio"] >= worst["floor"] and mean >= wanted_mean
    text = f"worst {worst['ratio']:.3f} at {worst['label']} (floor {worst['floor']}), geometric mean {mean:.3f}"
    text += f" (floor {wanted_mean})" if wanted_mean else ""
    return ok, f"- {'ok' if ok else 'SLOW'} {kernel} {dtype}: {text} over {len(with_floor)} sizes"
