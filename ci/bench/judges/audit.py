"""Audit the bundles of every model for every architecture on an idle and on a busy machine: counts of confirmed, emulated and
open.

Packs the store's artifacts into a temporary folder, and audits one bundle after the other with an empty store of verdicts, then
all of them again with the verdicts of the first pass; both on an idle machine and on a busy one. The reports of all passes must
be equal except for times. A busy machine runs `--busy` processes that only compute; with `--busy 0` other processes on the
machine are the load, which is measured. An idle pass waits until the load average is below one half of a process per processor.
`--passes` selects passes and their order; `idle,first:qwen3-4b sm_90a` is a pass over one bundle. Writes `audit.md` and
`audit.json` after every bundle; the exit status is the worst of the audits, and 1 if reports differ.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome, names
from ci.evidence import ROOT
from tilec.audit.report import lines, seal
from tilec.audit.run import audit
from tilec.audit.sources import KINDS, rests_on
from tilec.audit.verdicts import Verdicts
from tilec.audit.work import Options
from tilec.cache import Store
from tilec.cli.audit_command import assembler
from tilec.cli.pack_command import needed_entries
from tilec.cli.project import chosen_targets, open_project, open_store, toolchain
from tilec.project.build.driver import build_project
from tilec.project.read.closed_world import enumerate_world
from tilec.runtime import open_bundle
from tilec.ship.bundle.pack import model_packing, pack
from tilec.untrusted.output import Output

HEADER: Final = (
    "bundle", "artifacts", "obligations", "confirmed", "unknown", "refuted", "missing", "tensor maps", "CUBINs of their PTX",
    "clean in the emulator", "launches", "instructions", "verdicts", "reused",
)  # fmt: skip
PASSES: Final = ("idle,first", "idle,again", "busy,first", "busy,again")
"""The passes over each bundle: on an idle or a busy machine, with an empty store or with its verdicts."""
IDLE: Final = 0.5
"""Load average per processor below which a machine counts as idle."""


@dataclass
class Audits:
    """Results so far: the first report on each bundle; seconds and seal by pass and bundle; load averages by pass."""

    options: Options
    busy: int
    reports: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    passes: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict[str, dict[str, tuple[float, str]]])
    loads: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def differing(self) -> list[str]:
        """Bundles whose report differs in a later pass."""
        return [
            f"{name}: {when}"
            for when, found in self.passes.items()
            for name, (_, sealed) in found.items()
            if sealed != seal(self.reports[name])
        ]

    def seconds(self, when: str) -> float:
        """Seconds of a whole pass."""
        return sum(seconds for seconds, _ in self.passes.get(when, {}).values())


def wait_for_idle() -> None:
    """Wait until the machine is idle."""
    while (load := os.getloadavg()[0]) >= IDLE * (os.cpu_count() or 1):
        print(f"waits for an idle machine: the load average is {load:.1f}", flush=True)
        time.sleep(30)


@contextlib.contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Run `count` computing processes during the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def bundles(folder: Path, models: tuple[str, ...], arch: str | None, jobs: int) -> list[Path]:
    """Bundles of the models, packed from the store of the project."""
    build = open_project(str(ROOT))
    targets = chosen_targets(arch) or build.targets
    chosen = [model for model in build.models if not models or model.name in models]
    world = enumerate_world(build, targets, tuple(model.name for model in chosen))
    if world.problems:
        raise SystemExit(f"the project lacks artifacts: {world.problems[0].message}")
    found: list[Path] = []
    with contextlib.closing(open_store()) as store:
        built = build_project(build, needed_entries(world), targets, store, toolchain(store), jobs=jobs)
        if built.diagnostics:
            raise SystemExit(built.diagnostics[0].message)
        for model in chosen:
            for target in targets:
                packing = model_packing(model, build.families[model.family], target, world)
                with pack(packing, target, built, store, Output(folder, None)) as bundle:
                    found.append(bundle.path)
    return found


def row(report: dict[str, Any]) -> str:
    """A row of the table."""
    total, run = report["summary"], report["run"]
    counts = total["obligations"]
    cells = (
        f"{report['bundle']['model']} {report['bundle']['arch']}",
        total["artifacts"],
        sum(counts.values()),
        counts["confirmed"],
        counts["unknown"],
        counts["refuted"],
        sum(total["missing"].values()),
        total["tensor_maps"],
        total["cubins"].get("same", 0),
        total["emulation"].get("clean", 0),
        total["emulated_launches"],
        total["emulated_instructions"],
        sum(run["judged"].values()),
        sum(run["reused"].values()),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def distinct(reports: list[dict[str, Any]]) -> list[str]:
    """Figures over distinct texts, and everything that is not confirmed or clean."""
    proofs: dict[str, int] = {}
    ptx: dict[str, dict[str, Any]] = {}
    open_: set[str] = set()
    for report in reports:
        for one in report["artifacts"]:
            proofs[one["digests"]["tir"]] = len(one["obligations"])
            ptx[one["digests"]["ptx"]] = one["emulation"]
        text = lines(report)
        open_ |= set(text[text.index("") + 1 : -2]) - {""}
    shares = sorted(emulation["coverage"] for emulation in ptx.values() if "coverage" in emulation)
    found = [f"Distinct tile IR: {len(proofs)} texts with {sum(proofs.values())} obligations. Distinct PTX: {len(ptx)} texts."]
    if shares:
        middle = shares[len(shares) // 2]
        found.append(
            f"Share of PTX instructions that some launch executed: least {shares[0]:.0%}, median {middle:.0%}. What is never "
            "executed are branches that no launch of the contract takes (masks of blocks that are always whole, indices that "
            "value checks exclude), and sizes beyond the launches tried."
        )
    differs = sum(bool(launch.get("differs")) for emulation in ptx.values() for launch in emulation["launches"])
    found.append(f"Launches whose results differ from the tile interpreter's by more than rounding explains: {differs}.")
    return [*found, "", "Open: " + ("nothing." if not open_ else ""), *(f"- {text}" for text in sorted(open_))]


def digests(reports: list[dict[str, Any]]) -> dict[str, str]:
    """What the results rest on: the texts and machine code of all bundles, and the checkers."""
    found: dict[str, str] = {}
    for text in ("tir", "ptx", "cubin"):
        names = sorted({one["digests"][text] for report in reports for one in report["artifacts"]})
        found[text] = hashlib.sha256("".join(names).encode()).hexdigest()
    for kind in KINDS:
        for name, value in rests_on(kind).items():
            if name == "source":
                found[f"source of {kind}"] = value
    return found


def outcome(audits: Audits) -> Outcome:
    """The results so far."""
    reports = list(audits.reports.values())
    table = ["| " + " | ".join(HEADER) + " |", "|---|" + "--:|" * (len(HEADER) - 1), *map(row, reports)]
    options = audits.options
    intro = (
        "The bundle in 16 bits of every model of build.toml through `tilec audit`: obligations derived from the tile IR "
        "and proven with z3, the PTX of every artifact run in the emulator at the "
        "edges of its contract, arguments and tensor maps held against both, and the "
        f"PTX assembled again. Verdicts are kept by digest, so a bundle adds what is new in it. {options.jobs} processes on "
        f"{os.cpu_count()} processors, at most {options.launches} launches of an artifact, each in {options.seeds} schedules."
    )
    differing = audits.differing()
    times = ["| pass | bundles | load average, least to most | s | slowest bundle, s | reports |", "|---|--:|--:|--:|--:|---|"]
    for number, (when, found) in enumerate(audits.passes.items()):
        other = sum(text.endswith(when) for text in differing)
        same = "-" if not number else "the same" if not other else f"{other} differ"
        slowest = max((seconds for seconds, _ in found.values()), default=0.0)
        load = f"{min(audits.loads[when]):.1f} to {max(audits.loads[when]):.1f}"
        times.append(f"| {when} | {len(found)} | {load} | {audits.seconds(when):.0f} | {slowest:.1f} | {same} |")
    text = ["# Audit", "", intro, "", *table, "", *times, "", *distinct(reports), ""]
    data = {
        "digests": digests(reports),
        "tools": reports[0]["tools"],
        "limits": reports[0]["limits"],
        "jobs": options.jobs,
        "busy": audits.busy,
        "processors": os.cpu_count(),
        "differing": differing,
        "loads": audits.loads,
        "seconds": {when: round(audits.seconds(when), 1) for when in audits.passes},
        "bundles": [
            {
                "bundle": report["bundle"], "summary": report["summary"], "seal": seal(report), "run": report["run"],
                "seconds": {when: round(found[name][0], 2) for when, found in audits.passes.items() if name in found},
            }
            for name, report in audits.reports.items()
        ],
    }  # fmt: skip
    status = 1 if differing else max(report["summary"]["status"] for report in reports)
    return Outcome(data, {"audit.md": "\n".join(text)}, status)


def audit_all(paths: list[Path], when: str, audits: Audits, store: Path) -> Iterator[Outcome]:
    """One pass over all bundles, with the verdicts in `store`; the results so far after each."""
    if when.startswith("idle"):
        wait_for_idle()
    known = Store(store)
    with contextlib.closing(known), busy_processes(audits.busy if when.startswith("busy") else 0):
        for path in paths:
            with open_bundle(path) as bundle:
                report = audit(bundle, audits.options, Verdicts(known), assembler(known))
            name, seconds = f"{bundle.model} {bundle.arch}", report["run"]["milliseconds"] / 1000
            audits.reports.setdefault(name, report)
            audits.passes.setdefault(when, {})[name] = seconds, seal(report)
            audits.loads.setdefault(when, []).append(round(os.getloadavg()[0], 1))
            print(f"{when}: {seconds:7.1f} s  {row(report)}", flush=True)
            yield outcome(audits)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--models", type=names, default=[], help="names, separated by commas; all where empty")
    parser.add_argument("--arch")
    parser.add_argument("--busy", type=int, default=8, help="processes that only compute, next to a busy pass")
    parser.add_argument("--passes", nargs="+", default=PASSES, metavar="PASS", help="which, in order; PASS:BUNDLE is of one")
    parser.add_argument("--bundles", type=Path, help="a folder of bundles that are packed already")
    parser.add_argument("--launches", type=int, default=Options().launches)
    parser.add_argument("--seeds", type=int, default=Options().seeds)


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Pack and audit; the worst status of the audits, and 1 if reports differ."""
    chosen = [(when, bundle) for when, _, bundle in (text.partition(":") for text in options.passes)]
    if wrong := [when for when, _ in chosen if when not in PASSES]:
        raise SystemExit(f"`{wrong[0]}` is no pass: it is one of {' '.join(PASSES)}")
    audits = Audits(Options(options.jobs, (), options.launches, options.seeds), options.busy)
    with tempfile.TemporaryDirectory() as folder:
        packed = sorted(options.bundles.glob("*.bundle")) if options.bundles else None
        paths = packed or bundles(Path(folder) / "bundles", tuple(options.models), options.arch, options.jobs)
        for number, (when, bundle) in enumerate(chosen):
            some = [path for path in paths if bundle in ("", path.stem.replace("-sm", " sm"))]
            if not some:
                raise SystemExit(f"there is no bundle `{bundle}`")
            yield from audit_all(some, when, audits, Path(folder) / f"verdicts-{number if when.endswith('first') else 0}")
