"""Writes JSON, markdown tables and an exit code from the children's records of a GPU run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from ci.evidence.verdicts import Verdict, Verdicts

GEOMETRIC_MEAN_FLOORS: Final = {"matvec": 1.15}
Record = dict[str, Any]


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


def write_report(records: list[Record], folder: Path, seconds: float) -> int:
    """Write `kernels_gpu.json` and `kernels_gpu.md` to `folder`, print the tables; returns 1 if something is wrong or too
    slow."""
    timed = [record for record in records if record["kind"] == "timed"]
    best = _best(timed)
    verdicts, failed = _verdicts(records, best)
    lines = ["## Correctness", *_checked(records), "", "## Times", *_times(best), "", "## Verdicts", *verdicts]
    variants = _variants(timed)
    folder.mkdir(parents=True, exist_ok=True)
    gpu = next((record["gpu"] for record in records if record["kind"] == "machine"), "")
    (folder / "kernels_gpu.json").write_text(json.dumps({"gpu": gpu, "seconds": seconds, "records": records}, indent=1) + "\n")
    text = "\n".join([*lines, *(["", "## Variants", *variants] if variants else [])])
    (folder / "kernels_gpu.md").write_text("# Kernels on the GPU\n\n" + text + "\n")
    # A truncated log keeps the end of the output, so the verdicts come last.
    print("\n".join([*(["## Variants", *variants, ""] if variants else []), *lines]))
    print(f"{seconds:.0f} s")
    return int(failed)


def _best(timed: list[Record]) -> list[Record]:
    fastest: dict[tuple[str, str, str], Record] = {}
    for record in timed:
        key = (record["kernel"], record["label"], record["dtype"])
        if key not in fastest or record["us"] < fastest[key]["us"]:
            fastest[key] = record
    return list(fastest.values())


def _checked(records: list[Record]) -> list[str]:
    rows: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["kind"] == "checked":
            rows.setdefault((record["kernel"], record["dtype"]), []).append(record)
    lines = [
        "| kernel | dtype | artifacts right | sizes | worst error | torch's there | ratio |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for (kernel, dtype), found in rows.items():
        worst = max(found, key=lambda record: record["ratio"])
        right = sum(record["right"] for record in found)
        lines.append(
            f"| {kernel} | {dtype} | {right} of {len(found)} | {sum(r['sizes'] for r in found)} "
            f"| {worst['ours']:.2e} | {worst['torch']:.2e} | {worst['ratio']:.2f} |"
        )
    return lines


def _times(best: list[Record]) -> list[str]:
    lines = [
        "| kernel | size | dtype | us (p10-p90) | rate | library us (p10-p90) | library | ratio | variant |",
        "|---|---|---|--:|--:|--:|---|--:|---|",
    ]
    for r in best:
        rate = f"{r['flops'] / r['us'] / 1e6:.0f} TFLOP/s" if r["flops"] else f"{r['bytes'] / r['us'] / 1e6:.3f} TB/s"
        lines.append(
            f"| {r['kernel']} | {r['label']} | {r['dtype']} | {r['us']:.2f} ({r['us_low']:.2f}-{r['us_high']:.2f}) | {rate} "
            f"| {r['library_us']:.2f} ({r['library_low']:.2f}-{r['library_high']:.2f}) | {r['library']} "
            f"| {r['ratio']:.3f} | {r['variant']} |"
        )
    return lines


def _variants(timed: list[Record]) -> list[str]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in timed:
        groups.setdefault((record["kernel"], record["label"], record["dtype"]), []).append(record)
    lines: list[str] = []
    for key, found in groups.items():
        if len(found) > 1:
            found.sort(key=lambda record: record["us"])
            shown = "; ".join(f"{r['variant']} {r['us']:.2f} us ({r['ratio']:.3f})" for r in found)
            lines.append(f"- {' '.join(key)}: {shown}")
    return lines


def _verdicts(records: list[Record], best: list[Record]) -> tuple[list[str], bool]:
    lines: list[str] = []
    failed = False
    for record in records:
        if record["kind"] == "machine":
            lines.append(f"- {record['gpu']} ({record['arch']}), torch {record['torch']}, {record['artifacts']} artifacts")
        if record["kind"] == "host":
            costs = {name: f"{record[name]:.2f} us" for name in ("plan", "launch", "torch_add")}
            lines.append(f"- host time: plan {costs['plan']}, launch {costs['launch']}, torch add {costs['torch_add']}")
        if record["kind"] == "wrong":
            failed = True
            detail = record["text"] or f"{record['output']}: ours {record['ours']}, torch {record['torch']}"
            lines.append(f"- WRONG {record['kernel']} ({record['variant']}) at {record['dims']}: {detail}")
        if record["kind"] == "problem":
            failed = True
            lines.append(f"- FAILED {record['kernel']}: {record['text']}")
    for kernel, dtype in dict.fromkeys((record["kernel"], record["dtype"]) for record in best):
        with_floor = [r for r in best if (r["kernel"], r["dtype"]) == (kernel, dtype) and r["floor"] is not None]
        if not with_floor:
            continue
        worst = min(with_floor, key=lambda r: r["ratio"] / r["floor"])
        mean = math.exp(sum(math.log(r["ratio"]) for r in with_floor) / len(with_floor))
        wanted_mean = GEOMETRIC_MEAN_FLOORS.get(kernel, 0.0) if len(with_floor) > 1 else 0.0
        ok = worst["ratio"] >= worst["floor"] and mean >= wanted_mean
        failed = failed or not ok
        text = f"worst {worst['ratio']:.3f} at {worst['label']} (floor {worst['floor']}), geometric mean {mean:.3f}"
        text += f" (floor {wanted_mean})" if wanted_mean else ""
        lines.append(f"- {'ok' if ok else 'SLOW'} {kernel} {dtype}: {text} over {len(with_floor)} sizes")
    return lines, failed
