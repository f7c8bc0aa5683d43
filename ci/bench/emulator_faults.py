"""Plants mistakes in PTX of every kind of schedule, ours and Triton's, one at a time, and counts how many the emulator finds.

    python ci/bench/emulator_faults.py [--each 34] [--jobs 2] [--only WORDS]

Kinds of schedules, classes of mistakes and locations are chosen deterministically: an equal number per kind, subjects in
rotation, the class planted least so far, a location that the launch executes. Original and mutant run with a few seeds, each
with other sizes; a mistake is found if a fault is reported or an output differs from the original's. Mistakes not found are
listed with the reason if REASONS has one. Writes `results/emulator_faults.{md,json}`: `rests_on` has the digests of the
sources, and a row that of its mutated PTX, so that a verdict is reused if neither changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from emulator_fault_subjects import Make, Subject, subjects  # noqa: E402
from ptx_mutants import CLASSES, Mutant, plant, sites  # noqa: E402

from tilec.emulator.errors import Report, UnsupportedPtx  # noqa: E402

RESULTS: Final = ROOT / "ci" / "bench" / "results"
SEEDS: Final = tuple(range(4))
"""Each seed selects an order of threads, inputs and sizes."""
Row = dict[str, Any]


def rests_on() -> dict[str, str]:
    """Digests of everything that all verdicts depend on, in addition to their PTX: the emulator, the launches and mistakes."""
    files = {
        "emulator": sorted((ROOT / "tilec" / "emulator").rglob("*.py")),
        "launches": [
            *(ROOT / "ci" / "bench" / f"{name}.py" for name in ("emulator_faults", "emulator_fault_subjects", "ptx_mutants")),
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
    """Plant and judge `count` mistakes in a kind's subjects in rotation; `known` has verdicts by digest of the PTX."""
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


def verdicts(path: Path, basis: dict[str, str]) -> dict[str, Row]:
    """Rows of a result by the digest of their PTX; empty if it rests on other sources."""
    data: Any = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rests_on": None}
    return {row["ptx"]: row for row in data["rows"]} if data["rests_on"] == basis else {}


def main() -> int:
    """Run everything, write the tables."""
    parser = argparse.ArgumentParser(description="plant mistakes in PTX and emulate them")
    parser.add_argument("--each", type=int, default=34, help="mistakes of each kind of schedule")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds of schedules whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    basis = rests_on()
    known = verdicts(options.out / "emulator_faults.json", basis)
    tasks: list[tuple[str, int, dict[str, Row]]] = [(kind, options.each, known) for kind in subjects() if options.only in kind]
    with multiprocessing.Pool(options.jobs) as pool:
        rows = [row for some in pool.imap(one_kind, tasks, chunksize=1) for row in some]
    write(rows, basis, options.out)
    return 0


def write(rows: list[Row], basis: dict[str, str], out: Path) -> None:
    """Write the JSON and the table."""
    from emulator_faults_explained import reason

    for row in rows:
        row.pop("reason", None)
        if not row["found"]:
            row["reason"] = reason(row)
    missed = [row for row in rows if not row["found"]]
    caught = len(rows) - len(missed)
    equivalent = [row for row in missed if row["reason"].startswith("equivalent")]
    share = 100 * caught / max(1, len(rows) - len(equivalent))
    data = {"rests_on": basis, "rows": rows}
    (out / "emulator_faults.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Planted faults", "",
        "One mistake each in PTX of every kind of schedule on sm_90a, and of Triton; see `ci/bench/emulator_faults.py`.", "",
        f"{len(rows)} planted, {caught} found ({100 * caught / max(1, len(rows)):.1f} %); of the "
        f"{len(missed)} not found, {len(equivalent)} change nothing that a legal launch can observe, which leaves "
        f"{share:.1f} % found.", "",
    ]  # fmt: skip
    for title, column, names in (("schedule", "schedule", dict.fromkeys(row["schedule"] for row in rows)),
                                 ("class", "class", dict.fromkeys(CLASSES))):  # fmt: skip
        lines += [f"| {title} | planted | by a fault | by an output | not found |", "|---|--:|--:|--:|--:|"]
        for name in names:
            group = [row for row in rows if row[column] == name]
            if group:
                by_output = sum(row["found"].startswith("output") for row in group)
                lost = sum(not row["found"] for row in group)
                lines.append(f"| {name} | {len(group)} | {len(group) - by_output - lost} | {by_output} | {lost} |")
        lines.append("")
    lines += ["Not found:", "", "| class | schedule, file, line | instruction | why |", "|---|---|---|---|"]
    for row in missed:
        change = f"`{row['before'][:90]}`" + (f" -> `{row['after'][:90]}`" if row["after"] else "")
        location = f"{row['schedule']}, {row['file']}, {row['line']}"
        lines.append(f"| {row['class']} | {location} | {change.replace('|', ' ')} | {row['reason']} |")
    (out / "emulator_faults.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
