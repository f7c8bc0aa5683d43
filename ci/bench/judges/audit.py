"""Audit the bundles of every dense model in 16 bits for every architecture, and those of `FORMATTED` models in every format of
weights and caches for `FORMATTED_TARGET`, on an idle and on a busy machine: counts of confirmed, emulated and open.

Packs the store's artifacts into a temporary folder, or takes bundles from `--bundles`. Audits one bundle after the other with
an empty store of verdicts, then all of them again with the verdicts of the first pass; both on an idle machine and on a busy
one. The reports of all passes must be equal except for times. A busy machine runs `--busy` processes that only compute; with
`--busy 0` other processes on the machine are the load, which is measured. An idle pass waits until the load average is below
one half of a process per processor. `--passes` selects passes and their order; `idle,first:qwen3-4b sm_90a` is a pass over
one bundle. Writes `audit.md` and `audit.json` after every bundle; the exit status is the worst of the audits, and 1 if
reports differ.
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
from collections.abc import Collection, Generator, Iterator, Sequence
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
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.closed_world import enumerate_world
from tilec.project.read.models import Model
from tilec.runtime import open_bundle
from tilec.ship.bundle.pack import model_packing, pack
from tilec.step.formats import SIXTEEN_BIT
from tilec.target.targets import Target
from tilec.untrusted.output import Output

HEADER: Final = (
    "bundle", "artifacts", "obligations", "confirmed", "unknown", "refuted", "missing", "tensor maps", "CUBINs of their PTX",
    "clean in the emulator", "launches", "instructions", "verdicts", "reused",
)  # fmt: skip
PASSES: Final = ("idle,first", "idle,again", "busy,first", "busy,again")
"""The passes over each bundle: on an idle or a busy machine, with an empty store or with its verdicts."""
FORMATTED: Final = ("qwen3-4b", "qwen3-30b-a3b")
"""Models of which every format is audited, one of each kind of layer: others have their kernels in other sizes."""
FORMATTED_TARGET: Final = "sm_90a"
"""The architecture of these: the one on which they were measured."""
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


def audited(build: BuildFile, models: Collection[str], targets: Collection[Target]) -> Iterator[tuple[Target, Model, str, str]]:
    """The bundles that are audited, of all models if `models` is empty: target, model, and formats of weights and caches."""
    for target in targets:
        for model in build.models:
            for _, weights, cache, gpus in model.bundles() if not models or model.name in models else ():
                plain = weights == cache == SIXTEEN_BIT
                formatted = model.name in FORMATTED and target.name == FORMATTED_TARGET
                if gpus == 1 and (formatted or (plain and not model.requested)):
                    yield target, model, weights, cache


def packed(chosen: Sequence[tuple[Target, Model, str, str]], folder: Path) -> list[Path]:
    """Those bundles in a folder of packed ones; ends with the missing ones' names."""
    found = [folder / f"{model.bundle_name(weights, cache, 1)}-{target}.bundle" for target, model, weights, cache in chosen]
    if missing := [path.name for path in found if not path.exists()]:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}; `tilec bundle pack` with --weights and --cache writes them")
    return found


def bundles(build: BuildFile, chosen: Sequence[tuple[Target, Model, str, str]], folder: Path, jobs: int) -> list[Path]:
    """Those bundles, packed from the store of the project."""
    targets = tuple(dict.fromkeys(target for target, _, _, _ in chosen))
    models = tuple(dict.fromkeys(model.name for _, model, _, _ in chosen))
    weights = tuple(dict.fromkeys(each for _, _, each, _ in chosen))
    world = enumerate_world(build, targets, models, weights, tuple(dict.fromkeys(each for _, _, _, each in chosen)))
    if world.problems:
        raise SystemExit(f"the project lacks artifacts: {world.problems[0].message}")
    found: list[Path] = []
    with contextlib.closing(open_store()) as store:
        built = build_project(build, needed_entries(world), targets, store, toolchain(store), jobs=jobs)
        if built.diagnostics:
            raise SystemExit(built.diagnostics[0].message)
        for target, model, of_weights, cache in chosen:
            packing = model_packing(model, build.families[model.family], target, world, of_weights, cache)
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
        "The bundles of every dense model of build.toml in 16 bits, and for "
        f"{FORMATTED_TARGET} those of {' and '.join(FORMATTED)} in every format of weights and caches, through `tilec audit`: "
        "obligations derived from the tile IR and proven with z3, the PTX of every artifact run in the emulator at the "
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
    passes = [(when, bundle) for when, _, bundle in (text.partition(":") for text in options.passes)]
    if wrong := [when for when, _ in passes if when not in PASSES]:
        raise SystemExit(f"`{wrong[0]}` is no pass: it is one of {' '.join(PASSES)}")
    audits = Audits(Options(options.jobs, (), options.launches, options.seeds), options.busy)
    with tempfile.TemporaryDirectory() as folder:
        build = open_project(str(ROOT))
        chosen = list(audited(build, options.models, chosen_targets(options.arch) or build.targets))
        given = options.bundles
        paths = packed(chosen, given) if given else bundles(build, chosen, Path(folder) / "bundles", options.jobs)
        for number, (when, bundle) in enumerate(passes):
            some = [path for path in paths if bundle in ("", path.stem.replace("-sm", " sm"))]
            if not some:
                raise SystemExit(f"there is no bundle `{bundle}`")
            yield from audit_all(some, when, audits, Path(folder) / f"verdicts-{number if when.endswith('first') else 0}")
