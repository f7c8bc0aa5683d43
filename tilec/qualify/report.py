"""The report of a qualification: what was found about each artifact of a bundle on one device, as data and as text.

As data it is canonical JSON with a line feed at its end, ready to be signed as it is. `run` alone depends on when it ran.
`summary` counts; `status` is the exit status.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

import tilec
from tilec.artifact.bundle_format import canonical
from tilec.diagnostics.visible import visible
from tilec.qualify.session import Session
from tilec.qualify.trial import FAILED, OUTSIDE, RIGHT, UNTRIED, VARIES, WRONG

FORMAT: Final = 1
VERDICTS: Final = (RIGHT, WRONG, OUTSIDE, VARIES, FAILED, UNTRIED)
RIGHT_STATUS, WRONG_STATUS, UNTRIED_STATUS = 0, 1, 3
Record = dict[str, Any]


def report(session: Session, seconds: float, date: str) -> Record:
    """The report of a finished session that took `seconds` and began on the day `date`."""
    bundle, side = session.bundle, session.side
    artifacts = [_artifact(session, name) for name in session.names]
    counts = {verdict: sum(one["verdict"] == verdict for one in artifacts) for verdict in VERDICTS}
    return {
        "format": FORMAT,
        "tilec": tilec.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "bundle": {"sha256": bundle.digest, "model": bundle.model, "arch": bundle.arch, "bytes": bundle.size},
        "side_file": {"sha256": side.digest, "bundle": side.bundle, "tilec": side.tilec, "checker": side.checker},
        "device": session.device,
        "rates": session.rates,
        "limits": {"repeats": session.repeats, "seconds": session.time_limit, "times": session.times},
        "artifacts": artifacts,
        "tuned": session.tuned,
        "problems": session.problems,
        "summary": {
            "verdicts": counts, "artifacts": len(artifacts), "launches": sum(len(one["launches"]) for one in artifacts),
            "status": status(counts),
        },
        "run": {"date": date, "seconds": round(seconds, 1)},
    }  # fmt: skip


def _artifact(session: Session, name: str) -> Record:
    found, manifest = session.records[name], session.bundle.kernel(name).manifest
    entry = session.side.entries.get(name)
    return {
        "name": name, "verdict": found["verdict"], "launches": found["launches"], "times": found["times"],
        "untimed": found["untimed"], "left_out": list(entry.left_out) if entry is not None else [],
        "references": sum(one.reference == "agrees" for one in entry.launches) if entry is not None else 0,
        "digests": {key: manifest.digests.get(key, "") for key in ("cubin", "ptx", "tir")},
    }  # fmt: skip


def status(counts: Mapping[str, int]) -> int:
    """The exit status: 1 if something is wrong, 3 if something was not tried, else 0."""
    if any(counts[verdict] for verdict in (WRONG, OUTSIDE, VARIES, FAILED)):
        return WRONG_STATUS
    return UNTRIED_STATUS if counts[UNTRIED] or not counts[RIGHT] else RIGHT_STATUS


def encoded(found: Record) -> bytes:
    """The report as canonical JSON."""
    return canonical(found) + b"\n"


def lines(found: Record) -> list[str]:
    """The report as text: what it is about, a row for each artifact, the reasons, the summary."""
    bundle, side, device = found["bundle"], found["side_file"], found["device"]
    text = [
        f"bundle   {bundle['model']} for {bundle['arch']}, sha256 {bundle['sha256']}",
        f"device   {device.get('device', 'none')} ({device.get('arch', '')}), driver {device.get('driver') or 'unknown'}",
        f"checker  {side['checker']}{_references(found)}",
    ]
    if side["bundle"] != bundle["sha256"]:
        text.append(f"note     the side file was prepared from another bundle with the same tile IR, sha256 {side['bundle']}")
    if found["rates"]:
        products = found["rates"]["products"]
        rate = f", {products / 1e12:.0f} T MMA operations/s at its clock" if products else ", MMA operations at an unknown rate"
        text.append(f"rates    a copy: {found['rates']['copy'] / 1e12:.2f} TB/s{rate}")
    text += ["", *_table(found["artifacts"]), *_reasons(found), ""]
    counts = found["summary"]["verdicts"]
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    total = f"{found['summary']['artifacts']} artifacts, {found['summary']['launches']} launches"
    text.append(f"{total}, {found['run']['seconds']} s: {listed or 'nothing was tried'}")
    return [visible(line) for line in text]


def _references(found: Record) -> str:
    """How many launches a NumPy reference had agreed with, as text."""
    count = sum(one["references"] for one in found["artifacts"])
    return f"; NumPy references agreed at {count} launches" if count else ""


def _table(artifacts: Sequence[Record]) -> list[str]:
    rows: list[tuple[str, ...]] = [("artifact", "verdict", "launches", "us", "floor", "share")]
    for one in artifacts:
        longest = max(one["times"], key=lambda row: row["us"][0], default=None)
        measured = ("", "", "")
        if longest is not None:
            measured = f"{longest['us'][0]:.2f}", f"{longest['floor_us']:.2f}", f"{longest['share']:.2f}"
        rows.append((one["name"], one["verdict"], str(len(one["launches"])), *measured))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _reasons(found: Record) -> list[str]:
    """What is not right, a line for each launch, and what ended the process between artifacts."""
    text: list[str] = []
    for one in found["artifacts"]:
        for trial in one["launches"]:
            if trial["verdict"] != RIGHT:
                text.append(f"{one['name']}, {trial['launch']}: {trial['verdict']}: {trial['reason']}")
    text += [f"problem: {problem}" for problem in found["problems"]]
    return ["", *text] if text else []
