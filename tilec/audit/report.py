"""The report of an audit: the conclusions about each artifact of a bundle, as data that is ready to be signed.

Except for `run`, which records the duration of one audit and its reuse of verdicts, a report contains no time, path or host:
the same bundle, tools and limits give the same bytes on any machine, unless a time limit left verdicts open, which the report
states. The seal covers everything except `run`. `summary` counts; `status` is the exit status.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import tilec
from tilec.artifact.bundle_format import canonical
from tilec.audit.cubins import ANOTHER, NOT_CHECKED, Assembler
from tilec.audit.findings import CONFIRMED, REFUTED, TRUSTED, UNKNOWN
from tilec.audit.sources import KINDS, rests_on

FORMAT: Final = 2
VERDICTS: Final = (CONFIRMED, TRUSTED, UNKNOWN, REFUTED)
CONFIRMED_STATUS: Final = 0
REFUTED_STATUS: Final = 1
UNKNOWN_STATUS: Final = 3
TRUSTS: Final = (
    "the launcher enforces every launch check, value check, grid limit and aliasing rule of the manifest",
    "the reader of the tile IR, z3, and the PTX emulator",
    "every tensor fits into the address space",
    "the PTX assembles to the CUBIN where the artifact states that this was not checked",
    "the auditing user's cache of verdicts, unless disabled",
    "the PTX computes what the tile IR states on launches that were not emulated",
)

Record = dict[str, Any]


def tools(assembler: Assembler | None = None) -> dict[str, str]:
    """Versions of everything that produces verdicts, with the source digest of each kind of verdict."""
    found = {"tilec": tilec.__version__}
    for kind in sorted(KINDS):
        for name, text in rests_on(kind).items():
            found[f"{name} of {kind}" if name == "source" else name] = text
    return found | (assembler.versions if assembler is not None else {})


def counted(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The number of records with each verdict."""
    found: dict[str, int] = dict.fromkeys(VERDICTS, 0)
    for record in records:
        found[record["verdict"]] += 1
    return found


def summary(artifacts: list[Record]) -> Record:
    """Counts over all artifacts, and the exit status."""
    obligations = counted(record for artifact in artifacts for record in artifact["obligations"])
    checks = counted(record for artifact in artifacts for record in artifact["contract"])
    missing = counted(record for artifact in artifacts for record in artifact["missing"])
    emulation: dict[str, int] = {}
    for artifact in artifacts:
        status = artifact["emulation"]["status"]
        emulation[status] = emulation.get(status, 0) + 1
    damaged = sum(bool(artifact["digests_differ"]) for artifact in artifacts)
    cubin_statuses = [artifact["cubin"]["status"] for artifact in artifacts]
    refuted = obligations[REFUTED] + checks[REFUTED] + missing[REFUTED] + damaged + emulation.get("faulty", 0)
    refuted += cubin_statuses.count(ANOTHER)
    undecided = obligations[UNKNOWN] + checks[UNKNOWN] + sum(missing.values()) + cubin_statuses.count(NOT_CHECKED)
    undecided += emulation.get("unknown", 0) + emulation.get("none", 0)
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
        "tensor_maps": sum(artifact["tensor_maps"] for artifact in artifacts),
        "cubins": {name: cubin_statuses.count(name) for name in sorted(set(cubin_statuses))},
        "status": REFUTED_STATUS if refuted else UNKNOWN_STATUS if undecided else CONFIRMED_STATUS,
    }


def seal(report: Record) -> str:
    """The hex sha256 of a report's canonical bytes without `run`; a signature signs it."""
    return hashlib.sha256(canonical({name: value for name, value in report.items() if name != "run"})).hexdigest()


def lines(report: Record) -> list[str]:
    """The report as a readable table."""
    output = [f"{report['bundle']['model']} for {report['bundle']['arch']}, sha256 {report['bundle']['sha256']}"]
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
        "CUBIN",
    )
    rows: list[tuple[str, ...]] = [header]
    for artifact in report["artifacts"]:
        counts, emulation = counted(artifact["obligations"]), artifact["emulation"]
        faults = sum(len(launch.get("faults", ())) for launch in emulation["launches"])
        share = f"{emulation['coverage']:.0%}" if "coverage" in emulation else "-"
        state = f"{emulation['status']} ({len(emulation['launches'])})"
        rows.append(
            (
                artifact["name"],
                *(str(counts[verdict]) for verdict in VERDICTS),
                str(len(artifact["missing"])),
                state,
                share,
                str(faults),
                artifact["cubin"]["status"],
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    for row in rows:
        cells = [
            cell.rjust(cell_width) if 1 <= k <= 5 or k in (7, 8) else cell.ljust(cell_width)
            for k, (cell, cell_width) in enumerate(zip(row, widths, strict=True))
        ]
        output.append("  ".join(cells).rstrip())
    output += ["", *_details(report)]
    summary_counts = report["summary"]
    counts = ", ".join(f"{number} {verdict}" for verdict, number in summary_counts["obligations"].items() if number)
    emulation, cubins = _counts(summary_counts["emulation"]), _counts(summary_counts["cubins"])
    output.append(f"{summary_counts['artifacts']} artifacts: {counts}; emulation: {emulation}; CUBINs: {cubins}")
    reused, checked = (sum(report["run"][name].values()) for name in ("reused", "judged"))
    unfinished = sum(map(len, report["run"]["not_judged"].values()))
    output.append(f"verdicts: {checked} reached now, {reused} reused" + (f", {unfinished} not reached" if unfinished else ""))
    return output


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"


def _details(report: Record) -> list[str]:
    """One line for every finding that is not confirmed or clean."""
    output: list[str] = []
    for artifact in report["artifacts"]:
        output += [f"{artifact['name']}: {text}" for text in artifact["digests_differ"]]
        for kind in ("contract", "obligations", "missing"):
            for item in artifact[kind]:
                if item["verdict"] == CONFIRMED and kind != "missing":
                    continue
                location = (
                    f"{item['location']}: " if item.get("location") else "not in the manifest: " if kind == "missing" else ""
                )
                model = ", ".join(f"{name} = {value}" for name, value in item["model"].items())
                reason = "; ".join(part for part in (item["reason"], model) if part)
                text = f"{location}{item['property']} of {item['subject']}: {item['verdict']}"
                output.append(f"{artifact['name']}: {text}" + (f" ({reason})" if reason else ""))
        if artifact["emulation"]["status"] not in ("clean", "skipped"):
            output.append(f"{artifact['name']}: emulation {artifact['emulation']['status']}: {artifact['emulation']['reason']}")
        for launch in artifact["emulation"]["launches"]:
            output += [
                f"{artifact['name']}: {launch['case']}, seed {launch['seed']}: {fault}" for fault in launch.get("faults", ())
            ]
        if artifact["cubin"]["reason"]:
            output.append(f"{artifact['name']}: CUBIN {artifact['cubin']['status']}: {artifact['cubin']['reason']}")
    return [*output, ""] if output else []
