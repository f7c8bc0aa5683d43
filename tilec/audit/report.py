"""The report of an audit: what was concluded about each artifact of a bundle, as data that is ready to be signed.

A report has no time, path or host in it: the same bundle, tools and limits give the same bytes, unless the time limit cut
something off, which the report then says. `summary` counts; `status` is the exit status that it amounts to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import tilec
from tilec.audit.findings import CONFIRMED, REFUTED, TRUSTED, UNKNOWN
from tilec.bundle_format import canonical

FORMAT: Final = 1
VERDICTS: Final = (CONFIRMED, TRUSTED, UNKNOWN, REFUTED)
CONFIRMED_STATUS: Final = 0
REFUTED_STATUS: Final = 1
UNKNOWN_STATUS: Final = 3
TRUSTS: Final = (
    "the launcher enforces every launch check, value check, grid limit and aliasing rule of the manifest",
    "the reader of the tile IR, z3, and the PTX emulator",
    "every tensor fits into the address space",
    "the PTX gives the CUBIN, unless the artifact says that it was assembled again",
    "the PTX does what the tile IR says on launches other than those that were emulated (on any, where none was)",
)
SOURCES: Final = ("audit", "emulator", "ir", "artifact.py", "manifest_reader.py", "bundle_format.py")
"""Parts of tilec that a verdict depends on."""

Record = dict[str, Any]


def tools() -> dict[str, str]:
    """Versions of everything that gives verdicts, and the digest of its source where it is ours."""
    found = {"tilec": tilec.__version__, "tilec source": source_digest()}
    for package in ("z3-solver", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def source_digest() -> str:
    """The sha256 over names and contents of the files that verdicts depend on."""
    root = Path(tilec.__file__).parent
    files = [path for part in SOURCES for path in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))]
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def counted(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many records have each verdict."""
    found: dict[str, int] = dict.fromkeys(VERDICTS, 0)
    for record in records:
        found[record["verdict"]] += 1
    return found


def summary(artifacts: list[Record]) -> Record:
    """Counts over all artifacts, and the exit status."""
    obligations = counted(one for artifact in artifacts for one in artifact["obligations"])
    checks = counted(one for artifact in artifacts for one in artifact["contract"])
    missing = counted(one for artifact in artifacts for one in artifact["missing"])
    emulation: dict[str, int] = {}
    for artifact in artifacts:
        status = artifact["emulation"]["status"]
        emulation[status] = emulation.get(status, 0) + 1
    damaged = sum(bool(artifact["digests_differ"]) for artifact in artifacts)
    rebuilt = [artifact["rebuilt"] for artifact in artifacts]
    bad = obligations[REFUTED] + checks[REFUTED] + missing[REFUTED] + damaged + emulation.get("faulty", 0)
    bad += rebuilt.count("another CUBIN")
    open_ = (
        obligations[UNKNOWN] + checks[UNKNOWN] + sum(missing.values()) + emulation.get("unknown", 0) + emulation.get("none", 0)
    )
    total = sum(obligations.values())
    return {
        "artifacts": len(artifacts),
        "obligations": obligations,
        "share_confirmed": round(obligations[CONFIRMED] / total, 6) if total else 1.0,
        "contract": checks,
        "missing": missing,
        "digests_differ": damaged,
        "emulation": dict(sorted(emulation.items())),
        "emulated_launches": sum(len(artifact["emulation"]["launches"]) for artifact in artifacts),
        "emulated_instructions": sum(artifact["emulation"].get("instructions", 0) for artifact in artifacts),
        "rebuilt": {name: rebuilt.count(name) for name in sorted(set(rebuilt))},
        "status": REFUTED_STATUS if bad else UNKNOWN_STATUS if open_ else CONFIRMED_STATUS,
    }


def seal(report: Record) -> str:
    """The hex sha256 of a report's canonical bytes: what a signature signs."""
    return hashlib.sha256(canonical(report)).hexdigest()


def lines(report: Record) -> list[str]:
    """The report as a table for people."""
    found = [f"{report['bundle']['model']} for {report['bundle']['arch']}, sha256 {report['bundle']['sha256']}"]
    header: tuple[str, ...] = (
        "artifact",
        "confirmed",
        "trusted",
        "unknown",
        "refuted",
        "missing",
        "emulation",
        "executed",
        "faults",
    )
    rows: list[tuple[str, ...]] = [header]
    for one in report["artifacts"]:
        counts, emulation = counted(one["obligations"]), one["emulation"]
        faults = sum(len(launch.get("faults", ())) for launch in emulation["launches"])
        share = f"{emulation['coverage']:.0%}" if "coverage" in emulation else "-"
        state = f"{emulation['status']} ({len(emulation['launches'])})"
        rows.append((one["name"], *(str(counts[v]) for v in VERDICTS), str(len(one["missing"])), state, share, str(faults)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    for row in rows:
        cells = [
            cell.rjust(w) if 1 <= k <= 5 or k >= 7 else cell.ljust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        found.append("  ".join(cells).rstrip())
    found += ["", *_details(report)]
    total = report["summary"]
    counts = ", ".join(f"{number} {verdict}" for verdict, number in total["obligations"].items() if number)
    found.append(f"{total['artifacts']} artifacts: {counts}; emulation: {_counts(total['emulation'])}")
    return found


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"


def _details(report: Record) -> list[str]:
    """A line for everything that is not as it should be."""
    found: list[str] = []
    for one in report["artifacts"]:
        found += [f"{one['name']}: {text}" for text in one["digests_differ"]]
        for kind in ("contract", "obligations", "missing"):
            for item in one[kind]:
                if item["verdict"] == CONFIRMED and kind != "missing":
                    continue
                place = (
                    f"{item['location']}: " if item.get("location") else "not in the manifest: " if kind == "missing" else ""
                )
                model = ", ".join(f"{name} = {value}" for name, value in item["model"].items())
                reason = "; ".join(part for part in (item["reason"], model) if part)
                text = f"{place}{item['property']} of {item['subject']}: {item['verdict']}"
                found.append(f"{one['name']}: {text}" + (f" ({reason})" if reason else ""))
        if one["emulation"]["status"] not in ("clean", "skipped"):
            found.append(f"{one['name']}: emulation {one['emulation']['status']}: {one['emulation']['reason']}")
        for launch in one["emulation"]["launches"]:
            found += [f"{one['name']}: {launch['case']}, seed {launch['seed']}: {fault}" for fault in launch.get("faults", ())]
        if one["rebuilt"] == "another CUBIN":
            found.append(f"{one['name']}: the PTX assembles to another CUBIN")
    return [*found, ""] if found else []
