"""Plants one mistake each in 200 PTX files, ours and Triton's, and sees whether the emulator finds it.

    python ci/bench/emulator_faults.py [--build artifacts/build] [--count 200] [--only WORDS]

Files, classes and places are chosen the same way every time: every file once, the class that has been planted least so far, a
place that the launch executes. Original and mutant run with a few seeds; a mistake is found if a fault is reported or an output
differs from the original's. What is not found is listed with the class, and with the reason where EXPLAINED has one. Writes
`results/emulator_faults.{md,json}`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from emulator_cases import Case, cases, make_arrays  # noqa: E402
from ptx_mutants import CLASSES, Mutant, plant, sites  # noqa: E402

from tests.emulator import foreign_cases, foreign_run  # noqa: E402
from tilec.emulator.errors import Limits, Report, UnsupportedPtx  # noqa: E402
from tilec.emulator.launch import emulate  # noqa: E402

RESULTS: Final = ROOT / "ci" / "bench" / "results"
SEEDS: Final = tuple(range(8))
"""Each is one order of threads, one set of inputs and one of sizes."""
ARCHS: Final = ("sm_90a", "sm_100a", "sm_120a")
LARGEST_K: Final = 5120
"""Kernels with longer rows are the same code in more steps."""


@dataclass
class Subject:
    """A file and its launch: `run(text, seed, steps)` emulates a text of it within a number of steps."""

    name: str
    group: str
    text: str
    run: Callable[[str, int, int], Report]


def subjects(build: Path) -> Iterator[Subject]:
    """Every file that may be chosen."""
    for name in sorted(foreign_cases.CASES):
        first = int("tma" in name or "softmax" in name)  # sizes that leave ragged edges come first

        def run_foreign(text: str, seed: int, steps: int, name: str = name, first: int = first) -> Report:
            given = foreign_cases.launch(name, seed + first)
            return foreign_run.emulate(name, given, seed=seed, text=text, limits=Limits(instructions=steps))

        yield Subject(f"triton {name}", "triton", foreign_cases.text(name), run_foreign)
    for arch in ARCHS:
        by_stem: dict[str, list[Case]] = {}
        for case in cases(build / arch):
            if int(case.manifest.constants.get("K", 0)) <= LARGEST_K:
                by_stem.setdefault(case.stem, []).append(case)
        for stem, sizes in by_stem.items():

            def run_ours(text: str, seed: int, steps: int, sizes: list[Case] = sizes) -> Report:
                case = sizes[seed % len(sizes)]
                values, limits = {**case.env, **case.scalars}, Limits(instructions=steps)
                return emulate(text, case.manifest, make_arrays(case, seed), values, seed=seed, limits=limits)

            text = (build / arch / f"{stem}.ptx").read_text(encoding="utf-8")
            yield Subject(f"{arch} {stem}", f"{arch} {sizes[0].manifest.kernel}", text, run_ours)


def choose(found: list[Subject], count: int) -> list[Subject]:
    """`count` files: Triton's, then one of each kernel and architecture in turn."""
    groups: dict[str, list[Subject]] = {}
    for subject in sorted(found, key=lambda s: zlib.crc32(s.name.encode())):
        groups.setdefault(subject.group, []).append(subject)
    chosen = groups.pop("triton", [])
    while len(chosen) < count and any(groups.values()):
        for members in groups.values():
            if members and len(chosen) < count:
                chosen.append(members.pop(0))
    return chosen[:count]


def mutant_of(subject: Subject, executed: set[int], planted: Counter[str]) -> Mutant | None:
    """The mistake for a file: of the class planted least so far, at a place that the launch executes."""
    number = zlib.crc32(subject.name.encode())
    for kind in sorted(CLASSES, key=lambda kind: (planted[kind], zlib.crc32(kind.encode()))):
        places = [m for m in sites(subject.text, kind) if _line(subject.text, m.start()) in executed]
        for step in range(min(len(places), 8)):
            mutant = plant(subject.text, kind, places[(number + step) % len(places)])
            if mutant is not None:
                planted[kind] += 1
                return mutant
    return None


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def judge(subject: Subject, mutant: Mutant, originals: dict[int, Report], steps: int) -> tuple[str, int]:
    """How the mistake was found (empty: not at all) and with how many seeds."""
    for tried, seed in enumerate(SEEDS, 1):
        if seed not in originals:
            originals[seed] = subject.run(subject.text, seed, 1 << 40)
        try:
            report = subject.run(mutant.text, seed, steps)
        except UnsupportedPtx as refused:
            return f"refused: {refused.reason}", tried
        if not report.clean:
            fault = next(fault for fault in report.faults if fault.kind != "race-same-value")
            return f"{fault.kind}: {fault.message}"[:160], tried
        known = {(fault.kind, fault.ptx_line) for fault in originals[seed].faults}
        for fault in report.faults:
            if (fault.kind, fault.ptx_line) not in known:
                return f"{fault.kind}: {fault.message}"[:160], tried
        for name, value in originals[seed].tensors.items():
            if report.tensors[name].tobytes() != value.tobytes():
                return f"output `{name}` differs", tried
    return "", len(SEEDS)


def one(subject: Subject, planted: Counter[str]) -> dict[str, Any] | None:
    """Plants and judges; None where the file has no place for any class."""
    began = time.monotonic()
    original = subject.run(subject.text, SEEDS[0], 1 << 40)
    if not original.clean:
        raise SystemExit(f"{subject.name}: the original has faults: {original.faults[0]}")
    mutant = mutant_of(subject, original.statistics["lines"], planted)
    if mutant is None:
        return None
    how, seeds = judge(subject, mutant, {SEEDS[0]: original}, 200 * original.statistics["steps"] + 100_000)
    return {
        "file": subject.name, "class": mutant.kind, "line": mutant.line, "before": mutant.before, "after": mutant.after,
        "found": how, "seeds": seeds, "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


def main() -> int:
    """Run everything, write the tables."""
    parser = argparse.ArgumentParser(description="plant mistakes in PTX and emulate them")
    parser.add_argument("--build", type=Path, default=ROOT / "artifacts" / "build")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    planted: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for subject in choose([s for s in subjects(options.build) if options.only in s.name], options.count):
        row = one(subject, planted)
        if row is not None:
            rows.append(row)
            print(f"{row['class']:34} {row['file'][:60]:60} {row['found'] or 'NOT FOUND'} ({row['seconds']} s)", flush=True)
    write(rows, options.out)
    return 0


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """The JSON and the table."""
    from emulator_faults_explained import reason

    for row in rows:
        if not row["found"]:
            row["reason"] = reason(row)
    missed = [row for row in rows if not row["found"]]
    caught = len(rows) - len(missed)
    equivalent = [row for row in missed if row["reason"].startswith("equivalent")]
    share = 100 * caught / max(1, len(rows) - len(equivalent))
    (out / "emulator_faults.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Planted faults", "",
        "One mistake each in PTX files of ours (three architectures) and of Triton's; see `ci/bench/emulator_faults.py`.", "",
        f"{len(rows)} planted, {caught} found ({100 * caught / max(1, len(rows)):.1f} %); of the "
        f"{len(missed)} not found, {len(equivalent)} change nothing that a legal launch can observe, which leaves "
        f"{share:.1f} % found.", "",
        "| class | planted | by a fault | by an output | not found |", "|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    for kind in CLASSES:
        mine = [row for row in rows if row["class"] == kind]
        if mine:
            by_output = sum(row["found"].startswith("output") for row in mine)
            lost = sum(not row["found"] for row in mine)
            lines.append(f"| {kind} | {len(mine)} | {len(mine) - by_output - lost} | {by_output} | {lost} |")
    lines += ["", "Not found:", "", "| class | file, line | instruction | why |", "|---|---|---|---|"]
    for row in missed:
        change = f"`{row['before']}`" + (f" -> `{row['after']}`" if row["after"] else "")
        lines.append(f"| {row['class']} | {row['file']}, {row['line']} | {change} | {row['reason']} |")
    (out / "emulator_faults.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
