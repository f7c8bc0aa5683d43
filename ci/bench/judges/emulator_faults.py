"""Plants mistakes in PTX of every kind of schedule, ours and Triton's, one at a time, and counts how many the emulator finds.

Kinds of schedules, classes of mistakes and locations are chosen deterministically: an equal number per kind, subjects in
rotation, the class planted least so far, a location that the launch executes. Original and mutant run with a few seeds, each
with other sizes; a mistake is found if a fault is reported or an output differs from the original's. Mistakes not found are
listed with the reason if REASONS has one. Writes `results/emulator_faults.{md,json}`: `basis` has the digests of the
sources, and a row that of its mutated PTX, so that a verdict is reused if neither changed.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome, earlier
from ci.bench.judges.emulator_fault_subjects import Make, Subject, subjects
from ci.bench.judges.emulator_faults_explained import reason
from ci.bench.judges.ptx_mutants import CLASSES, Mutant, plant, sites
from ci.bench.markdown import grid, page
from ci.evidence import ROOT
from tilec.emulator.errors import Report, UnsupportedPtx

HERE: Final = Path(__file__).resolve().parent
SEEDS: Final = tuple(range(4))
"""Each seed selects an order of threads, inputs and sizes."""
Row = dict[str, Any]


def rests_on() -> dict[str, str]:
    """Digests of everything that all verdicts depend on, in addition to their PTX: the emulator, the launches and mistakes."""
    files = {
        "emulator": sorted((ROOT / "tilec" / "emulator").rglob("*.py")),
        "launches": [
            *(HERE / f"{name}.py" for name in ("emulator_faults", "emulator_fault_subjects", "ptx_mutants")),
            *(ROOT / "tests" / f"{name}.py" for name in (
                "tensor_products", "tensor_attention", "weight_products", "shipped_launches",
                "emulator/shipped_run", "emulator/foreign_run", "emulator/foreign_cases",
            )),
        ],
    }  # fmt: skip
    found: dict[str, str] = {}
    for name, paths in files.items():
        digest = hashlib.sha256()
        for path in paths:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        found[name] = digest.hexdigest()
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class Planted:
    """State of one kind of schedule: counts of mistakes by class, and the mutated texts."""

    def __init__(self) -> None:
        self.classes: Counter[str] = Counter()
        self.texts: set[str] = set()

    def plant(self, subject: Subject, executed: set[int]) -> Mutant | None:
        """A mistake of the class planted least so far, at an executed location; None if none is left."""
        number = zlib.crc32(subject.name.encode()) + len(self.texts)
        for kind in sorted(CLASSES, key=lambda kind: (self.classes[kind], zlib.crc32(kind.encode()))):
            matches = [m for m in sites(subject.text, kind) if _line(subject.text, m.start()) in executed]
            for step in range(min(len(matches), 8)):
                mutant = plant(subject.text, kind, matches[(number + step) % len(matches)])
                if mutant is not None and mutant.text not in self.texts:
                    self.classes[kind] += 1
                    self.texts.add(mutant.text)
                    return mutant
        return None


def detect(subject: Subject, mutant: Mutant, originals: dict[int, Report], steps: int) -> tuple[str, int]:
    """How the mistake was found (empty: not found) and with how many seeds."""
    for tried, seed in enumerate(SEEDS, 1):
        if seed not in originals:
            originals[seed] = subject.run(subject.text, seed, 1 << 40)
        try:
            report = subject.run(mutant.text, seed, steps)
        except UnsupportedPtx as refused:
            return f"refused: {refused.reason}", tried
        known = {(fault.kind, fault.ptx_line) for fault in originals[seed].faults}
        for fault in report.faults:
            if (fault.kind, fault.ptx_line) not in known:
                return f"{fault.kind}: {fault.message}"[:160], tried
        for name, value in originals[seed].tensors.items():
            if report.tensors[name].tobytes() != value.tobytes():
                return f"output `{name}` differs", tried
    return "", len(SEEDS)


def one_kind(task: tuple[str, int, dict[str, Row]]) -> list[Row]:
    """Plant and check `count` mistakes in a kind's subjects in rotation; `known` has verdicts by digest of the PTX."""
    kind, count, known = task
    planted, rows = Planted(), list[Row]()
    ready = [_Ready(make) for make in subjects()[kind]]
    while len(rows) < count and any(not one.spent for one in ready):
        for one in ready:
            if len(rows) < count and not one.spent:
                row = one.next(planted, known)
                rows += [row] if row else []
    return rows


class _Ready:
    """A subject that is built on first use, and the reports of its unmodified launches."""

    def __init__(self, make: Make) -> None:
        self.make, self.spent = make, False
        self.subject: Subject | None = None
        self.originals: dict[int, Report] = {}

    def next(self, planted: Planted, known: dict[str, Row]) -> Row | None:
        """The row of one more mistake; None if no class has a location left."""
        began = time.process_time()
        subject = self.subject = self.subject or self.make()
        if not self.originals:
            self.originals[SEEDS[0]] = subject.run(subject.text, SEEDS[0], 1 << 40)
            if subject.kind != "Triton" and not self.originals[SEEDS[0]].clean:
                raise SystemExit(f"{subject.name}: the original has faults: {self.originals[SEEDS[0]].faults[0]}")
        original = self.originals[SEEDS[0]]
        mutant = planted.plant(subject, original.statistics["lines"])
        if mutant is None:
            self.spent = True
            return None
        digest = hashlib.sha256(mutant.text.encode()).hexdigest()
        if digest in known:
            return known[digest]
        detected_by, seeds = detect(subject, mutant, self.originals, 20 * original.statistics["steps"] + 100_000)
        row: Row = {
            "schedule": subject.kind, "file": subject.name, "class": mutant.kind, "line": mutant.line,
            "before": mutant.before[:300], "after": mutant.after[:300], "ptx": digest, "found": detected_by, "seeds": seeds,
            "seconds": round(time.process_time() - began, 2),
        }  # fmt: skip
        print(
            f"{row['class']:34} {subject.kind:24} {subject.name[:40]:40} {detected_by or 'NOT FOUND'} ({row['seconds']} s)",
            flush=True,
        )
        return row


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--each", type=int, default=34, help="mistakes of each kind of schedule")
    parser.add_argument("--only", default="", help="kinds of schedules whose name contains this")


def measure(options: argparse.Namespace) -> Outcome:
    """Plant all mistakes and emulate them."""
    basis, before = rests_on(), earlier(options)
    known: dict[str, Row] = {row["ptx"]: row for row in before["rows"]} if before.get("basis") == basis else {}
    tasks: list[tuple[str, int, dict[str, Row]]] = [(kind, options.each, known) for kind in subjects() if options.only in kind]
    with multiprocessing.Pool(options.jobs) as pool:
        rows = [row for some in pool.imap(one_kind, tasks, chunksize=1) for row in some]
    for row in rows:
        row.pop("reason", None)
        if not row["found"]:
            row["reason"] = reason(row)
    return Outcome({"basis": basis, "rows": rows}, {"emulator_faults.md": table(rows)}, whole=not options.only)


def table(rows: list[Row]) -> str:
    """The table of results."""
    missed = [row for row in rows if not row["found"]]
    caught = len(rows) - len(missed)
    equivalent = [row for row in missed if row["reason"].startswith("equivalent")]
    share = 100 * caught / max(1, len(rows) - len(equivalent))
    lines = [
        "# Planted faults", "",
        "One mistake each in PTX of every kind of schedule on sm_90a, and of Triton; see `ci/bench/judges/emulator_faults.py`.",
        "",
        f"{len(rows)} planted, {caught} found ({100 * caught / max(1, len(rows)):.1f} %); of the "
        f"{len(missed)} not found, {len(equivalent)} change nothing that a legal launch can observe, which leaves "
        f"{share:.1f} % found.", "",
    ]  # fmt: skip
    for column, names in (("schedule", [row["schedule"] for row in rows]), ("class", CLASSES)):
        groups = [(name, [row for row in rows if row[column] == name]) for name in dict.fromkeys(names)]
        counts: list[tuple[object, ...]] = []
        for name, group in groups:
            by_output, lost = sum(row["found"].startswith("output") for row in group), sum(not row["found"] for row in group)
            counts += [(name, len(group), len(group) - by_output - lost, by_output, lost)] if group else []
        lines += [*grid([column, "planted", "by a fault", "by an output", "not found"], counts), ""]
    changes = [f"`{row['before'][:90]}`" + (f" -> `{row['after'][:90]}`" if row["after"] else "") for row in missed]
    locations = [f"{row['schedule']}, {row['file']}, {row['line']}" for row in missed]
    explained = [
        (row["class"], location, change.replace("|", " "), row["reason"])
        for row, location, change in zip(missed, locations, changes, strict=True)
    ]
    lines += ["Not found:", "", *grid(["class", "schedule, file, line", "instruction", "why"], explained, left=4)]
    return page(lines)
